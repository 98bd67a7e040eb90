// nanoGPT's way to give configuration on a command line, `key=value`, as flags: what the parsers and the permissions read. Pure, and
// plain JavaScript without packages, since it is needed before anything is installed. What is a flag already stays as it is.
// @ts-check
import { parseArgs } from "node:util";
import { configKeys } from "./config_keys.mjs";

/** A name as flags and configuration keys have them, before what looks like a value; a path can begin with "./". */
const PAIR = /^[A-Za-z][A-Za-z0-9_-]*=/;

/**
 * The first flag that the verb does not have, as it was typed, and all that it has; null: there is none. It is told before anything
 * is installed for the verb; options.ts judges the rest.
 * @param {{ config: boolean; flags: readonly { name: string; value: string | null }[] }} verb
 * @param {readonly string[]} args
 * @returns {{ typed: string; known: string[] } | null}
 */
export function unknownFlag(verb, args) {
  const known = [...verb.flags.map(({ name }) => name), ...(verb.config ? Object.keys(configKeys) : [])];
  // Without their kinds, a value that begins with dashes would be taken for a flag.
  const options = Object.fromEntries(verb.flags.map(({ name, value }) => [name, {
    type: /** @type {"string" | "boolean"} */ (value === null ? "boolean" : "string"),
  }]));
  const { tokens } = parseArgs({
    args: [...args],
    options,
    strict: false,
    tokens: true,
    allowPositionals: true,
  });
  for (const token of tokens) {
    if (token.kind !== "option" || known.includes(token.name)) continue;
    return { typed: token.rawName, known: known.map((name) => `--${name}`) };
  }
  return null;
}

/**
 * The arguments with `--` before each pair. Only verbs that take configuration keys have pairs.
 * @param {{ config: boolean; flags: readonly { name: string; value: string | null }[] }} verb
 * @param {readonly string[]} args
 * @returns {string[]}
 */
export function pairsAsFlags(verb, args) {
  if (!verb.config) return [...args];
  const switches = new Set(verb.flags.filter(({ value }) => value === null).map(({ name }) => `--${name}`));
  const end = args.indexOf("--"), count = end < 0 ? args.length : end;
  return args.map((arg, i) => {
    const before = args[i - 1] ?? "";
    // What follows `--name` is its value, whatever it looks like.
    const isValue = before.startsWith("--") && !before.includes("=") && !switches.has(before);
    return i < count && !isValue && PAIR.test(arg) ? `--${arg}` : arg;
  });
}
