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
): Promise<BlockTimes & { gpuOptimizer: boolean }> {
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
  return { ...block, gpuOptimizer };
}
