// Admission: how long one block takes on this peer, measured with the run's own shapes before it gets any work.
import type { StageBuild, StageEngine } from "./engine/engine.ts";
import { initParams } from "./model/init.ts";
import { encodeTensor } from "./codec/codec.ts";
import type { ModelSpec, RunConfig } from "./wire/run.ts";

/** The first pass compiles; the quickest of the others is the block's time. */
const PASSES = 3;

/** Milliseconds of F + B + W of one layer for one micro-batch. */
export async function measureBlock(
  createEngine: (build: StageBuild) => Promise<StageEngine>,
  config: RunConfig,
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
      if (pass > 0) best = Math.min(best, performance.now() - begun);
    }
    return best;
  } finally {
    engine.destroy();
  }
}
