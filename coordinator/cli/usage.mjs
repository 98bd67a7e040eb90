// The verbs of the command line and their help texts. Plain JavaScript without imports, so that `shoal --help` answers
// before anything is installed. Flags are listed once, here: the parsers in options.ts are built from this table.
// @ts-check

/**
 * @typedef {{ name: string; value: string | null; text: string }} FlagHelp value is null for a switch
 * @typedef {{ name: string; summary: string; usage: string; flags: FlagHelp[]; config: boolean }} Verb
 */

/** @type {FlagHelp} */
const json = { name: "json", value: null, text: "one JSON object per line on stdout" };
/** @type {FlagHelp} */
const help = { name: "help", value: null, text: "show this text" };

/** @type {FlagHelp} */
const engine = {
  name: "engine",
  value: "ENGINE",
  text: "wgsl, tfjs-wasm, tfjs-webgpu, cpu, or auto: the quickest here (auto)",
};

/** @type {FlagHelp[]} */
const serverFlags = [
  { name: "host", value: "ADDRESS", text: "address to listen on (127.0.0.1; 0.0.0.0 = every network)" },
  { name: "port", value: "N", text: "port to listen on (0 = any free one)" },
  { name: "public_url", value: "URL", text: "address that links carry, such as a proxy's https://name" },
  { name: "out_dir", value: "DIR", text: "folder for checkpoints and metrics (runs/<name>)" },
  { name: "name", value: "TEXT", text: "name of the run, shown to contributors" },
  { name: "operator", value: "TEXT", text: "who runs it, shown to contributors" },
];
/** @type {FlagHelp} */
const configFile = {
  name: "config",
  value: "FILE",
  text: "JSON file of configuration keys; flags win over it",
};

/** @type {Verb[]} */
export const verbs = [
  {
    name: "demo",
    summary: "train a small model here, with peers of its own, and show the result",
    usage: "shoal demo [flags] [--<config key>=<value> ...]",
    flags: [
      { name: "peers-deno", value: "N", text: "Deno peers to start (2)" },
      { name: "tabs", value: "N", text: "browser tabs to start, headless (1)" },
      engine,
      { name: "keep", value: null, text: "keep serving the pages after the run, until Ctrl-C" },
      ...serverFlags,
      configFile,
      json,
      help,
    ],
    config: true,
  },
  {
    name: "coordinator",
    summary: "start a run and print the link that others join with",
    usage: "shoal coordinator [flags] [--<config key>=<value> ...]",
    flags: [...serverFlags, configFile, json, help],
    config: true,
  },
  {
    name: "resume",
    summary: "go on with a run from its newest checkpoint",
    usage: "shoal resume DIR [flags] [--<config key>=<value> ...]",
    flags: [...serverFlags, json, help],
    config: true,
  },
  {
    name: "peer",
    summary: "lend this computer to a run",
    usage: "shoal peer --join LINK [flags]",
    flags: [
      { name: "join", value: "LINK", text: "the run's join link" },
      { name: "name", value: "TEXT", text: "name shown to the run's organizer" },
      engine,
      {
        name: "state_dir",
        value: "DIR",
        text: "keep states of the newest snapshot there, over a restart (nowhere)",
      },
      json,
      help,
    ],
    config: false,
  },
  {
    name: "generate",
    summary: "write text with a trained checkpoint",
    usage: "shoal generate --checkpoint DIR --prompt TEXT [flags]",
    flags: [
      { name: "checkpoint", value: "DIR", text: "a checkpoint, or a run's folder (its newest checkpoint)" },
      { name: "prompt", value: "TEXT", text: "text to continue" },
      { name: "count", value: "N", text: "characters to write (200)" },
      { name: "temperature", value: "T", text: "0 = always the likeliest character (0.8)" },
      { name: "top_k", value: "K", text: "choose among the K likeliest; 0 = among all (0)" },
      { name: "seed", value: "N", text: "seed of the choices (1337)" },
      json,
      help,
    ],
    config: false,
  },
  {
    name: "doctor",
    summary: "say what this computer can do for a run, and what to fix",
    usage: "shoal doctor [flags]",
    flags: [json, help],
    config: false,
  },
];

/** @param {string} version */
export function mainHelp(version) {
  const width = Math.max(...verbs.map((verb) => verb.name.length));
  const lines = verbs.map((verb) => `  ${verb.name.padEnd(width)}  ${verb.summary}`);
  return [
    `shoal ${version}: trains one model across browser tabs and Deno processes`,
    "",
    "usage: shoal <verb> [flags]",
    ...lines,
    "",
    "shoal <verb> --help explains a verb; --version prints the version.",
    "Exit codes: 0 done, 1 failed, 2 wrong usage.",
  ].join("\n");
}

/** @param {Verb} verb */
export function verbHelp(verb) {
  /** @param {FlagHelp} flag */
  const left = (flag) => `--${flag.name}${flag.value === null ? "" : ` ${flag.value}`}`;
  const width = Math.max(...verb.flags.map((flag) => left(flag).length));
  const lines = verb.flags.map((flag) => `  ${left(flag).padEnd(width)}  ${flag.text}`);
  const config = verb.config
    ? ["", "Configuration keys (--n_layer=4, --max_iters=300, ...) are listed in docs/self-hosting.md."]
    : [];
  return [`usage: ${verb.usage}`, verb.summary, "", ...lines, ...config].join("\n");
}

/**
 * The candidate with the fewest edits to `word` (insert, delete, replace, swap of neighbours), or null if none is
 * close enough to be a slip of the keyboard.
 * @param {string} word
 * @param {readonly string[]} candidates
 * @returns {string | null}
 */
export function nearest(word, candidates) {
  let best = null;
  let bestDistance = Math.max(2, Math.floor(word.length / 3)) + 1;
  for (const candidate of candidates) {
    const distance = editDistance(word.toLowerCase(), candidate.toLowerCase());
    if (distance < bestDistance) [best, bestDistance] = [candidate, distance];
  }
  return best;
}

/**
 * Optimal string alignment distance.
 * @param {string} a
 * @param {string} b
 */
export function editDistance(a, b) {
  let before = /** @type {number[]} */ ([]);
  let previous = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1];
      let cost = Math.min(
        (previous[j] ?? 0) + 1,
        (row[j - 1] ?? 0) + 1,
        (previous[j - 1] ?? 0) + (same ? 0 : 1),
      );
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (swapped) cost = Math.min(cost, (before[j - 2] ?? 0) + 1);
      row.push(cost);
    }
    [before, previous] = [previous, row];
  }
  return previous[b.length] ?? 0;
}

/**
 * "unknown flag" and the like, with the nearest known name.
 * @param {string} what
 * @param {string} word
 * @param {readonly string[]} known
 */
export function unknownMessage(what, word, known) {
  const close = nearest(word, known);
  return `unknown ${what} "${word}"${close === null ? "" : `; did you mean "${close}"?`}`;
}
