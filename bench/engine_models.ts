// The models and products that bench/engine.ts measures, smaller on an adapter that computes on the CPU. Values only.
// A model that is cut down to fit says so in its note, which stands in the table.
import type { Batch } from "../peer/model/data.ts";
import { randomStream } from "../peer/model/random.ts";
import type { ModelSpec } from "../peer/wire/run.ts";
import type { MatmulLayout, MatmulShape } from "../peer/gpu/kernels/matmul.ts";
import { sum } from "./support.ts";
import type { Optimisation } from "./tfjs_gpt.ts";

export const MODEL_NAMES = ["nano", "base", "six", "gpt2"] as const;
export type ModelName = (typeof MODEL_NAMES)[number];

export interface BenchModel {
  name: string;
  spec: ModelSpec;
  batchSize: number;
  /** What a reader must know, such as layers left out; empty if nothing. */
  note: string;
}

const COMMON = { tie_word_embeddings: false, rope_theta: 10_000, norm_eps: 1e-5 };

/** Characters of the demo's corpus. */
const CHARACTERS = { ...COMMON, vocab_size: 83 };

/** GPT-2's vocabulary and width; the SwiGLU of 2,048 has as many weights as GPT-2's MLP of 3,072. */
const GPT2 = {
  ...COMMON,
  vocab_size: 50_257,
  tie_word_embeddings: true,
  n_embd: 768,
  n_head: 12,
  n_kv_head: 12,
};

/** One step of a model takes seconds at most on what Shoal runs it on; tfjs may take a minute. */
export function benchModel(name: ModelName, software: boolean): BenchModel {
  switch (name) {
    case "nano": {
      const shape = { block_size: 64, n_layer: 3, n_head: 3, n_kv_head: 3, n_embd: 48, n_inner: 128 };
      return { name, spec: { ...CHARACTERS, ...shape }, batchSize: software ? 4 : 32, note: "" };
    }
    case "base": {
      const shape = { block_size: 128, n_layer: 2, n_head: 4, n_kv_head: 4, n_embd: 128, n_inner: 344 };
      return { name, spec: { ...CHARACTERS, ...shape }, batchSize: software ? 4 : 16, note: "" };
    }
    case "six": {
      const shape = { n_layer: 6, n_head: 6, n_kv_head: 6, n_embd: 384, n_inner: 1024 };
      const spec = { ...CHARACTERS, ...shape, block_size: software ? 128 : 256 };
      return { name, spec, batchSize: software ? 1 : 16, note: "" };
    }
    case "gpt2": {
      const spec = { ...GPT2, n_inner: 2048, n_layer: software ? 1 : 12, block_size: software ? 64 : 256 };
      const note = software ? "1 layer of 12: a step of tfjs would take minutes" : "";
      return { name, spec, batchSize: software ? 1 : 4, note };
    }
  }
}

/** Small enough for ten steps on every side; it has grouped queries, and rows that fill no tile. */
export const CHECK_MODEL: BenchModel = {
  name: "check",
  spec: { ...CHARACTERS, block_size: 24, n_layer: 2, n_head: 4, n_kv_head: 2, n_embd: 32, n_inner: 88 },
  batchSize: 2,
  note: "",
};

export const OPTIMISATION: Optimisation = {
  learning_rate: 3e-3,
  beta1: 0.9,
  beta2: 0.99,
  weight_decay: 0.1,
  grad_clip: 1,
};
export const SEED = 1337;

/** A text to learn: each token follows from the one before it, except for a small random part. */
export function benchBatch({ spec, batchSize }: BenchModel, step: number): Batch {
  const next = randomStream([SEED, step]);
  const rows = batchSize * spec.block_size;
  const batch = { tokens: new Uint32Array(rows), targets: new Uint32Array(rows) };
  let token = 0;
  for (let row = 0; row < rows; row++) {
    if (row % spec.block_size === 0) token = next() % spec.vocab_size;
    batch.tokens[row] = token;
    token = (5 * token + next() % 3) % spec.vocab_size;
    batch.targets[row] = token;
  }
  return batch;
}

export interface Product extends MatmulShape {
  layout: MatmulLayout;
  /** Such as "qkv 128". */
  name: string;
}

/** The linears of a block by width: outputs and inputs of each; of wide blocks on software adapters the smaller ones. */
function linears(C: number, all: boolean): { name: string; outputs: number; inputs: number }[] {
  const attention = [
    { name: `qkv ${C}`, outputs: 3 * C, inputs: C },
    { name: `out ${C}`, outputs: C, inputs: C },
  ];
  if (!all) return attention;
  return [
    ...attention,
    { name: `up ${C}`, outputs: 4 * C, inputs: C },
    { name: `down ${C}`, outputs: C, inputs: 4 * C },
  ];
}

/** Above this width a software adapter takes half a minute for the products of one block of tfjs. */
const WIDE = 384;

/** Widths of small and medium transformers with as many rows as keep one product of tfjs below two seconds. */
function sizes(software: boolean, quick: boolean): { C: number; rows: number }[] {
  if (!software) return [{ C: 384, rows: 4096 }, { C: 768, rows: 4096 }, { C: 1600, rows: 4096 }];
  if (quick) return [{ C: 128, rows: 512 }];
  return [{ C: 64, rows: 512 }, { C: 128, rows: 512 }, { C: 384, rows: 256 }, { C: 768, rows: 128 }];
}

/** Forward (nt), input gradient (nn) and weight gradient (tn) of every linear: equal work, three layouts. */
export function products(software: boolean, quick: boolean): Product[] {
  return sizes(software, quick).flatMap(({ C, rows }) =>
    linears(C, !software || C <= WIDE).flatMap(({ name, outputs, inputs }): Product[] => [
      { name, layout: "nt", M: rows, N: outputs, K: inputs },
      { name, layout: "nn", M: rows, N: inputs, K: outputs },
      { name, layout: "tn", M: outputs, N: inputs, K: rows },
    ])
  );
}

export function flopsOfProduct({ M, N, K }: MatmulShape): number {
  return 2 * M * N * K;
}

/** Of one round, on one side. */
export function flopsOfProducts(all: readonly Product[]): number {
  return sum(all.map(flopsOfProduct));
}
