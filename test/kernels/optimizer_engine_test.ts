// The GPU's optimizer inside the stage engine: sums of the same bits as the gradients that are read back otherwise, whatever is
// computed again and in whatever order; memory as predicted; nothing made, and almost nothing read, in a warm step.
import assert from "node:assert/strict";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { createState } from "../../peer/exact/state.ts";
import type { GpuDevice } from "../../peer/gpu/device.ts";
import { stageLayout } from "../../peer/model/layout.ts";
import { wgslMemory } from "../../peer/model/stage_memory.ts";
import type { RecomputeId } from "../../peer/wire/run.ts";
import { countingDevice } from "./counting.ts";
import { buildsOf, testIds, testParams, tinySpec } from "./engine_support.ts";
import { assertSameBits, onAdapter, testDevice } from "./support.ts";

const gpu = await testDevice();
const config = { beta1: 0, beta2: 0.99, weight_decay: 0, grad_clip: 0, reduce: "raw32" as const };
const [single] = buildsOf({ ...tinySpec, n_layer: 2, tie_word_embeddings: true }, 1, { codec: "raw32" });
const batches = [5, 15, 25].map((seed) => ({
  tokens: testIds(tinySpec, seed),
  targets: testIds(tinySpec, seed + 1),
}));

function training(build: StageBuild, recompute: RecomputeId = "none"): StageBuild {
  return { ...build, recompute, optimizer: "gpu" };
}

async function open(build: StageBuild, device: GpuDevice = gpu): Promise<Required<StageEngine>> {
  const engine = await createWgslEngine(device, build);
  const { optimizer } = engine;
  assert.ok(optimizer, "an engine built for it has the optimizer");
  const params = testParams(build.spec, build.stage, 100);
  await optimizer.load(createState(stageLayout(build.spec, build.stage), params));
  return engine as Required<StageEngine>;
}

/** F and B of two slots before the first W, whose order is turned round; then one more micro-batch. */
async function runStep(engine: StageEngine, weightGrad: (slot: number) => Promise<unknown>): Promise<void> {
  for (const slot of [0, 1]) await engine.forward(slot, batches[slot]!);
  for (const slot of [0, 1]) await engine.backward(slot, null);
  for (const slot of [0, 1]) await weightGrad(slot);
  await engine.forward(0, batches[2]!);
  await engine.backward(0, null);
  await weightGrad(0);
}

/** The same step with gradients that are read back and added on the CPU. */
async function summedOnCpu(recompute: RecomputeId): Promise<Float32Array> {
  const engine = await createWgslEngine(gpu, { ...single!, recompute });
  await engine.load(testParams(single!.spec, single!.stage, 100));
  assert.equal(engine.optimizer, undefined);
  const sum = new Float32Array(stageLayout(single!.spec, single!.stage).size);
  await runStep(engine, async (slot) => {
    const gradient = await engine.weightGrad(slot);
    for (const [i, g] of gradient.entries()) sum[i] = sum[i]! + g;
  });
  engine.destroy();
  return sum;
}

Deno.test(onAdapter(gpu, "the sum on the GPU has the bits of gradients that are read back"), async () => {
  for (const recompute of ["none", "attention", "block"] as const) {
    const sum = await summedOnCpu(recompute);
    const engine = await open(training(single!, recompute));
    const { optimizer } = engine;
    for (let round = 0; round < 2; round++) {
      await optimizer.begin();
      await runStep(engine, (slot) => optimizer.addGradient(slot));
      const { gradNormSq, saturated, nonFinite } = await optimizer.facts(1);
      const wanted = sum.reduce((total, g) => total + g * g, 0);
      assert.ok(Math.abs(gradNormSq - wanted) <= 1e-6 * wanted, `${recompute}: ${gradNormSq}, not ${wanted}`);
      assert.deepEqual([saturated, nonFinite], [0, 0]);
    }
    // Without momentum the first moment is the gradient itself.
    const options = { microBatches: 1, lr: 0, gradNormSq: 1, config };
    await optimizer.apply(0, options);
    const { m, params } = await optimizer.read();
    assertSameBits(m, sum, recompute);
    assertSameBits(params, testParams(single!.spec, single!.stage, 100), "a rate of 0 changes nothing");
    engine.destroy();
  }
});

Deno.test(
  onAdapter(gpu, "an engine with the optimizer computes as one without, before and after"),
  async () => {
    const engine = await open(training(single!, "block"));
    const { optimizer } = engine;
    const ids = batches[0]!;
    await engine.forward(0, ids);
    await engine.backward(0, null);
    await optimizer.begin();
    await optimizer.addGradient(0);
    await optimizer.facts(1);
    await optimizer.apply(0, { microBatches: 1, lr: 0.1, gradNormSq: 1, config });
    const stepped = (await engine.forward(null, ids)).loss;
    const { params } = await optimizer.read();
    await engine.load(params);
    assert.equal((await engine.forward(null, ids)).loss, stepped, "the step changed the parameters in place");
    const plain = await createWgslEngine(gpu, { ...single!, recompute: "block" });
    await plain.load(params);
    const gradients: Float32Array[] = [];
    for (const it of [engine, plain]) {
      await runStep(it, async (slot) => gradients.push(await it.weightGrad(slot)));
    }
    for (const i of [0, 1, 2]) assertSameBits(gradients[i]!, gradients[i + 3]!, `micro-batch ${i}`);
    await assert.rejects(optimizer.addGradient(0), /not backward done/);
    for (const it of [engine, plain]) it.destroy();
  },
);

Deno.test(
  onAdapter(gpu, "memory with the optimizer is predicted, and a warm step makes no object"),
  async () => {
    for (const build of buildsOf(tinySpec, 3, { codec: "i8b64" }).map((build) => training(build))) {
      const { counted, counts } = countingDevice(gpu);
      const engine = await open(build, counted);
      const { params, activations, scratch } = engine.memory();
      assert.equal(counts.bufferBytes, params + activations + scratch);
      assert.deepEqual(engine.memory(), wgslMemory(build));
      assert.equal(params, 3 * wgslMemory({ ...build, optimizer: "exact" }).params);
      engine.destroy();
    }
    const { counted, counts } = countingDevice(gpu);
    const engine = await open(training(single!), counted);
    const { optimizer } = engine;
    async function step(number: number): Promise<void> {
      await optimizer.begin();
      await runStep(engine, (slot) => optimizer.addGradient(slot));
      const { gradNormSq } = await optimizer.facts(3);
      await optimizer.apply(number, { microBatches: 3, lr: 0.1, gradNormSq, config });
    }
    await step(0);
    const { created, submits } = counts;
    await step(1);
    assert.equal(counts.created, created, "objects made in a warm step");
    assert.equal(counts.submits - submits, 3 * 3 + 3, "F, B, W of each, clearing, facts and step");
    engine.destroy();
  },
);
