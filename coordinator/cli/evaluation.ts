// The loss of a model over a text, micro-batch by micro-batch, with any engine. Reads no files and prints nothing.
// What must stay true: with `iters` these are the micro-batches of a run's own evaluation; with `all` every target of the range
// counts exactly once.
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import {
  type Batch,
  batchOffsets,
  type Corpus,
  isHere,
  readBatch,
  sliceBatch,
  splitRange,
  type TokenSource,
} from "../../peer/model/data.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import { assert, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";

export type EvalSplit = "train" | "val" | "whole";

export interface EvalInput {
  spec: ModelSpec;
  /** Flat f32, layout of `wholeModel(spec)`. */
  params: Float32Array;
  config: Pick<RunConfig, "seed" | "batch_size">;
  /** All tokens, or where they are read. */
  corpus: Corpus | TokenSource;
  split: EvalSplit;
  /** Micro-batches drawn as a run draws them; "all": the whole range in windows, each beginning where the one before ends. */
  iters: number | "all";
  /** UTF-8 bytes of a target's token. */
  bytes(tokens: ArrayLike<number>): number;
  createEngine(build: StageBuild): Promise<StageEngine>;
  /** After each micro-batch. */
  onProgress?(done: number, of: number): void;
}

export interface EvalSums {
  /** Mean over the micro-batches drawn, as a run means it; with "all" the mean over the targets. In nats per token. */
  loss: number;
  /** Targets, and the UTF-8 bytes they stand for. */
  tokens: number;
  bytes: number;
  microBatches: number;
}

/** Micro-batches of one shape: `rows` windows of `length` tokens each, by where they begin. */
interface Portion {
  rows: number;
  length: number;
  offsets: Uint32Array[];
}

/** @throws {ShoalError} bad-corpus if the range has no target. */
export async function evaluate(input: EvalInput): Promise<EvalSums> {
  const { corpus, iters } = input;
  const portions = iters === "all" ? allWindows(input) : drawn(input, iters);
  const of = portions.reduce((sum, { offsets }) => sum + offsets.length, 0);
  let nats = 0, tokens = 0, bytes = 0, done = 0;
  for (const portion of portions) {
    const engine = await open(input, portion);
    try {
      for (const offsets of portion.offsets) {
        const batch = isHere(corpus)
          ? sliceBatch(corpus, offsets, portion.length)
          : await readBatch(corpus, offsets, portion.length);
        nats += await lossOf(engine, batch) * batch.targets.length;
        tokens += batch.targets.length;
        bytes += input.bytes(batch.targets);
        input.onProgress?.(++done, of);
      }
    } finally {
      engine.destroy();
    }
  }
  return { loss: nats / tokens, tokens, bytes, microBatches: of };
}

async function open(
  { spec, params, createEngine }: EvalInput,
  { rows, length }: Portion,
): Promise<StageEngine> {
  const engine = await createEngine({
    spec: { ...spec, block_size: length },
    ...{ stage: wholeModel(spec), batchSize: rows, slots: 1, codecForward: "raw32", codecBackward: "raw32" },
  });
  await engine.load(params);
  return engine;
}

async function lossOf(engine: StageEngine, batch: Batch): Promise<number> {
  const { loss } = await engine.forward(null, batch);
  assert(loss !== undefined, "the whole model has a loss");
  return loss;
}

function drawn({ corpus, split, spec, config }: EvalInput, iters: number): Portion[] {
  assert(split !== "whole", "micro-batches are drawn from one split");
  const { block_size: length } = spec, { batch_size: rows, seed } = config;
  const shape = { split, tokens: corpus.length, blockSize: length, batchSize: rows };
  // Every evaluation of a run reads the micro-batches of step 0 of the split.
  const offsets = Array.from({ length: iters }, (_, m) => batchOffsets(seed, 0, m, shape));
  return [{ rows, length, offsets }];
}

/** Whole micro-batches, then what is left of whole windows, then a shorter window with the rest. */
function allWindows({ corpus, split, spec, config }: EvalInput): Portion[] {
  const { begin, end } = split === "whole"
    ? { begin: 0, end: corpus.length }
    : splitRange(corpus.length, split);
  const targets = end - begin - 1;
  if (targets < 1) {
    throw new ShoalError("bad-corpus", `the text has ${end - begin} tokens here; at least 2 are needed`);
  }
  const { block_size: T } = spec, { batch_size: B } = config;
  const windows = Math.floor(targets / T);
  const starts = (from: number, count: number) =>
    Uint32Array.from({ length: count }, (_, i) => begin + (from + i) * T);
  const whole = Math.floor(windows / B), over = windows % B, rest = targets % T;
  const portions: Portion[] = [
    { rows: B, length: T, offsets: Array.from({ length: whole }, (_, i) => starts(i * B, B)) },
    { rows: over, length: T, offsets: over > 0 ? [starts(whole * B, over)] : [] },
    { rows: 1, length: rest, offsets: rest > 0 ? [starts(windows, 1)] : [] },
  ];
  return portions.filter(({ offsets }) => offsets.length > 0);
}
