// The one-process reference run: the whole model as one stage, no peers, no frames, the same exact core. What every
// distributed run with CPU kernels must equal bit for bit, whatever its stages, schedule and departures.
import { FIRST_EXPONENT } from "../../coordinator/core/loss_scale.ts";
import { addInto } from "../../peer/exact/accumulate.ts";
import { applyDelayed, basisOf, withDelay } from "../../peer/exact/delay.ts";
import { applyTotal, passOver, totalNormSq } from "../../peer/exact/optimizer.ts";
import { quantise } from "../../peer/exact/quantise.ts";
import { createState, type StageState } from "../../peer/exact/state.ts";
import { batchOffsets, type Corpus, sliceBatch } from "../../peer/model/data.ts";
import { initParams } from "../../peer/model/init.ts";
import { stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { learningRates } from "../../peer/model/schedule.ts";
import type { StageEngine } from "../../peer/engine/engine.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { isDelayed } from "../../peer/wire/view.ts";
import { createCpuBeside } from "./frozen_base.ts";

export interface Reference {
  state: StageState;
  /** Mean training loss of each step. */
  losses: number[];
}

export async function runOneProcess(
  config: RunConfig,
  spec: ModelSpec,
  corpus: Corpus,
  engine?: StageEngine,
): Promise<Reference> {
  const stage = wholeModel(spec);
  const state = createState(stageLayout(spec, stage), initParams(spec, stage, config.seed));
  const losses = await trainOn({ config, spec, corpus, state, until: config.max_iters, engine });
  return { state, losses };
}

interface Segment {
  config: RunConfig;
  spec: ModelSpec;
  corpus: Corpus;
  /** Trained in place, from its own step on. */
  state: StageState;
  /** Committed steps at which it ends. */
  until: number;
  engine?: StageEngine | undefined;
}

/**
 * Goes on with a state under one configuration; the mean training loss of each step. With the schedule 2bw each gradient is
 * computed with the weights one step before, which is all that the schedule means for one process.
 */
export async function trainOn({ config, spec, corpus, state, until, engine }: Segment): Promise<number[]> {
  const stage = wholeModel(spec);
  const codecs = { codecForward: config.codec_forward, codecBackward: config.codec_backward };
  const build = { spec, stage, batchSize: config.batch_size, slots: 1, ...codecs };
  const used = engine ?? await createCpuBeside(build);
  const rates = learningRates(config);
  const losses: number[] = [];
  let lossScale = FIRST_EXPONENT;
  withDelay(state, isDelayed(config));
  while (state.step < until) {
    await used.load(basisOf(state, state.step).params);
    used.scaleLoss?.(lossScale);
    const input = { config, spec, corpus, engine: used, state, lr: rates[state.step]! };
    const { loss, skipped } = await trainStep(input);
    if (skipped) lossScale--;
    losses.push(loss);
  }
  return losses;
}

interface StepInput {
  config: RunConfig;
  spec: ModelSpec;
  corpus: Corpus;
  engine: StageEngine;
  state: StageState;
  lr: number;
}

async function trainStep(
  { config, spec, corpus, engine, state, lr }: StepInput,
): Promise<{ loss: number; skipped: boolean }> {
  const microBatches = config.gradient_accumulation_steps;
  const sum = new Int32Array(state.layout.size);
  const basis = basisOf(state, state.step);
  const shape = { split: "train" as const, tokens: corpus.length, blockSize: spec.block_size };
  let [loss, nonFinite] = [0, 0];
  for (let m = 0; m < microBatches; m++) {
    const offsets = batchOffsets(config.seed, state.step, m, { ...shape, batchSize: config.batch_size });
    const output = await engine.forward(0, sliceBatch(corpus, offsets, spec.block_size));
    loss += output.loss ?? NaN;
    await engine.backward(0, null);
    const rule = { microBatches, reduce: config.reduce, seed: config.seed, microBatch: m };
    const quantised = quantise(await engine.weightGrad(0), basis, rule);
    addInto(sum, quantised.values);
    nonFinite += quantised.nonFinite;
  }
  const gradNormSq = totalNormSq(basis, sum, { microBatches, reduce: config.reduce });
  const skipped = config.dtype === "f16" && nonFinite > 0;
  if (skipped) passOver(state, sum, { microBatches, config });
  else if (isDelayed(config)) applyDelayed(state, sum, { microBatches, lr, gradNormSq, config });
  else applyTotal(state, sum, { microBatches, lr, gradNormSq, config });
  return { loss: loss / microBatches, skipped };
}
