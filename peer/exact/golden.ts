// A small training run of the exact core with synthetic gradients, whose state hashes are recorded in
// test/fixtures/exact/golden.json. Not a test: any engine (Deno, Node, a browser) runs it and compares.
// Changing these hashes means that old and new peers no longer agree; raise the protocol's version then.
import { initParams } from "../model/init.ts";
import { EMBEDDING_NAME, splitLayers, type StageLayout, stageLayout } from "../model/layout.ts";
import { nearNormal, randomStream } from "../model/random.ts";
import type { ModelSpec, ReduceId } from "../wire/run.ts";
import { addInto, createAccumulator } from "./accumulate.ts";
import { stateHash, totalHash } from "./hash.ts";
import { applyTotal, totalNormSq } from "./optimizer.ts";
import { powerOfTwo } from "./power.ts";
import { quantise } from "./quantise.ts";
import { createState, type StageState, tensorSlice } from "./state.ts";

const SPEC: ModelSpec = {
  ...{ vocab_size: 83, block_size: 8, n_layer: 3, n_head: 2, n_kv_head: 1, n_embd: 16, n_inner: 40 },
  ...{ tie_word_embeddings: true, rope_theta: 10000, norm_eps: 1e-5 },
};
const STEPS = 10;
const MICRO_BATCHES = 3;
const SEED = 20_240_229;
const CONFIG = { beta1: 0.9, beta2: 0.99, weight_decay: 0.1, grad_clip: 1 };

/** Hashes of both stages' totals and states after each of ten steps of a tied model, 40 strings. */
export function runGoldenScenario(reduce: ReduceId = "raw32"): string[] {
  const config = { ...CONFIG, reduce };
  const states = splitLayers(SPEC, [1, 2]).map((stage) =>
    createState(stageLayout(SPEC, stage), initParams(SPEC, stage, SEED))
  );
  const hashes: string[] = [];
  for (let step = 0; step < STEPS; step++) {
    const totals = states.map((state, index) => goldenTotal(state, index, reduce));
    addTied(states, totals);
    hashes.push(...totals.map(totalHash));
    const gradNormSq = states.reduce(
      (sum, state, index) => sum + stageNormSq(state, totals[index]!, { index, reduce }),
      0,
    );
    const lr = 3e-3 / (step + 1);
    states.forEach((state, index) =>
      applyTotal(state, totals[index]!, { microBatches: MICRO_BATCHES, lr, gradNormSq, config })
    );
    hashes.push(...states.map(stateHash));
  }
  return hashes;
}

function stageNormSq(
  state: StageState,
  total: Int32Array,
  { index, reduce }: { index: number; reduce: ReduceId },
): number {
  const skip = new Set(index === 0 ? [] : [EMBEDDING_NAME]);
  return totalNormSq(state, total, { microBatches: MICRO_BATCHES, reduce, skip });
}

function goldenTotal(state: StageState, stage: number, reduce: ReduceId): Int32Array {
  const sum = createAccumulator(state.layout.size).values;
  for (let m = 0; m < MICRO_BATCHES; m++) {
    const grad = goldenGradient(state.layout, [SEED, state.step, stage, m]);
    const rule = { microBatches: MICRO_BATCHES, reduce, seed: SEED, microBatch: m };
    addInto(sum, quantise(grad, state, rule).values);
  }
  return sum;
}

/** Magnitudes from 2^-20 to 2^3, zeros, saturation, and a NaN now and then. */
function goldenGradient(layout: StageLayout, key: number[]): Float32Array {
  const grad = new Float32Array(layout.size);
  const next = randomStream(key);
  for (const tensor of layout.tensors) {
    const scale = powerOfTwo(next() % 24 - 20);
    for (let i = 0; i < tensor.size; i++) grad[tensor.offset + i] = nearNormal(next) * scale;
    grad[tensor.offset + next() % tensor.size] = next() % 2 ? NaN : 0;
  }
  return grad;
}

/** Both ends of the tied embedding get the sum of their totals. */
function addTied(states: readonly StageState[], totals: readonly Int32Array[]): void {
  const ends = states.map((state, index) => {
    const { start, end } = tensorSlice(state.layout, EMBEDDING_NAME);
    return totals[index]!.subarray(start, end);
  });
  const [first, last] = [ends[0]!, ends[1]!];
  addInto(first, last);
  last.set(first);
}
