// nanoGPT's way to give configuration on a command line, `key=value`, as flags: what the parsers and the permissions read. Pure, and
// plain JavaScript without packages, since it is needed before anything is installed. What is a flag already stays as it is.
// @ts-check

/** A name as flags and configuration keys have them, before what looks like a value; a path can begin with "./". */
const PAIR = /^[A-Za-z][A-Za-z0-9_-]*=/;

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
