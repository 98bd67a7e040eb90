// Defaults and validation of a run's flat configuration.
// Not the model (layout.ts) and not a command line. Whatever passes here can be planned and trained: every impossible
// combination is refused with the value and the remedy.
import { ShoalError } from "../wire/errors.ts";
import { ARCHITECTURE_IDS, type IceServer, LORA_TARGETS, type RunConfig, SCHEDULE_IDS } from "../wire/run.ts";
import { positionCount } from "./data.ts";
import { nearest } from "./nearest.ts";

/** The demo's run: 1.2 million characters of Moby Dick, a model that trains in minutes without a real GPU. */
export const DEFAULT_CONFIG: Readonly<RunConfig> = {
  dataset: "moby-dick",
  tokenizer: "char",
  column: "text",
  vocab_multiple: 1,
  architecture: "llama",
  block_size: 64,
  n_layer: 4,
  n_head: 4,
  n_kv_head: 2,
  n_embd: 64,
  n_inner: 192,
  tie_word_embeddings: false,
  rope_theta: 10000,
  norm_eps: 1e-5,
  dropout: 0,
  batch_size: 8,
  gradient_accumulation_steps: 4,
  micro_batch: "fixed",
  learning_rate: 3e-3,
  min_lr: 3e-4,
  max_iters: 300,
  warmup_iters: 20,
  lr_decay_iters: 300,
  weight_decay: 0.1,
  beta1: 0.9,
  beta2: 0.99,
  grad_clip: 1,
  eval_interval: 50,
  eval_iters: 4,
  checkpoint_interval: 100,
  snapshot_interval: 0,
  sample_chars: 120,
  seed: 1337,
  n_stage: 0,
  min_peers: 1,
  shadows: true,
  parity: true,
  schedule: "dynamic",
  chimera_pairs: 1,
  codec_forward: "i8b64",
  codec_backward: "i8b64",
  codec_per_link: false,
  reduce: "int8",
  recompute: "auto",
  dtype: "f32",
  optimizer: "exact",
  lora_rank: 0,
  lora_alpha: 16,
  lora_targets: "q_proj,v_proj",
  lora_base: "",
  iceServers: [],
};

/** Largest head that the attention kernels hold in registers. */
export const HEAD_DIM_MAX = 128;

/** Width of GPT-2's inner layer over that of the model. */
const GPT2_WIDENING = 4;

type Check =
  | { kind: "integer" | "number"; min: number; max: number }
  | { kind: "boolean" | "name" | "ice" | "targets" | "hash" }
  | { kind: "choice"; choices: readonly string[] };

const CODECS = ["raw32", "f16s", "i8b64"] as const;

function integer(min: number, max: number): Check {
  return { kind: "integer", min, max };
}

function number(min: number, max: number): Check {
  return { kind: "number", min, max };
}

