// The README.md of an exported folder: Hugging Face's model card, with its YAML head. Pure.
// Says only what is known; a data set whose licence nobody named is called unknown, not free.
import type { ModelFacts } from "./facts.ts";

const ARCHITECTURES = { llama: "Llama's", gpt2: "GPT-2's" } as const;

export type FolderFormat = "hf" | "onnx" | "peft";

const LIBRARIES: Readonly<Record<FolderFormat, string>> = {
  ...{ hf: "transformers", onnx: "transformers.js", peft: "peft" },
};

/** @param base Of adapters: what their base is called, if it was said. */
export function modelCard(
  name: string,
  facts: ModelFacts,
  format: FolderFormat,
  base: string | null = null,
): string {
  const parts = [head(facts, format, base), `# ${oneLine(name)}`, summary(facts), table(facts)];
  return [...parts, howToLoad(format, facts, base)].join("\n\n") + "\n";
}

/** One sentence, for formats with a field for it. */
export function describeModel(facts: ModelFacts): string {
  const kind = facts.subWords ? "language model" : "character-level language model";
  const how = facts.adapters === undefined
    ? "trained"
    : `fine-tuned by adapters (${loraWords(facts.adapters)})`;
  return `A ${kind} of ${facts.params} parameters, ${how} with Shoal on ` +
    `${facts.dataset} for ${facts.step} steps`;
}

function loraWords({ rank, alpha, targets }: NonNullable<ModelFacts["adapters"]>): string {
  return `LoRA of rank ${rank}, alpha ${alpha}, on ${targets.join(", ")}`;
}

function head(facts: ModelFacts, format: FolderFormat, base: string | null): string {
  return [
    "---",
    `library_name: ${LIBRARIES[format]}`,
    // Only what is a name on the hub; a path on somebody's disk leads nowhere.
    ...(base !== null && /^\w[\w.-]*(\/[\w.-]+)?$/.test(base) ? [`base_model: ${base}`] : []),
    "pipeline_tag: text-generation",
    // "other" is the hub's word for what has no identifier there; the table below says it in full.
    `license: ${licenseTag(facts.license)}`,
    "tags:",
    `- ${facts.config.architecture}`,
    ...(facts.subWords ? [] : ["- character-level"]),
    ...(format === "peft" ? ["- lora"] : []),
    "- shoal",
    "---",
  ].join("\n");
}

/** SPDX-like words pass, since the hub takes them in lower case; prose does not fit a YAML scalar. */
function licenseTag(license: string | null): string {
  if (license === null) return "unknown";
  return /^[A-Za-z0-9][A-Za-z0-9.+-]*$/.test(license) ? license.toLowerCase() : "other";
}

function summary(facts: ModelFacts): string {
  return `${describeModel(facts)}. It has ${ARCHITECTURES[facts.config.architecture]} architecture${
    facts.subWords ? "" : " and one token per character"
  }. It continues text in the manner ` +
    "of its training data; it knows nothing else, and was not made to answer, to be right, or to be safe.";
}

function table(facts: ModelFacts): string {
  const { config, peers } = facts;
  const rows: [string, string][] = [
    ["Data", oneLine(facts.dataset)],
    ["Licence of the data", oneLine(facts.license ?? "unknown; ask whoever ran the training")],
    ["Steps", String(facts.step)],
    ["Tokens seen", `${facts.tokens} (repeats counted)`],
    ["Parameters", String(facts.params)],
    ...(facts.adapters === undefined ? [] : [
      ["Parameters trained", `${facts.adapters.params} (${loraWords(facts.adapters)})`] as [string, string],
    ]),
    ...(facts.trainLoss === null
      ? []
      : [["Training loss of the last step", nats(facts.trainLoss, facts)] as [string, string]]),
    ...(facts.valLoss === null ? [] : [["Validation loss", nats(facts.valLoss, facts)] as [string, string]]),
    ...(peers === null
      ? []
      : [["Peers", `${peers.joined} took part, at most ${peers.most} at once`] as [string, string]]),
    ["Context", `${config.block_size} tokens`],
    [
      "Layers, width, heads",
      `${config.n_layer}, ${config.n_embd}, ${config.n_head} (${config.n_kv_head} for keys)`,
    ],
    ["Seed", String(config.seed)],
  ];
  return ["| | |", "|---|---|", ...rows.map(([key, value]) => `| ${key} | ${value} |`)].join("\n");
}

function nats(loss: number, { subWords }: ModelFacts): string {
  return `${loss.toFixed(4)} nats per ${subWords ? "token" : "character"}`;
}

function howToLoad(format: FolderFormat, facts: ModelFacts, base: string | null): string {
  const code = format === "peft"
    ? peft(facts, base)
    : format === "hf"
    ? transformers(facts)
    : transformersJs(facts);
  const note = facts.subWords
    ? ""
    : "\n\nA character that did not occur in the training data has no token; the tokenizer leaves it out.";
  return `## How to load it\n\n${code}${note}`;
}

function transformers({ config }: ModelFacts): string {
  return `\`\`\`python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
ids = tokenizer("The ", return_tensors="pt", return_token_type_ids=False)
print(tokenizer.decode(model.generate(**ids, max_new_tokens=${newTokens(config.block_size)})[0]))
\`\`\``;
}

function peft({ config }: ModelFacts, base: string | null): string {
  const name = JSON.stringify(base ?? "path/to/the/model/that/was/fine-tuned");
  return `\`\`\`python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
base = AutoModelForCausalLM.from_pretrained(${name})
model = PeftModel.from_pretrained(base, "path/to/this/folder")
ids = tokenizer("The ", return_tensors="pt", return_token_type_ids=False)
print(tokenizer.decode(model.generate(**ids, max_new_tokens=${newTokens(config.block_size)})[0]))
\`\`\``;
}

function transformersJs({ config }: ModelFacts): string {
  return `\`\`\`js
import { env, pipeline } from "@huggingface/transformers";

env.allowRemoteModels = false;
env.localModelPath = "path/to/the/folder/above/this/one";
const write = await pipeline("text-generation", "name-of-this-folder");
console.log(await write("The ", { max_new_tokens: ${newTokens(config.block_size)} }));
\`\`\``;
}

/** What surely fits the context after a short prompt. */
function newTokens(blockSize: number): number {
  return Math.max(1, Math.floor(blockSize / 2));
}

/** A name from outside may not open a heading, a table cell or a link of its own. */
function oneLine(text: string): string {
  return text.replace(/[\r\n]+/g, " ").replace(/[\\|<>[\]`*_#]/g, "\\$&").slice(0, 200);
}
