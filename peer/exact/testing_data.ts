// Arbitrary small stages, gradients and states for the exact core's property tests.
// Not used outside tests.
import fc from "fast-check";
import { type StageLayout, stageLayout } from "../model/layout.ts";
import { nearNormal, randomStream } from "../model/random.ts";
import type { ModelSpec } from "../wire/run.ts";
import { createState, type StageState } from "./state.ts";

export const SPEC: ModelSpec = {
  ...{ vocab_size: 70, block_size: 8, n_layer: 1, n_head: 2, n_kv_head: 1, n_embd: 20, n_inner: 30 },
  ...{ tie_word_embeddings: false, rope_theta: 10000, norm_eps: 1e-5 },
};

export const WHOLE = { index: 0, firstLayer: 0, endLayer: 1, embed: true, head: true };

/** A state with weights about 1 and the exponents given for all blocks. */
export function testState(exponent = 0): StageState {
  const layout = stageLayout(SPEC, WHOLE);
  const state = createState(layout, testGradient(layout, { seed: 99, scale: 1 }));
  state.exponents.fill(exponent);
  return state;
}

/** Near-normal values in all tensors, 0 in the padding. */
export function testGradient(layout: StageLayout, options: { seed: number; scale: number }): Float32Array {
  const grad = new Float32Array(layout.size);
  const next = randomStream([options.seed]);
  for (const { offset, size } of layout.tensors) {
    for (let i = offset; i < offset + size; i++) grad[i] = nearNormal(next) * options.scale;
  }
  return grad;
}

/** Indices that belong to no tensor. */
export function paddingOf(layout: StageLayout): number[] {
  const used = new Uint8Array(layout.size);
  for (const { offset, size } of layout.tensors) used.fill(1, offset, offset + size);
  return [...used.keys()].filter((i) => used[i] === 0);
}

/** Random order of 0..n-1. */
export function permutationOf(n: number): fc.Arbitrary<number[]> {
  const all = [...Array(n).keys()];
  return fc.shuffledSubarray(all, { minLength: n, maxLength: n });
}
