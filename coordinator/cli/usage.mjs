// The verbs of the command line and their help texts. Plain JavaScript without packages, so that `shoal --help`
// answers before anything is installed. Flags are listed once, here: the parsers in options.ts are built from this table.
// @ts-check
import { configKeys } from "./config_keys.mjs";
import { examples, firstSteps } from "./examples.mjs";
import { tools } from "./tools.mjs";

export { editDistance, nearest, unknownMessage } from "./nearest.mjs";

/**
 * @typedef {{ name: string; value: string | null; text: string; choices?: readonly string[] }} FlagHelp value is null for a switch
 * @typedef {{ name: string; summary: string; usage: string; flags: FlagHelp[]; config: boolean; orders?: readonly string[] }} Verb
 */

/** Width of lists in help texts. */
const LINE_CHARS = 100;

/** @type {FlagHelp} */
const json = { name: "json", value: null, text: "one JSON object per line on stdout" };
/** @type {FlagHelp} */
const help = { name: "help", value: null, text: "show this text" };

/** @type {FlagHelp} */
const engine = {
  name: "engine",
  value: "ENGINE",
  text: "wgsl, tfjs-wasm, tfjs-webgpu, cpu, or auto: the quickest here (auto)",
  choices: ["auto", "wgsl", "tfjs-wasm", "tfjs-webgpu", "cpu"],
};

/** @type {FlagHelp[]} */
const serverFlags = [
  { name: "host", value: "ADDRESS", text: "address to listen on (127.0.0.1; 0.0.0.0 = every network)" },
  { name: "port", value: "N", text: "port to listen on (0 = any free one)" },
  { name: "public_url", value: "URL", text: "address that links carry, such as a proxy's https://name" },
  { name: "out_dir", value: "DIR", text: "folder for checkpoints and metrics (runs/<name>)" },
  { name: "name", value: "TEXT", text: "name of the run, shown to contributors" },
  { name: "operator", value: "TEXT", text: "who runs it, shown to contributors" },
  {
    name: "base_url",
    value: "URL",
    text: "where else peers may fetch an imported model: its .safetensors file, or its folder",
  },
  {
    name: "public_text",
    value: null,
    text: "whoever has the join link may write text with the model, too (only the organizer)",
  },
];
/** @type {FlagHelp} */
const initFrom = {
  name: "init_from",
  value: "DIR",
  text:
    "begin with the weights of a run's newest checkpoint, or of a checkpoint; with --lora_rank they are frozen",
};
/** @type {FlagHelp} */
const configFile = {
  name: "config",
  value: "FILE",
  text: "JSON file of configuration keys; flags win over it, with --runs_dir what a run's maker says",
};

