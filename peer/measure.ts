// Admission: how long one block takes on this peer, measured with the run's own shapes before it gets any work.
import type { StageBuild, StageEngine } from "./engine/engine.ts";
import { initParams } from "./model/init.ts";
import { encodeTensor } from "./codec/codec.ts";
import type { ModelSpec, RunConfig } from "./wire/run.ts";

/** The first pass compiles; the quickest of the others is the block's time. */
const PASSES = 3;
/** A slow peer is measured once only: whoever joins wants to begin. */
const PATIENCE_MS = 1_000;

/** What a block's time depends on, beside the model's shapes. */
export type MeasureConfig = Pick<RunConfig, "batch_size" | "codec_forward" | "codec_backward" | "seed">;

/** Milliseconds of F + B + W of one layer for one micro-batch. */
export async function measureBlock(
  createEngine: (build: StageBuild) => Promise<StageEngine>,
  config: MeasureConfig,
  spec: ModelSpec,
): Promise<number> {
  const stage = { index: 1, firstLayer: 0, endLayer: 1, embed: false, head: false };
  const codecs = { codecForward: config.codec_forward, codecBackward: config.codec_backward };
  const engine = await createEngine({ spec, stage, batchSize: config.batch_size, slots: 1, ...codecs });
  try {
    await engine.load(initParams(spec, stage, config.seed));
    const rows = config.batch_size * spec.block_size;
    const values = Float32Array.from({ length: rows * spec.n_embd }, (_, i) => ((i * 37) % 101) / 50 - 1);
    const activation = encodeTensor(config.codec_forward, values, rows, spec.n_embd);
    const gradient = encodeTensor(config.codec_backward, values, rows, spec.n_embd);
    let best = Infinity;
    for (let pass = 0; pass < PASSES; pass++) {
      const begun = performance.now();
      await engine.forward(0, { activation });
      await engine.backward(0, gradient);
      await engine.weightGrad(0);
      const ms = performance.now() - begun;
      if (pass === 0) continue;
      best = Math.min(best, ms);
      if (ms > PATIENCE_MS) break;
    }
    return best;
  } finally {
    engine.destroy();
  }
}

/** What a peer tells of itself when it joins. */
export async function measurePeer(
  createEngine: (build: StageBuild) => Promise<StageEngine>,
  config: RunConfig,
  spec: ModelSpec,
): Promise<{ blockMs: number; gpuOptimizer: boolean }> {
  let gpuOptimizer = false;
  const optimizer = config.optimizer === "auto" ? "gpu" as const : "exact" as const;
  const blockMs = await measureBlock(
    async (build) => {
      const engine = await createEngine({ ...build, optimizer });
      gpuOptimizer = engine.optimizer !== undefined;
      return engine;
    },
    config,
    spec,
  );
  return { blockMs, gpuOptimizer };
}
