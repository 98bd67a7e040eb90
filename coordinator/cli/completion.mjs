// Scripts with which a shell completes `shoal`: made from the tables of verbs, flags and configuration keys, so that they cannot lag
// behind. Text only; nothing is installed.
// @ts-check
import { configKeys, pathKeys } from "./config_keys.mjs";
import { tools } from "./tools.mjs";
import { verbs } from "./usage.mjs";

/** Shells that there is a script for. */
export const SHELLS = /** @type {const} */ (["bash", "zsh", "fish"]);

/** Flags whose value is a file or a folder. */
const PATH_FLAGS = ["config", "out_dir", "runs_dir", "out", "checkpoint", "state_dir", ...pathKeys];

/** @typedef {{ name: string; value: boolean; choices: readonly string[]; text: string }} Option */

/**
 * The script of a shell, or null if the shell is not known.
 * @param {string} shell
 * @returns {string | null}
 */
export function completionScript(shell) {
  if (shell === "bash") return bash();
  // zsh runs bash's completions once it is told to.
  if (shell === "zsh") return `autoload -U +X bashcompinit && bashcompinit\n${bash()}`;
  return shell === "fish" ? fish() : null;
}

function names() {
  return [...verbs, ...tools].map((verb) => verb.name);
}

/** The verb's own flags. @param {import("./usage.mjs").Verb} verb @returns {Option[]} */
function flagsOf({ flags }) {
  return flags.map(({ name, value, choices = [], text }) => ({ name, value: value !== null, choices, text }));
}

/** @returns {Option[]} */
function keys() {
  return Object.entries(configKeys).map(([name, choices]) => ({
    ...{ name, value: true, choices, text: "configuration key" },
  }));
}

/** Verbs that take configuration keys. */
function configured() {
  return verbs.filter((verb) => verb.config).map((verb) => verb.name);
}

/** Lines of the case in which the values of a flag are known: `verb:--flag`. */
function valueCases() {
  const own = verbs.flatMap((verb) =>
    flagsOf(verb).filter(({ choices }) => choices.length > 0)
      .map(({ name, choices }) => ({ at: [`${verb.name}:--${name}`], choices }))
  );
  const config = keys().filter(({ choices }) => choices.length > 0)
    .map(({ name, choices }) => ({ at: configured().map((verb) => `${verb}:--${name}`), choices }));
  return [...own, ...config].map(({ at, choices }) =>
    `    ${at.join("|")}) values="${choices.join(" ")}" ;;`
  );
}

function bash() {
  const known = `${configured().join("|")}`;
  return [
    "_shoal() {",
    '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
    '  local verb="${COMP_WORDS[1]}" words="" values="" flag="" prefix="" pair=""',
    '  if [ "$COMP_CWORD" -eq 1 ]; then',
    `    COMPREPLY=($(compgen -W "${names().join(" ")} --help --version" -- "$current"))`,
    "    return",
    "  fi",
    "  # bash takes --flag=value for three words, other shells for one.",
    '  case "$current" in',
    '    --*=*|[a-z]*=*) flag="${current%%=*}" prefix="${current%%=*}=" current="${current#*=}" pair=1 ;;',
    '    =) flag="$before" current="" pair=1 ;;',
    '    *) if [ "$before" = "=" ]; then flag="${COMP_WORDS[COMP_CWORD-2]}" pair=1; else flag="$before"; fi ;;',
    "  esac",
    "  # key=value is --key=value.",
    '  case "$pair$flag" in 1--*) ;; 1*) flag="--$flag" ;; esac',
    '  case "$verb:$flag" in',
    ...valueCases(),
    "  esac",
    '  case "$flag" in',
    `    ${PATH_FLAGS.map((flag) => `--${flag}`).join("|")})`,
    '      COMPREPLY=($(compgen -P "$prefix" -W "$values" -- "$current") $(compgen -P "$prefix" -f -- "$current"))',
    "      return ;;",
    "  esac",
    '  if [ -n "$values" ]; then',
    '    COMPREPLY=($(compgen -P "$prefix" -W "$values" -- "$current"))',
    "    return",
    "  fi",
    "  # A value that is typed freely.",
    '  if [ -n "$prefix" ] || [ "$before" = "=" ] || [ "${COMP_WORDS[COMP_CWORD]}" = "=" ]; then return; fi',
    '  case "$verb" in',
    ...verbs.map((verb) => {
      const flags = flagsOf(verb).map(({ name }) => `--${name}`);
      return `    ${verb.name}) words="${[...verb.orders ?? [], ...flags].join(" ")}" ;;`;
    }),
    `    completion) words="${SHELLS.join(" ")}" ;;`,
    "  esac",
    '  case "$verb" in',
    `    ${known}) words="$words ${keys().map(({ name }) => `--${name}= ${name}=`).join(" ")}" ;;`,
    "  esac",
    '  case "$current" in',
    '    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;',
    '    *) COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current")) ;;',
    "  esac",
    "  # After a key its value follows at once.",
    '  if [ "${#COMPREPLY[@]}" -eq 1 ]; then',
    '    case "${COMPREPLY[0]}" in *=) compopt -o nospace 2>/dev/null ;; esac',
    "  fi",
    "}",
    "complete -o filenames -F _shoal shoal",
    "",
  ].join("\n");
}

function fish() {
  const first = [...verbs, ...tools].map((verb) =>
    `complete -c shoal -n __fish_use_subcommand -f -a ${verb.name} -d ${quoted(verb.summary)}`
  );
  const orders = verbs.flatMap(({ name, orders = [] }) =>
    orders.length === 0 ? [] : [`complete -c shoal -n ${seen([name])} -a ${quoted(orders.join(" "))}`]
  );
  const flags = verbs.flatMap((verb) => flagsOf(verb).map((flag) => fishOption([verb.name], flag)));
  const config = keys().map((key) => fishOption(configured(), key));
  const last = `complete -c shoal -n ${seen(["completion"])} -f -a ${quoted(SHELLS.join(" "))}`;
  return [...first, ...orders, ...flags, ...config, last, ""].join("\n");
}

/** @param {string[]} of verbs @param {Option} option */
function fishOption(of, { name, value, choices, text }) {
  const isPath = PATH_FLAGS.includes(name);
  const kind = !value ? "" : isPath ? " -r -F" : " -x";
  const listed = choices.length === 0 ? "" : ` -a ${quoted(choices.join(" "))}`;
  return `complete -c shoal -n ${seen(of)} -l ${name}${kind}${listed} -d ${quoted(text)}`;
}

/** @param {string[]} of verbs */
function seen(of) {
  return `"__fish_seen_subcommand_from ${of.join(" ")}"`;
}

/** @param {string} text */
function quoted(text) {
  return `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
}