/** @type {Verb[]} */
export const verbs = [
  {
    name: "demo",
    summary: "train a small model here, with peers of its own, and show the result",
    usage: "shoal demo [flags] [<config key>=<value> ...]",
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
    name: "run",
    summary: "train here, with your own configuration and text, and end with a checkpoint",
    usage: "shoal run [--config FILE] [flags] [<config key>=<value> ...]",
    flags: [
      { name: "peers", value: "N", text: "Deno peers to start here (1); others may join by the link" },
      engine,
      ...serverFlags,
      configFile,
      initFrom,
      json,
      help,
    ],
    config: true,
  },
  {
    name: "coordinator",
    summary: "start a run and print the link that others join with",
    usage: "shoal coordinator [flags] [<config key>=<value> ...]",
    flags: [
      ...serverFlags,
      configFile,
      initFrom,
      {
        name: "runs_dir",
        value: "DIR",
        text: "serve all runs of the folder, and make further ones on a page; see docs/self-hosting.md",
      },
      {
        name: "or_resume",
        value: null,
        text: "go on with the run in --out_dir if there is one; for services that start again",
      },
      json,
      help,
    ],
    config: true,
  },
  {
    name: "resume",
    summary: "go on with a run from its newest checkpoint",
    usage: "shoal resume DIR [flags] [<config key>=<value> ...]",
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
      {
        name: "model_host",
        value: "HOST",
        text:
          "may fetch a run's imported model from there, if the run names that address; commas between several (nowhere)",
      },
      { name: "duty", value: "PERCENT", text: "share of the time in which it computes, 10 to 100 (100)" },
      { name: "memory", value: "MB", text: "most memory that it offers (what the device allows)" },
      {
        name: "up_rate",
        value: "KB_S",
        text: "most kilobytes per second that it sends to other peers (no limit)",
      },
      {
        name: "down_rate",
        value: "KB_S",
        text: "slow down where more than this arrives per second (no limit)",
      },
      {
        name: "daily",
        value: "MB",
        text: "finish and leave after so many megabytes a day, both ways (no limit)",
      },
      json,
      help,
    ],
    config: false,
  },
  {
    name: "generate",
    summary: "write text with a trained checkpoint, or with the peers of a live run",
    usage: "shoal generate --checkpoint DIR | --url LINK --prompt TEXT [flags]",
    flags: [
      {
        name: "url",
        value: "LINK",
        text: "admin link of a run, whose peers then write with the weights of now",
      },
      { name: "checkpoint", value: "DIR", text: "a checkpoint, or a run's folder (its newest checkpoint)" },
      { name: "prompt", value: "TEXT", text: "text to continue" },
      {
        name: "count",
        value: "N",
        text: "tokens to write; a token is a character, or a piece of a word (200)",
      },
      { name: "temperature", value: "T", text: "0 = always the likeliest token (0.8)" },
      { name: "top_k", value: "K", text: "choose among the K likeliest; 0 = among all (0)" },
      {
        name: "top_p",
        value: "P",
        text: "choose among the likeliest that together have probability P; 1 = among all (1)",
      },
      { name: "stop", value: "TEXT", text: "end before this text; may be given up to four times" },
      {
        name: "ignore_eos",
        value: null,
        text: "go on past the token with which the model ends a text",
      },
      { name: "seed", value: "N", text: "seed of the choices (1337)" },
      json,
      help,
    ],
    config: false,
  },
  {
    name: "import",
    summary: "make a run's first checkpoint of a Llama or GPT-2 from Hugging Face's files",
    usage: "shoal import DIR|URL|model.safetensors --out RUN [flags] [<config key>=<value> ...]",
    flags: [
      { name: "out", value: "RUN", text: "the run's folder to make; shoal resume RUN goes on from there" },
      { name: "adapter", value: "DIR", text: "adapters of the model in PEFT's layout, to go on with (none)" },
      { name: "model_host", value: "HOST", text: "where the model's address may lead on to (nowhere)" },
      json,
      help,
    ],
    config: true,
  },
  {
    name: "eval",
    summary: "measure a trained checkpoint on a text: loss, perplexity, bits per byte",
    usage: "shoal eval --checkpoint DIR [flags]",
    flags: [
      { name: "checkpoint", value: "DIR", text: "a checkpoint, or a run's folder (its newest checkpoint)" },
      { name: "dataset", value: "TEXT", text: "a known data set or a text's file (the run's own)" },
      {
        name: "split",
        value: "NAME",
        text: "val, train, or whole for a text of its own (val)",
        choices: ["val", "train", "whole"],
      },
      { name: "iters", value: "N", text: "micro-batches, drawn as the run draws them (its eval_iters)" },
      { name: "all", value: null, text: "every token of the split, once" },
      engine,
      json,
      help,
    ],
    config: false,
  },
  {
    name: "serve",
    summary: "answer OpenAI's completions API with a trained checkpoint",
    usage: "shoal serve --checkpoint DIR [flags]",
    flags: [
      {
        name: "checkpoint",
        value: "DIR",
        text: "a checkpoint, or a run's folder (always its newest checkpoint)",
      },
      { name: "host", value: "ADDRESS", text: "address to listen on (127.0.0.1; 0.0.0.0 = every network)" },
      { name: "port", value: "N", text: "port to listen on (0 = any free one)" },
      { name: "name", value: "TEXT", text: "the model's name (the run's folder)" },
      { name: "key", value: "TEXT", text: "what clients send as their API key (a fresh one, printed)" },
      json,
      help,
    ],
    config: false,
  },
  {
    name: "corpus",
    summary: "prepare a text for runs to learn, list the texts there are, or remove one",
    usage: "shoal corpus add FILE | list | remove ID [flags]",
    orders: ["add", "list", "remove"],
    flags: [
      { name: "runs_dir", value: "DIR", text: "the runs' folder, in whose corpora/ texts are kept (runs)" },
      {
        name: "hub",
        value: "LINK",
        text: "of a running coordinator of several runs instead: its organizer's link",
      },
      {
        name: "tokenizer",
        value: "NAME",
        text: "char, gpt2, or the path of a tokenizer.json (char)",
        choices: ["char", "gpt2"],
      },
      { name: "column", value: "NAME", text: "field of a .jsonl or column of a .parquet file (text)" },
      { name: "vocab_multiple", value: "N", text: "fill the vocabulary up to a multiple of this (1)" },
      { name: "name", value: "TEXT", text: "what lists call the text (the file)" },
      json,
      help,
    ],
    config: false,
  },
  {
    name: "export",
    summary: "write a trained model as files that other programs open",
    usage: "shoal export --checkpoint DIR --format hf|gguf|onnx|peft|gguf-lora [flags]",
    flags: [
      { name: "checkpoint", value: "DIR", text: "a checkpoint, or a run's folder (its newest checkpoint)" },
      {
        name: "format",
        value: "FORMAT",
        text: "hf (transformers), gguf (llama.cpp), onnx (onnxruntime); adapters alone: peft or gguf-lora",
        choices: ["hf", "gguf", "onnx", "peft", "gguf-lora"],
      },
      {
        name: "dtype",
        value: "TYPE",
        text: "f32, f16, all but onnx also bf16, gguf also q8_0 (f32)",
        choices: ["f32", "f16", "bf16", "q8_0"],
      },
      {
        name: "out",
        value: "PATH",
        text: "the folder to make, for gguf and gguf-lora the file (a new name in runs/exports)",
      },
      { name: "force", value: null, text: "replace what an earlier export wrote there" },
      { name: "name", value: "TEXT", text: "name of the model (the data set's)" },
      {
        name: "base_model",
        value: "NAME",
        text: "what a peft folder calls the model that was fine-tuned: its name on the hub, or a path",
      },
      { name: "license", value: "TEXT", text: "licence of the training data, for the model card" },
      { name: "shard_mb", value: "N", text: "most megabytes of one safetensors file (5000)" },
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
  const all = [...verbs, ...tools];
  const width = Math.max(...all.map((verb) => verb.name.length));
  const lines = all.map((verb) => `  ${verb.name.padEnd(width)}  ${verb.summary}`);
  return [
    `shoal ${version}: trains one model across browser tabs and Deno processes`,
    "",
    "usage: shoal <verb> [flags]",
    ...lines,
    "",
    "to begin with:",
    ...firstSteps.map(([line, text]) => `  ${line}\n      ${text}`),
    "",
    "shoal <verb> --help explains a verb; --version prints the version.",
    "Exit codes: 0 done, 1 failed, 2 wrong usage.",
  ].join("\n");
}

/** Where somebody who typed something wrong finds what is right. @param {string} verb */
export function seeHelp(verb) {
  return `"shoal ${verb} --help" lists what it takes`;
}

/** @param {Verb} verb */
export function verbHelp(verb) {
  /** @param {FlagHelp} flag */
  const left = (flag) => `--${flag.name}${flag.value === null ? "" : ` ${flag.value}`}`;
  const width = Math.max(...verb.flags.map((flag) => left(flag).length));
  const lines = verb.flags.map((flag) => `  ${left(flag).padEnd(width)}  ${flag.text}`);
  const config = verb.config
    ? [
      "",
      "Configuration keys (n_layer=4 max_iters=300 ..., with or without --), explained in docs/self-hosting.md:",
      ...wrapped(Object.keys(configKeys)),
    ]
    : [];
  const typed = (examples[verb.name] ?? []).map((line) => `  ${line}`);
  const shown = typed.length === 0 ? [] : ["", "examples:", ...typed];
  return [`usage: ${verb.usage}`, verb.summary, "", ...lines, ...config, ...shown].join("\n");
}

/** Words in lines that fit a terminal. @param {readonly string[]} words */
function wrapped(words) {
  /** @type {string[]} */
  const lines = [];
  for (const word of words) {
    const last = lines.at(-1);
    if (last === undefined || last.length + word.length >= LINE_CHARS) lines.push(`  ${word}`);
    else lines[lines.length - 1] = `${last} ${word}`;
  }
  return lines;
}