/** Bounds keep a typing error from asking for absurd memory or time; none is a promise that a run fits a peer. */
const CHECKS: Readonly<Record<keyof RunConfig, Check>> = {
  dataset: { kind: "name" },
  tokenizer: { kind: "name" },
  column: { kind: "name" },
  vocab_multiple: integer(1, 1024),
  architecture: { kind: "choice", choices: ARCHITECTURE_IDS },
  block_size: integer(1, 8192),
  n_layer: integer(1, 256),
  n_head: integer(1, 256),
  n_kv_head: integer(1, 256),
  n_embd: integer(2, 16_384),
  n_inner: integer(1, 65_536),
  tie_word_embeddings: { kind: "boolean" },
  rope_theta: number(1, 1e9),
  norm_eps: number(1e-12, 1e-1),
  dropout: number(0, 1),
  batch_size: integer(1, 1024),
  gradient_accumulation_steps: integer(1, 256),
  micro_batch: { kind: "choice", choices: ["fixed", "auto"] },
  learning_rate: number(0, 10),
  min_lr: number(0, 10),
  max_iters: integer(1, 10_000_000),
  warmup_iters: integer(0, 10_000_000),
  lr_decay_iters: integer(0, 10_000_000),
  weight_decay: number(0, 10),
  beta1: number(0, 0.99999),
  beta2: number(0, 0.99999),
  grad_clip: number(0, 1e6),
  eval_interval: integer(1, 10_000_000),
  eval_iters: integer(1, 10_000),
  checkpoint_interval: integer(1, 10_000_000),
  snapshot_interval: integer(0, 10_000),
  sample_chars: integer(0, 100_000),
  seed: integer(0, 0xffff_ffff),
  n_stage: integer(0, 256),
  min_peers: integer(1, 256),
  shadows: { kind: "boolean" },
  parity: { kind: "boolean" },
  schedule: { kind: "choice", choices: [...SCHEDULE_IDS, "auto"] },
  chimera_pairs: integer(1, 64),
  codec_forward: { kind: "choice", choices: CODECS },
  codec_backward: { kind: "choice", choices: CODECS },
  codec_per_link: { kind: "boolean" },
  reduce: { kind: "choice", choices: ["int8", "raw32"] },
  dtype: { kind: "choice", choices: ["f32", "f16"] },
  recompute: { kind: "choice", choices: ["auto", "none", "attention", "block"] },
  optimizer: { kind: "choice", choices: ["auto", "exact"] },
  lora_rank: integer(0, 1024),
  lora_alpha: number(0, 65_536),
  lora_targets: { kind: "targets" },
  lora_base: { kind: "hash" },
  iceServers: { kind: "ice" },
};

/** All keys that a configuration may have, in the order of the defaults. */
export const CONFIG_KEYS = Object.keys(DEFAULT_CONFIG) as readonly (keyof RunConfig)[];

/** ICE servers that a browser still gathers from in reasonable time. */
const ICE_SERVERS_MAX = 8;

/**
 * Defaults overlaid by `input`, checked key by key and then together. Where they are not given, lr_decay_iters is
 * max_iters, and warmup_iters and min_lr stay within max_iters and learning_rate; gpt2 has its own shape of a layer.
 * @throws {ShoalError} bad-config with the key, the value and the remedy; an unknown key names the nearest known one.
 */
export function readConfig(input: Record<string, unknown>): RunConfig {
  for (const [key, value] of Object.entries(input)) {
    if (!isConfigKey(key)) {
      throw bad(`unknown key ${show(key)}; the nearest known key is ${nearest(key, CONFIG_KEYS)}`);
    }
    const expected = expectation(CHECKS[key], value);
    if (expected !== null) throw bad(`${key} is ${show(value)}; use ${expected}`);
  }
  const config = structuredClone({ ...DEFAULT_CONFIG, ...followingDefaults(input), ...input }) as RunConfig;
  checkModel(config);
  checkDtype(config);
  checkLora(config);
  checkTraining(config);
  return config;
}

/** Where the input moves a bound, defaults that would cross it follow, so that one key is enough to shorten a run. */
function followingDefaults(input: Partial<RunConfig>): Partial<RunConfig> {
  const { max_iters, learning_rate, architecture, n_head, n_embd } = { ...DEFAULT_CONFIG, ...input };
  const gpt2 = { n_kv_head: n_head, n_inner: GPT2_WIDENING * n_embd, tie_word_embeddings: true };
  return {
    ...(architecture === "gpt2" ? gpt2 : {}),
    lr_decay_iters: max_iters,
    warmup_iters: Math.min(DEFAULT_CONFIG.warmup_iters, max_iters, input.lr_decay_iters ?? max_iters),
    min_lr: Math.min(DEFAULT_CONFIG.min_lr, learning_rate),
  };
}

