// What the micro-batches of a peer's stages read of the corpus: at hand, or asked for where it lies, with what comes next told beforehand.
// Nothing here decides what is computed. What must stay true: where tokens lie changes no micro-batch.
import { batchOffsets, isHere, readBatch, sliceBatch, windowsOf } from "./model/data.ts";
import type { Batch, Corpus, Split, TokenSource } from "./model/data.ts";
import type { Pass } from "./wire/control.ts";
import type { ModelSpec, RunConfig, StagePlan } from "./wire/run.ts";

export interface BatchSources {
  config: RunConfig;
  spec: ModelSpec;
  corpus: Corpus | TokenSource;
}

interface Wanted {
  pass: Pass;
  step: number;
  microBatch: number;
}

/** A corpus at hand answers at once, so that a peer in a simulation does the same whatever else waits. */
export function batchOf(sources: BatchSources, wanted: Wanted): Batch | Promise<Batch> {
  const { corpus, spec } = sources, offsets = offsetsOf(sources, wanted);
  if (isHere(corpus)) return sliceBatch(corpus, offsets, spec.block_size);
  const batch = readBatch(corpus, offsets, spec.block_size);
  // The same peer mostly computes the same numbers in the next step.
  if (wanted.pass === "train") expect(sources, [{ ...wanted, step: wanted.step + 1 }]);
  return batch;
}

/** A round begins for a stage: what the peer computes of it will be read in a moment. */
export function expectRound(
  sources: BatchSources,
  { embed, head, replicas }: StagePlan,
  round: { self: string; pass: Pass; step: number },
): void {
  if (isHere(sources.corpus) || !(embed || head)) return;
  const { self, ...which } = round;
  const own = replicas.filter(({ peer }) => peer === self).flatMap(({ microBatches }) => microBatches);
  expect(sources, own.map((microBatch) => ({ ...which, microBatch })));
}

function expect(sources: BatchSources, wanted: readonly Wanted[]): void {
  const { corpus, config, spec } = sources;
  if (isHere(corpus)) return;
  const there = wanted.filter(({ pass, step }) => pass === "eval" || step < config.max_iters);
  corpus.expect(there.flatMap((it) => windowsOf(offsetsOf(sources, it), spec.block_size)));
}

function offsetsOf({ config, spec, corpus }: BatchSources, { pass, step, microBatch }: Wanted): Uint32Array {
  const split: Split = pass === "train" ? "train" : "val";
  const shape = { split, tokens: corpus.length, blockSize: spec.block_size, batchSize: config.batch_size };
  // Every evaluation reads the same micro-batches, so that its losses compare.
  return batchOffsets(config.seed, pass === "train" ? step : 0, microBatch, shape);
}
