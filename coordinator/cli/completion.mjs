// Scripts with which a shell completes `shoal`: made from the tables of verbs and flags, so that they cannot lag behind.
// Text only; nothing is installed.
// @ts-check
import { tools } from "./tools.mjs";
import { verbs } from "./usage.mjs";

/** Shells that there is a script for. */
export const SHELLS = /** @type {const} */ (["bash", "zsh", "fish"]);

/** Flags whose value is a file or a folder. */
const PATH_FLAGS = ["config", "out_dir", "out", "checkpoint", "state_dir", "dataset"];

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

function bash() {
  const cases = verbs.map((verb) => {
    const flags = verb.flags.map((flag) => `--${flag.name}`).join(" ");
    return `    ${verb.name}) words="${flags}" ;;`;
  });
  return [
    "_shoal() {",
    '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""',
    '  if [ "$COMP_CWORD" -eq 1 ]; then',
    `    COMPREPLY=($(compgen -W "${names().join(" ")} --help --version" -- "$current"))`,
    "    return",
    "  fi",
    '  case "$before" in',
    `    ${
      PATH_FLAGS.map((flag) => `--${flag}`).join("|")
    }) COMPREPLY=($(compgen -f -- "$current")); return ;;`,
    "  esac",
    '  case "${COMP_WORDS[1]}" in',
    ...cases,
    '    completion) words="bash zsh fish" ;;',
    "  esac",
    '  case "$current" in',
    '    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;',
    '    *) COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current")) ;;',
    "  esac",
    "}",
    "complete -o filenames -F _shoal shoal",
    "",
  ].join("\n");
}

function fish() {
  const quote = (/** @type {string} */ text) => `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
  const first = [...verbs, ...tools].map((verb) =>
    `complete -c shoal -n __fish_use_subcommand -f -a ${verb.name} -d ${quote(verb.summary)}`
  );
  const flags = verbs.flatMap((verb) =>
    verb.flags.map((flag) => {
      const value = flag.value === null ? "" : PATH_FLAGS.includes(flag.name) ? " -r -F" : " -x";
      const name = `-l ${flag.name}${value}`;
      return `complete -c shoal -n "__fish_seen_subcommand_from ${verb.name}" ${name} -d ${quote(flag.text)}`;
    })
  );
  const shells = SHELLS.join(" ");
  const last = `complete -c shoal -n "__fish_seen_subcommand_from completion" -f -a ${quote(shells)}`;
  return [...first, ...flags, last, ""].join("\n");
}
