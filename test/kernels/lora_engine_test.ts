// Adapters beside a frozen base on the engines of WebGPU and tfjs: the double-precision engine's losses and gradients, and the memory that
// the planner counts on. The projection itself is peer/engine/lora_test.ts.
import assert from "node:assert/strict";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { type CreateEngine, stageBase, withLora } from "../../peer/engine/lora.ts";
import { createTfjsEngine } from "../../peer/engine/tfjs.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { baseSpec } from "../../peer/model/layout.ts";
import { engineBytes, type EngineKind } from "../../peer/model/stage_memory.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { buildsOf, runMicroBatch, testIds, testParams, tinySpec } from "./engine_support.ts";
import { onAdapter, relL2, testDevice } from "./support.ts";

const gpu = await testDevice();

/** As for the engines alone (engine_test.ts, halves_engine_test.ts): the projection adds f64 sums of their gradients. */
const TOLERANCE = { f32: 2e-5, f16: 6e-3 };

const lora: ModelSpec["lora"] = { rank: 3, alpha: 6, targets: ["q_proj", "v_proj", "up_proj", "down_proj"] };
const llama: ModelSpec = { ...tinySpec, n_layer: 2, n_head: 2, n_kv_head: 1, lora };
const gpt2: ModelSpec = {
  ...llama,
  architecture: "gpt2",
  n_kv_head: 2,
  n_inner: 36,
  tie_word_embeddings: true,
};

const ENGINES: Record<EngineKind, CreateEngine> = {
  wgsl: (build) => createWgslEngine(gpu, build),
  tfjs: (build) => createTfjsEngine(build, { backend: "wasm" }),
  cpu: (build) => Promise.resolve(createCpuEngine(build)),
};

async function opened(kind: EngineKind, builds: readonly StageBuild[]): Promise<StageEngine[]> {
  const create = withLora(
    ENGINES[kind],
    (build) => stageBase(build, testParams(baseSpec(build.spec), build.stage, 100)),
  );
  return await Promise.all(builds.map(async (build) => {
    const engine = await create(build);
    await engine.load(testParams(build.spec, build.stage, 300));
    engine.scaleLoss?.(12);
    return engine;
  }));
}

const WAYS = [["wgsl", llama, "f32"], ["wgsl", llama, "f16"], ["wgsl", gpt2, "f32"], [
  "tfjs",
  llama,
  "f32",
]] as const;

for (const [kind, spec, dtype] of WAYS) {
  const name = `lora: ${kind}, ${
    spec.architecture ?? "llama"
  } in ${dtype}: the CPU engine's gradients of adapters`;
  Deno.test(onAdapter(gpu, name), async () => {
    const builds = buildsOf(spec, 2, { codec: "raw32" }).map((build) => ({ ...build, dtype }));
    const ids = { tokens: testIds(spec, 5), targets: testIds(spec, 6) };
    const expected = await runMicroBatch(await opened("cpu", builds), ids, { slot: 0 });
    const engines = await opened(kind, builds);
    try {
      for (const [s, engine] of engines.entries()) {
        const { params, activations, scratch } = engine.memory();
        assert.equal(params + activations + scratch, engineBytes(kind, builds[s]!));
      }
      const found = await runMicroBatch(engines, ids, { slot: 1 });
      const error = Math.abs(found.loss - expected.loss) / expected.loss;
      assert.ok(error <= TOLERANCE[dtype], `loss ${error}`);
      for (const [s, grads] of found.weightGrads.entries()) {
        const error = relL2(grads, expected.weightGrads[s]!);
        assert.ok(error <= TOLERANCE[dtype], `stage ${s}: ${error}`);
      }
    } finally {
      for (const engine of engines) engine.destroy();
    }
  });
}
