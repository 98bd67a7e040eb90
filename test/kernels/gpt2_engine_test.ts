// Stages of a GPT-2 on the GPU against the double-precision engine: every cut, odd widths, recomputation, halves, memory.
// Its kernels alone are in gpt2_kernels_test.ts; what does not depend on the block is in engine_test.ts.
import assert from "node:assert/strict";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { countingDevice } from "./counting.ts";
import { buildsOf, type MicroBatch, runMicroBatch, testIds, testParams, tinySpec } from "./engine_support.ts";
import { assertSameBits, onAdapter, relL2, testDevice } from "./support.ts";

const gpu = await testDevice();
/** As for Llama's stages (engine_test.ts, halves_engine_test.ts). */
const TOLERANCE = { f32: { loss: 2e-5, gradient: 2e-5 }, f16: { loss: 2e-3, gradient: 6e-3 } };
const LOSS_SCALE = 12;

const gpt2: ModelSpec = { ...tinySpec, architecture: "gpt2", n_kv_head: 4, n_inner: 36, norm_eps: 1e-3 };
/** Heads of eight, which halves need, and a table that is the head too. */
const tied: ModelSpec = { ...gpt2, n_layer: 2, n_head: 2, n_kv_head: 2, tie_word_embeddings: true };
const odd: ModelSpec = {
  ...{ ...gpt2, n_layer: 1, n_head: 3, n_kv_head: 3, n_embd: 18, n_inner: 7 },
  ...{ block_size: 9, vocab_size: 2150 },
};

async function opened(builds: readonly StageBuild[]): Promise<StageEngine[]> {
  return await Promise.all(builds.map(async (build) => {
    const engine = await createWgslEngine(gpu, build);
    await engine.load(testParams(build.spec, build.stage, 100));
    engine.scaleLoss?.(LOSS_SCALE);
    return engine;
  }));
}

async function reference(builds: readonly StageBuild[]): Promise<MicroBatch> {
  const engines = await Promise.all(builds.map(async (build) => {
    const engine = createCpuEngine(build);
    await engine.load(testParams(build.spec, build.stage, 100));
    return engine;
  }));
  return await runMicroBatch(engines, idsOf(builds), { slot: 0 });
}

function idsOf([first]: readonly StageBuild[]) {
  const { spec } = first!;
  return { tokens: testIds(spec, 5), targets: testIds(spec, 6) };
}

for (
  const [what, spec, stages] of [
    ["three stages", gpt2, 3],
    ["two tied stages", tied, 2],
    ["a tied single stage", tied, 1],
    ["odd widths", odd, 1],
  ] as const
) {
  for (const dtype of spec === odd || stages === 3 ? ["f32"] as const : ["f32", "f16"] as const) {
    Deno.test(
      onAdapter(gpu, `GPT-2, ${what} in ${dtype}: the CPU engine's gradients, whatever is computed again`),
      async () => {
        const builds = buildsOf(spec, stages, { codec: "raw32" }).map((build) => ({ ...build, dtype }));
        const expected = await reference(builds), within = TOLERANCE[dtype];
        let plain: MicroBatch | undefined;
        for (const recompute of ["none", "attention", "block"] as const) {
          const engines = await opened(builds.map((build) => ({ ...build, recompute })));
          const actual = await runMicroBatch(engines, idsOf(builds), { slot: 1 });
          plain ??= actual;
          const off = Math.abs(actual.loss - expected.loss);
          assert.ok(off <= within.loss, `loss ${actual.loss}, not ${expected.loss}`);
          for (const [i, gradient] of actual.weightGrads.entries()) {
            const error = relL2(gradient, expected.weightGrads[i]!);
            assert.ok(error <= within.gradient, `weight gradient of stage ${i}: relative error ${error}`);
            assertSameBits(gradient, plain.weightGrads[i]!, `${recompute}, stage ${i}`);
          }
          for (const engine of engines) engine.destroy();
        }
      },
    );
  }
}

Deno.test(onAdapter(gpu, "GPT-2: in halves, too, the memory is what is predicted"), async () => {
  const [build] = buildsOf(tied, 1, { codec: "raw32" });
  const { counted, counts } = countingDevice(gpu);
  const engine = await createWgslEngine(counted, { ...build!, dtype: "f16" });
  const { params, activations, scratch } = engine.memory();
  assert.equal(counts.bufferBytes, params + activations + scratch);
  engine.destroy();
});