/** A flag's text as the key's type, for command lines; leaves judging the value to readConfig. */
export function parseConfigValue(key: keyof RunConfig, text: string): unknown {
  const { kind } = CHECKS[key];
  if (["name", "choice", "targets", "hash"].includes(kind)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** @throws {ShoalError} bad-corpus if a split is too short for one sequence and its target. */
export function checkCorpus(config: RunConfig, tokenCount: number): void {
  for (const split of ["train", "val"] as const) {
    if (positionCount({ split, tokens: tokenCount, blockSize: config.block_size }) > 0) continue;
    throw new ShoalError(
      "bad-corpus",
      `a corpus of ${tokenCount} tokens is too short: its ${split} split holds no sequence of block_size ` +
        `${config.block_size}; use at least ${10 * (config.block_size + 1)} tokens or a smaller block_size`,
    );
  }
}

/** What the key may be, if it is one of few; null otherwise. For forms. */
export function keyChoices(key: keyof RunConfig): readonly string[] | null {
  const check = CHECKS[key];
  return check.kind === "choice" ? check.choices : null;
}

/** Why the key cannot have the value, with the remedy; null if it can, as far as one key tells. For forms. */
export function keyProblem(key: keyof RunConfig, value: unknown): string | null {
  const expected = expectation(CHECKS[key], value);
  return expected === null ? null : `${show(value)} cannot be used; use ${expected}`;
}

export function isConfigKey(key: string): key is keyof RunConfig {
  return Object.hasOwn(CHECKS, key);
}

/** What was expected instead of `value`, or null if it fits. */
function expectation(check: Check, value: unknown): string | null {
  switch (check.kind) {
    case "integer":
    case "number": {
      const fits = typeof value === "number" && value >= check.min && value <= check.max;
      if (fits && (check.kind === "number" || Number.isInteger(value))) return null;
      return `${check.kind === "integer" ? "an integer" : "a number"} from ${check.min} to ${check.max}`;
    }
    case "boolean":
      return typeof value === "boolean" ? null : "true or false";
    case "name":
      return typeof value === "string" && /^\P{C}{1,200}$/u.test(value)
        ? null
        : "1 to 200 printable characters";
    case "targets":
      return isTargets(value)
        ? null
        : `names of ${LORA_TARGETS.join(", ")}, each once, with commas between them`;
    case "hash":
      return typeof value === "string" && /^([0-9a-f]{64})?$/.test(value) ? null : "a SHA-256, or nothing";
    case "choice":
      return check.choices.includes(value as string) ? null : `one of ${check.choices.join(", ")}`;
    case "ice":
      return isIceServers(value) ? null : `at most ${ICE_SERVERS_MAX} objects {urls, username?, credential?}`;
  }
}

function isTargets(value: unknown): boolean {
  if (typeof value !== "string") return false;
  const names = value.split(",");
  return new Set(names).size === names.length &&
    names.every((name) => (LORA_TARGETS as readonly string[]).includes(name));
}

function isIceServers(value: unknown): value is IceServer[] {
  return Array.isArray(value) && value.length <= ICE_SERVERS_MAX && value.every(isIceServer);
}

function isIceServer(value: unknown): value is IceServer {
  if (typeof value !== "object" || value === null) return false;
  const { urls, username, credential, ...rest } = value as Record<string, unknown>;
  const list = Array.isArray(urls) ? urls : [urls];
  return Object.keys(rest).length === 0 && list.length >= 1 && list.every(isIceUrl) &&
    isOptionalText(username) && isOptionalText(credential);
}

function isIceUrl(url: unknown): boolean {
  return typeof url === "string" && url.length <= 1000 && /^(stuns?|turns?):\S+$/.test(url);
}

function isOptionalText(value: unknown): boolean {
  return value === undefined || (typeof value === "string" && value.length <= 1000);
}

function checkModel(config: RunConfig): void {
  const { architecture, n_embd, n_head, n_kv_head, n_layer, n_stage, dropout } = config;
  if (n_embd % n_head !== 0) {
    throw bad(`n_embd ${n_embd} is not a multiple of n_head ${n_head}; change one of them`);
  }
  if (n_head % n_kv_head !== 0) {
    throw bad(`n_head ${n_head} is not a multiple of n_kv_head ${n_kv_head}; change n_kv_head`);
  }
  if (architecture === "gpt2" && n_kv_head !== n_head) {
    throw bad(
      `n_kv_head is ${n_kv_head}; GPT-2's heads do not share keys and values, use n_head ${n_head} or leave it out`,
    );
  }
  const dim = n_embd / n_head;
  if (dim % 2 !== 0 || dim > HEAD_DIM_MAX) {
    throw bad(`n_embd / n_head is ${dim}; heads need an even size of at most ${HEAD_DIM_MAX}`);
  }
  if (n_stage > n_layer) {
    throw bad(
      `n_stage ${n_stage} exceeds n_layer ${n_layer}; a stage needs at least one layer, use at most ${n_layer}`,
    );
  }
  if (dropout !== 0) throw bad(`dropout is ${dropout}; the kernels have no dropout yet, use 0`);
}

/** Halves are stored in fours, so every row that is kept must divide by four, and a head into two times four. */
function checkDtype({ dtype, schedule, n_embd, n_head, n_inner, batch_size, block_size }: RunConfig): void {
  if (dtype !== "f16") return;
  // Which scale a step has follows from the step before it, which is not committed yet when the next one begins.
  if (schedule === "2bw") throw bad("schedule 2bw has no loss scale; use dtype f32, or another schedule");
  const remedy = "change it, or use dtype f32";
  const dim = n_embd / n_head;
  if (dim % 8 !== 0) throw bad(`n_embd / n_head is ${dim}; with dtype f16 it divides by 8: ${remedy}`);
  if (n_inner % 4 !== 0) throw bad(`n_inner is ${n_inner}; with dtype f16 it divides by 4: ${remedy}`);
  if (batch_size * block_size % 4 === 0) return;
  throw bad(
    `batch_size x block_size is ${batch_size * block_size}; with dtype f16 it divides by 4: ${remedy}`,
  );
}

/** Only matrices that the architecture has; a rank beyond a matrix' own would be a dearer way to train it whole. */
function checkLora(config: RunConfig): void {
  const { architecture, lora_rank: rank, lora_targets, n_embd, n_head, n_kv_head, n_inner } = config;
  if (rank === 0) return;
  const targets = lora_targets.split(",");
  if (architecture === "gpt2" && targets.includes("gate_proj")) {
    throw bad("lora_targets names gate_proj, which a GPT-2 does not have; leave it out");
  }
  const widthOf = (target: string) => {
    if (/^(gate|up|down)_/.test(target)) return n_inner;
    return /^[kv]_/.test(target) ? n_kv_head * (n_embd / n_head) : n_embd;
  };
  const most = Math.min(n_embd, ...targets.map(widthOf));
  if (rank <= most) return;
  throw bad(`lora_rank ${rank} exceeds ${most}, the width of the narrowest matrix of lora_targets; use less`);
}

function checkTraining(config: RunConfig): void {
  const { warmup_iters, max_iters, lr_decay_iters, min_lr, learning_rate } = config;
  if (warmup_iters > max_iters) {
    throw bad(`warmup_iters ${warmup_iters} exceeds max_iters ${max_iters}; use at most ${max_iters}`);
  }
  if (lr_decay_iters < warmup_iters) {
    throw bad(`lr_decay_iters ${lr_decay_iters} lies before warmup_iters ${warmup_iters} ends; raise it`);
  }
  if (min_lr > learning_rate) {
    throw bad(`min_lr ${min_lr} exceeds learning_rate ${learning_rate}; use at most ${learning_rate}`);
  }
}

function show(value: unknown): string {
  return (JSON.stringify(value) ?? String(value)).slice(0, 100);
}

function bad(message: string): ShoalError {
  return new ShoalError("bad-config", `configuration: ${message}`);
}
