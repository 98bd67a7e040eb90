// Lines of `--help` that can be typed as they stand: what somebody wants in their first hour. Plain JavaScript without packages, as
// usage.mjs; a test reads each with the verb's own parser.
// @ts-check

/** By verb. @type {Readonly<Record<string, readonly string[]>>} */
export const examples = {
  demo: ["shoal demo", "shoal demo --peers-deno 3 --tabs 0 max_iters=100"],
  run: [
    "shoal run --dataset my-text.txt max_iters=500 n_layer=4",
    "shoal run --init_from runs/mine --lora_rank=8 --max_iters=200",
  ],
  coordinator: [
    'shoal coordinator --name "Evening class" --host 0.0.0.0 --port 8080 max_iters=2000',
    "shoal coordinator --runs_dir runs --port 8080",
  ],
  resume: ["shoal resume runs/mine", "shoal resume runs/mine max_iters=4000"],
  peer: [
    'shoal peer --join "http://host:8080/#TOKEN"',
    'shoal peer --join "http://host:8080/#TOKEN" --duty 50',
  ],
  generate: [
    'shoal generate --checkpoint runs/mine --prompt "Call me" --count 300',
    'shoal generate --url "http://host:8080/admin#TOKEN" --prompt "Call me"',
  ],
  import: ["shoal import path/to/model --out runs/tuned --dataset my-text.txt block_size=256"],
  eval: [
    "shoal eval --checkpoint runs/mine",
    "shoal eval --checkpoint runs/mine --dataset other.txt --split whole",
  ],
  serve: ["shoal serve --checkpoint runs/mine --port 8081"],
  corpus: ["shoal corpus add book.txt --tokenizer gpt2", "shoal corpus list"],
  export: ["shoal export --checkpoint runs/mine --format gguf --dtype q8_0"],
};

/** Of the program: from nothing to a text, then with others. */
export const firstSteps = [
  ["shoal demo", "a minute's run with two peers and a tab on this computer"],
  ["shoal run --dataset my-text.txt max_iters=500", "a model of your own text, on this computer"],
  ['shoal generate --checkpoint runs/NAME --prompt "Call me"', "what it writes"],
  ["shoal coordinator --host 0.0.0.0", "a run that others join by a link, in their browsers"],
];
