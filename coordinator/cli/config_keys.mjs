// The configuration keys and what those may be that are one of few, for a shell's completion. Plain JavaScript without imports, as
// usage.mjs: peer/model/config.ts judges, and a test compares the two.
// @ts-check

/** @type {readonly string[]} */
const truth = ["true", "false"];
const codecs = ["raw32", "f16s", "i8b64"];

/** Values of a key; an empty list: it is typed freely. @type {Readonly<Record<string, readonly string[]>>} */
export const configKeys = {
  dataset: ["moby-dick"],
  tokenizer: ["char", "gpt2"],
  column: [],
  vocab_multiple: [],
  architecture: ["llama", "gpt2"],
  block_size: [],
  n_layer: [],
  n_head: [],
  n_kv_head: [],
  n_embd: [],
  n_inner: [],
  tie_word_embeddings: truth,
  rope_theta: [],
  norm_eps: [],
  dropout: [],
  batch_size: [],
  gradient_accumulation_steps: [],
  learning_rate: [],
  min_lr: [],
  max_iters: [],
  warmup_iters: [],
  lr_decay_iters: [],
  weight_decay: [],
  beta1: [],
  beta2: [],
  grad_clip: [],
  eval_interval: [],
  eval_iters: [],
  checkpoint_interval: [],
  snapshot_interval: [],
  sample_chars: [],
  seed: [],
  n_stage: [],
  min_peers: [],
  shadows: truth,
  parity: truth,
  schedule: [
    "dynamic",
    "gpipe",
    "1f1b",
    "interleaved",
    "breadth-first",
    "chimera",
    "chimera-doubling",
    "chimera-halving",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "dualpipe",
    "2bw",
  ],
  chimera_pairs: [],
  codec_forward: codecs,
  codec_backward: codecs,
  codec_per_link: truth,
  reduce: ["int8", "raw32"],
  recompute: ["auto", "none", "attention", "block"],
  dtype: ["f32", "f16"],
  optimizer: ["auto", "exact"],
  lora_rank: [],
  lora_alpha: [],
  lora_targets: [],
  lora_base: [],
  iceServers: [],
};

/** Keys that may name a file instead. */
export const pathKeys = ["dataset", "tokenizer"];
