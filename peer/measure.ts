// Admission: how long one block takes on this peer, measured with the run's own shapes before it gets any work.
import { type CreateEngine, stageBase, withLora } from "./engine/lora.ts";
import { initParams } from "./model/init.ts";
import { baseSpec } from "./model/layout.ts";
import { encodeTensor } from "./codec/codec.ts";
import type { OpMs } from "./wire/measures.ts";
import type { ModelSpec, RunConfig } from "./wire/run.ts";

/** The first pass compiles; the quickest of the others is the block's time. */
const PASSES = 3;
/** A slow peer is measured once only: whoever joins wants to begin. */
const PATIENCE_MS = 1_000;
/** The second size is so many times smaller or larger: near sizes would tell noise. */
const SECOND_SIZE = 4;

/** What a block's time depends on, beside the model's shapes. */
export type MeasureConfig =
  & Pick<RunConfig, "batch_size" | "codec_forward" | "codec_backward" | "seed">
  & Partial<Pick<RunConfig, "dtype">>;

/** Milliseconds of one layer for one micro-batch. */
export interface BlockTimes {
  blockMs: number;
  /** How they divide, in the quickest pass. */
  opMs: OpMs;
}

/** What a peer tells of itself; the last two where the planner decides the size of a micro-batch. */
export interface PeerMeasures extends BlockTimes {
  gpuOptimizer: boolean;
  /** What of `blockMs` does not grow with the sequences of a micro-batch. */
  fixedMs?: number;
  /** Sequences that it was measured with. */
  sequences?: number;
}

/** Milliseconds of F, B and W of one layer for one micro-batch. */
export async function measureBlock(
  createEngine: CreateEngine,
  config: MeasureConfig,
  spec: ModelSpec,
): Promise<BlockTimes> {
  const stage = { index: 1, firstLayer: 0, endLayer: 1, embed: false, head: false };
  const codecs = { codecForward: config.codec_forward, codecBackward: config.codec_backward };
  const { batch_size: batchSize, dtype = "f32" } = config;
  const engine = await createEngine({ spec, stage, batchSize, slots: 1, dtype, ...codecs });
  try {
    await engine.load(initParams(spec, stage, config.seed));
    const rows = config.batch_size * spec.block_size;
    const values = Float32Array.from({ length: rows * spec.n_embd }, (_, i) => ((i * 37) % 101) / 50 - 1);
    const activation = encodeTensor(config.codec_forward, values, rows, spec.n_embd);
    const gradient = encodeTensor(config.codec_backward, values, rows, spec.n_embd);
    const once = async (): Promise<BlockTimes> => {
      const forward = await timed(() => engine.forward(0, { activation }));
      const backward = await timed(() => engine.backward(0, gradient));
      const weightGrad = await timed(() => engine.weightGrad(0));
      return { blockMs: forward + backward + weightGrad, opMs: { forward, backward, weightGrad } };
    };
    await once();
    let best = await once();
    for (let pass = 2; pass < PASSES && best.blockMs <= PATIENCE_MS; pass++) {
      const next = await once();
      if (next.blockMs < best.blockMs) best = next;
    }
    return best;
  } finally {
    engine.destroy();
  }
}

async function timed(operation: () => Promise<unknown>): Promise<number> {
  const begun = performance.now();
  await operation();
  return performance.now() - begun;
}

/** What a peer tells of itself when it joins. */
export async function measurePeer(
  createEngine: CreateEngine,
  config: RunConfig,
  spec: ModelSpec,
): Promise<PeerMeasures> {
  // What adapters stand beside is fetched once it is known which layers are this peer's; any weights take as long.
  const create = withLora(
    createEngine,
    (build) => stageBase(build, initParams(baseSpec(spec), build.stage, config.seed)),
  );
  let gpuOptimizer = false;
  const optimizer = config.optimizer === "auto" ? "gpu" as const : "exact" as const;
  const block = await measureBlock(
    async (build) => {
      const engine = await create({ ...build, optimizer });
      gpuOptimizer = engine.optimizer !== undefined;
      return engine;
    },
    config,
    spec,
  );
  if (config.micro_batch !== "auto") return { ...block, gpuOptimizer };
  const { batch_size: sequences } = config, second = secondSize(config);
  const other = await measureBlock(create, { ...config, batch_size: second }, spec);
  const fixedMs = fixedPart({ sequences, ms: block.blockMs }, { sequences: second, ms: other.blockMs });
  return { ...block, gpuOptimizer, fixedMs, sequences };
}

/** A quarter of the run's size where that can be, else four times as much. Halves are stored in fours. */
function secondSize({ batch_size, block_size, dtype }: RunConfig): number {
  const smaller = batch_size / SECOND_SIZE;
  const fits = Number.isInteger(smaller) && (dtype !== "f16" || smaller * block_size % 4 === 0);
  return fits ? smaller : batch_size * SECOND_SIZE;
}

interface Timed {
  sequences: number;
  ms: number;
}

/** Where a line through both meets no sequences at all, within what the first one took: clocks are coarse and machines busy. */
export function fixedPart(first: Timed, second: Timed): number {
  const perSequence = (first.ms - second.ms) / (first.sequences - second.sequences);
  return Math.min(first.ms, Math.max(0, first.ms - first.sequences * perSequence));
}
