// A stage that computes again in B what it does not keep: the same bits as without, in the memory that is predicted; and
// how many dispatches a layer costs. That the bits are right is shown by engine_test.ts.
import assert from "node:assert/strict";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { backwardName, forwardName, planStage, weightGradName } from "../../peer/engine/wgsl_plan.ts";
import { wgslMemory } from "../../peer/model/stage_memory.ts";
import type { ModelSpec, RecomputeId } from "../../peer/wire/run.ts";
import { countingDevice } from "./counting.ts";
import { buildsOf, type MicroBatch, runMicroBatch, testIds, testParams, tinySpec } from "./engine_support.ts";
import { assertSameBits, onAdapter, testDevice } from "./support.ts";

const gpu = await testDevice();
const modes = ["none", "attention", "block"] as const;
/** F, B and W of one layer and micro-batch; the products' second passes, where they are measured to pay, come on top. */
const DISPATCHES_PER_LAYER_MAX = 25;

const tied: ModelSpec = { ...tinySpec, tie_word_embeddings: true };
const batches = [5, 15].map((seed) => ({
  tokens: testIds(tinySpec, seed),
  targets: testIds(tinySpec, seed + 1),
}));

function recomputing(builds: readonly StageBuild[], recompute: RecomputeId): StageBuild[] {
  return builds.map((build) => ({ ...build, recompute }));
}

async function open(builds: readonly StageBuild[], device = gpu): Promise<StageEngine[]> {
  return await Promise.all(builds.map(async (build) => {
    const engine = await createWgslEngine(device, build);
    await engine.load(testParams(build.spec, build.stage, 100));
    return engine;
  }));
}

function assertSame(actual: MicroBatch, expected: MicroBatch, what: string): void {
  assert.equal(actual.loss, expected.loss, `${what}: loss`);
  for (const key of ["activations", "gradients"] as const) {
    assert.deepEqual(
      actual[key].map(({ payload }) => payload),
      expected[key].map(({ payload }) => payload),
      what,
    );
  }
  for (const [i, grad] of actual.weightGrads.entries()) {
    assertSameBits(grad, expected.weightGrads[i]!, `${what}: weight gradient of stage ${i}`);
  }
}

/** Both micro-batches of all modes, on the same stages. */
async function compareModes(spec: ModelSpec, stages: number, codec: "raw32" | "i8b64"): Promise<void> {
  let plain: MicroBatch[] | undefined;
  for (const recompute of modes) {
    const engines = await open(recomputing(buildsOf(spec, stages, { codec }), recompute));
    const results: MicroBatch[] = [];
    for (const [i, batch] of batches.entries()) {
      results.push(await runMicroBatch(engines, batch, { slot: i }));
    }
    plain ??= results;
    for (const [i, result] of results.entries()) assertSame(result, plain[i]!, `${recompute}, batch ${i}`);
    for (const engine of engines) engine.destroy();
  }
}

Deno.test(onAdapter(gpu, "three stages give the same bits whatever they compute again"), async () => {
  await compareModes(tinySpec, 3, "i8b64");
  await compareModes(tinySpec, 3, "raw32");
});

Deno.test(onAdapter(gpu, "a tied single stage gives the same bits whatever it computes again"), async () => {
  await compareModes(tied, 1, "raw32");
});

Deno.test(onAdapter(gpu, "weight gradients may be asked for late and in any order"), async () => {
  const [build] = buildsOf(tinySpec, 1, { codec: "raw32", slots: 2 });
  const alone: Float32Array[] = [];
  for (const recompute of modes) {
    const [engine] = await open([{ ...build!, recompute }]);
    for (const [slot, batch] of batches.entries()) await engine!.forward(slot, batch);
    await engine!.backward(1, null);
    await engine!.forward(null, batches[0]!);
    await engine!.backward(0, null);
    for (const slot of [1, 0]) {
      const grad = await engine!.weightGrad(slot);
      alone[slot] ??= grad;
      assertSameBits(grad, alone[slot]!, `${recompute}, slot ${slot}`);
    }
    await engine!.forward(1, batches[0]!);
    await engine!.backward(1, null);
    assertSameBits(await engine!.weightGrad(1), alone[0]!, `${recompute}, slot 1 again`);
    engine!.destroy();
  }
  assert.notDeepEqual(alone[0], alone[1]);
});

Deno.test(onAdapter(gpu, "recomputation allocates what is predicted, and less"), async () => {
  for (const plain of buildsOf({ ...tinySpec, block_size: 64 }, 2, { codec: "i8b64", slots: 3 })) {
    const totals: number[] = [];
    for (const recompute of modes) {
      const { counted, counts } = countingDevice(gpu);
      const build = { ...plain, recompute };
      const engine = await createWgslEngine(counted, build);
      const { params, activations, scratch } = engine.memory();
      assert.equal(counts.bufferBytes, params + activations + scratch, recompute);
      assert.deepEqual(engine.memory(), wgslMemory(build));
      totals.push(counts.bufferBytes);
      engine.destroy();
    }
    const [none = 0, attention = 0, block = 0] = totals;
    assert.ok(block < attention && attention < none, `${block}, ${attention}, ${none} bytes`);
  }
});

/** Dispatches of one micro-batch in a stage with so many layers, by the plan. */
function planned(layers: number, recompute: RecomputeId): number {
  const [build] = recomputing(buildsOf({ ...tinySpec, n_layer: layers }, 1, { codec: "raw32" }), recompute);
  const { operations } = planStage(build!, { software: gpu.software }).plan;
  const names = [forwardName(0), backwardName(0), weightGradName(0)];
  return names.reduce((sum, name) => sum + operations.get(name)!.dispatches.length, 0);
}

Deno.test(onAdapter(gpu, "a layer costs few dispatches, by the plan and on the device"), async () => {
  const counted: number[] = [];
  for (const layers of [1, 2]) {
    const { counted: device, counts } = countingDevice(gpu);
    const spec = { ...tinySpec, n_layer: layers };
    const engines = await open(buildsOf(spec, 1, { codec: "raw32" }), device);
    await runMicroBatch(engines, batches[0]!, { slot: 0 });
    counted.push(counts.dispatches);
    for (const engine of engines) engine.destroy();
  }
  const perLayer = counted[1]! - counted[0]!;
  assert.equal(perLayer, planned(2, "none") - planned(1, "none"));
  assert.equal(perLayer, 21);
  assert.ok(perLayer <= DISPATCHES_PER_LAYER_MAX);
  assert.equal(planned(2, "attention") - planned(1, "attention"), 24);
  assert.equal(planned(2, "block") - planned(1, "block"), 27);
});
