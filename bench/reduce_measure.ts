// Trains a small character model in one process with either grid of weight gradients, and times what turns gradients
// into bytes. It prints nothing. One process suffices: a run across peers has the same integers, whoever computed what.
import { packInts, unpackInts } from "../peer/codec/ints.ts";
import type { StageEngine } from "../peer/engine/engine.ts";
import { addInto } from "../peer/exact/accumulate.ts";
import { applyTotal, totalNormSq } from "../peer/exact/optimizer.ts";
import { quantise } from "../peer/exact/quantise.ts";
import { createState, type StageState } from "../peer/exact/state.ts";
import { batchOffsets, type Corpus, sliceBatch } from "../peer/model/data.ts";
import { initParams } from "../peer/model/init.ts";
import { paramCount, type StageLayout, stageLayout, wholeModel } from "../peer/model/layout.ts";
import { nearNormal, randomStream } from "../peer/model/random.ts";
import { learningRates } from "../peer/model/schedule.ts";
import type { ModelSpec, ReduceId, RunConfig } from "../peer/wire/run.ts";
import { assert } from "../peer/wire/errors.ts";

/** Steps whose mean training loss is reported: one step's loss moves more than the grids differ. */
const LOSS_STEPS = 20;
/** The least of this many rounds is reported: the others were disturbed by something else. */
const ROUNDS = 40;
/** More evaluation micro-batches than a run would take, so that the validation loss itself is not the noise. */
const EVAL_MICRO_BATCHES = 40;

export interface Training {
  reduce: ReduceId;
  seed: number;
  /** Mean training loss of each step. */
  losses: number[];
  trainLoss: number;
  valLoss: number;
  /** Over all steps but the first, whose grid is the fine one in both modes. */
  bytesPerParam: { part: number; total: number };
  /** Bytes per parameter of the first step's total. */
  firstTotal: number;
  saturated: number;
}

export interface Setup {
  config: RunConfig;
  spec: ModelSpec;
  corpus: Corpus;
  engine: StageEngine;
}

/** Bytes of `values` as they travel in this mode. */
function wireBytes(values: Int32Array, reduce: ReduceId): number {
  return reduce === "int8" ? packInts(values).length : values.byteLength;
}

/** The whole run of `setup.config`; `onStep` is told of every step. */
export async function train(setup: Setup, onStep: (step: number, loss: number) => void): Promise<Training> {
  const { config, spec, engine } = setup;
  const { reduce, max_iters } = config;
  const stage = wholeModel(spec);
  const state = createState(stageLayout(spec, stage), initParams(spec, stage, config.seed));
  const rates = learningRates(config);
  const params = paramCount(spec);
  const result = { reduce, losses: [] as number[], saturated: 0, part: 0, total: 0, first: 0 };
  for (let step = 0; step < max_iters; step++) {
    await engine.load(state.params);
    const { sums, loss, saturated } = await gradients(setup, state);
    const total = sums[0]!.slice();
    sums.slice(1).forEach((sum) => addInto(total, sum));
    result.losses.push(loss);
    result.saturated += saturated;
    const bytes = wireBytes(total, reduce);
    if (step === 0) result.first = bytes / params;
    else {
      result.total += bytes / params / (max_iters - 1);
      const parts = sums.reduce((sum, part) => sum + wireBytes(part, reduce), 0) / sums.length;
      result.part += parts / params / (max_iters - 1);
    }
    const microBatches = config.gradient_accumulation_steps;
    const gradNormSq = totalNormSq(state, total, { microBatches, reduce });
    applyTotal(state, total, { microBatches, lr: rates[step]!, gradNormSq, config });
    onStep(step, loss);
  }
  await engine.load(state.params);
  return {
    ...{
      reduce,
      seed: config.seed,
      losses: result.losses,
      saturated: result.saturated,
      firstTotal: result.first,
    },
    bytesPerParam: { part: result.part, total: result.total },
    trainLoss: mean(result.losses.slice(-LOSS_STEPS)),
    valLoss: await validate(setup),
  };
}

/** Sums of two replicas that share the step's micro-batches, and the step's mean loss. */
async function gradients(setup: Setup, state: StageState) {
  const { config: { gradient_accumulation_steps: microBatches, reduce, seed }, engine } = setup;
  const sums = Array.from({ length: Math.min(2, microBatches) }, () => new Int32Array(state.layout.size));
  let [loss, saturated] = [0, 0];
  for (let m = 0; m < microBatches; m++) {
    const output = await engine.forward(0, batch(setup, { split: "train", step: state.step, m }));
    await engine.backward(0, null);
    const rule = { microBatches, reduce, seed, microBatch: m };
    const result = quantise(await engine.weightGrad(0), state, rule);
    addInto(sums[m % sums.length]!, result.values);
    loss += (output.loss ?? NaN) / microBatches;
    saturated += result.saturated;
  }
  return { sums, loss, saturated };
}

interface BatchOf {
  split: "train" | "val";
  step: number;
  m: number;
}

function batch({ config, spec, corpus }: Setup, { split, step, m }: BatchOf) {
  const shape = { split, tokens: corpus.length, blockSize: spec.block_size, batchSize: config.batch_size };
  return sliceBatch(corpus, batchOffsets(config.seed, step, m, shape), spec.block_size);
}

async function validate(setup: Setup): Promise<number> {
  const losses: number[] = [];
  for (let m = 0; m < EVAL_MICRO_BATCHES; m++) {
    const { loss } = await setup.engine.forward(null, batch(setup, { split: "val", step: 0, m }));
    losses.push(loss ?? NaN);
  }
  return mean(losses);
}

export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Nanoseconds per value, the least of several rounds over a synthetic gradient of the model's shape. */
export interface Timing {
  reduce: ReduceId;
  quantise: number;
  encode: number;
  decode: number;
}

export function timeReduce(spec: ModelSpec, reduce: ReduceId): Timing {
  const layout = stageLayout(spec, wholeModel(spec));
  const state = createState(layout, new Float32Array(layout.size));
  state.step = 1;
  const gradient = syntheticGradient(layout);
  const out = new Int32Array(layout.size);
  const timing: Timing = { reduce, quantise: Infinity, encode: Infinity, decode: Infinity };
  for (let round = 0; round < ROUNDS; round++) {
    const rule = { microBatches: 4, reduce, seed: 1, microBatch: round, out };
    timing.quantise = Math.min(timing.quantise, timed(layout.size, () => quantise(gradient, state, rule)));
    let bytes = new Uint8Array();
    timing.encode = Math.min(timing.encode, timed(layout.size, () => bytes = encoded(out, reduce)));
    timing.decode = Math.min(timing.decode, timed(layout.size, () => decoded(bytes, layout.size, reduce)));
  }
  return timing;
}

function encoded(values: Int32Array, reduce: ReduceId): Uint8Array<ArrayBuffer> {
  return reduce === "int8" ? packInts(values) : new Uint8Array(values.slice().buffer);
}

function decoded(bytes: Uint8Array, count: number, reduce: ReduceId): Int32Array {
  if (reduce === "raw32") return new Int32Array(bytes.slice().buffer);
  const values = unpackInts(bytes, count);
  assert(values.ok, "what packInts wrote");
  return values.value;
}

function timed(values: number, work: () => void): number {
  const start = performance.now();
  work();
  return (performance.now() - start) * 1e6 / values;
}

/** Near-normal values an eighth of what exponent 0 expects, like a gradient as large as the one before. */
function syntheticGradient(layout: StageLayout): Float32Array {
  const next = randomStream([7]);
  return Float32Array.from({ length: layout.size }, () => nearNormal(next) / 32);
}
