// Whole stages in halves (`dtype` f16) against the double-precision engine: gradients, memory, recomputation, what an overflow
// leaves behind, and the optimizer on the GPU. Training for many steps is in halves_run_test.ts.
import assert from "node:assert/strict";
import { decodeTensor } from "../../peer/codec/codec.ts";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { passOver } from "../../peer/exact/optimizer.ts";
import { createState } from "../../peer/exact/state.ts";
import type { GpuDevice } from "../../peer/gpu/device.ts";
import { stageLayout } from "../../peer/model/layout.ts";
import { wgslMemory as stageBytes } from "../../peer/model/stage_memory.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { countingDevice } from "./counting.ts";
import { buildsOf, type MicroBatch, runMicroBatch, testIds, testParams, tinySpec } from "./engine_support.ts";
import { assertSameBits, onAdapter, relL2, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** Heads of eight, and two tiles of the vocabulary, whose last is odd. */
const spec: ModelSpec = { ...tinySpec, n_head: 2, n_kv_head: 1, vocab_size: 2151 };
/** Each of some twenty tensors between a gradient's two ends is rounded by 2^-12 on average. */
const GRADIENT_TOLERANCE = 6e-3;
const LOSS_TOLERANCE = 2e-3;
/** A loss scale that every run begins with, and one that no gradient bears. */
const SCALE = 12;
const TOO_LARGE = 40;

const ids = { tokens: testIds(spec, 5), targets: testIds(spec, 6) };
const others = { tokens: testIds(spec, 15), targets: testIds(spec, 16) };

function halfBuilds(stages: number, changes: Partial<StageBuild> = {}, of = spec): StageBuild[] {
  return buildsOf(of, stages, { codec: "raw32" }).map((build) => ({ ...build, dtype: "f16", ...changes }));
}

async function opened(builds: StageBuild[], scale = SCALE, device: GpuDevice = gpu): Promise<StageEngine[]> {
  return await Promise.all(builds.map(async (build) => {
    const engine = await createWgslEngine(device, build);
    await engine.load(testParams(build.spec, build.stage, 100));
    engine.scaleLoss!(scale);
    return engine;
  }));
}

async function reference(builds: StageBuild[]): Promise<MicroBatch> {
  const engines = await Promise.all(builds.map(async (build) => {
    const engine = createCpuEngine(build);
    await engine.load(testParams(build.spec, build.stage, 100));
    return engine;
  }));
  return await runMicroBatch(engines, ids, { slot: 0 });
}

function cosine(a: Float32Array, b: Float32Array): number {
  const dot = (x: Float32Array, y: Float32Array) => x.reduce((sum, value, i) => sum + value * y[i]!, 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

for (const [stages, tied] of [[1, false], [1, true], [3, false], [2, true]] as const) {
  const what = `${stages} ${tied ? "tied " : ""}stage${stages > 1 ? "s" : ""}`;
  Deno.test(
    onAdapter(gpu, `${what} in halves: loss and gradients are the reference's, within f16`),
    async () => {
      const builds = halfBuilds(stages, {}, { ...spec, tie_word_embeddings: tied });
      const expected = await reference(builds);
      const engines = await opened(builds);
      const actual = await runMicroBatch(engines, ids, { slot: 1 });
      const off = Math.abs(actual.loss - expected.loss);
      assert.ok(off <= LOSS_TOLERANCE, `loss ${actual.loss}, not ${expected.loss}`);
      for (const [i, gradient] of actual.weightGrads.entries()) {
        const error = relL2(gradient, expected.weightGrads[i]!);
        assert.ok(error <= GRADIENT_TOLERANCE, `stage ${i}: relative error ${error}`);
        assert.ok(cosine(gradient, expected.weightGrads[i]!) > 1 - GRADIENT_TOLERANCE ** 2, `stage ${i}`);
      }
      const again = await runMicroBatch(engines, ids, { slot: 0 });
      assert.equal(again.loss, actual.loss);
      for (const [i, gradient] of again.weightGrads.entries()) {
        assertSameBits(gradient, actual.weightGrads[i]!, `another slot, stage ${i}`);
      }
      for (const engine of engines) engine.destroy();
    },
  );
}

Deno.test(onAdapter(gpu, "the loss scale is seen in no gradient, and saves the small ones"), async () => {
  const [, middle] = halfBuilds(3);
  const [R, C] = [2 * spec.block_size, spec.n_embd];
  const activation = raw(testValues(R * C, 1), R, C);
  // Below what a half can tell apart, as gradients of a mean loss over many tokens are.
  const gradient = raw(testValues(R * C, 2).map((value) => value * 2 ** -24), R, C);
  const run = async (engine: StageEngine) => {
    await engine.load(testParams(spec, middle!.stage, 100));
    await engine.forward(0, { activation });
    const decoded = decodeTensor((await engine.backward(0, gradient))!);
    assert.ok(decoded.ok);
    return { out: decoded.value, weights: await engine.weightGrad(0) };
  };
  const expected = await run(createCpuEngine(middle!));
  const errors: number[][] = [];
  for (const scale of [0, SCALE, 2 * SCALE]) {
    const [engine] = await opened([middle!], scale);
    const { out, weights } = await run(engine!);
    errors.push([relL2(out, expected.out), relL2(weights, expected.weights)]);
    engine!.destroy();
  }
  const [without, ...scaled] = errors;
  assert.ok(scaled.flat().every((error) => error <= GRADIENT_TOLERANCE), `scaled: ${scaled}`);
  assert.ok(without!.every((error) => error > 10 * GRADIENT_TOLERANCE), `without a scale: ${without}`);
});

Deno.test(onAdapter(gpu, "a pipeline mixes a stage in halves with engines that know f32 only"), async () => {
  const builds = halfBuilds(3).map((
    build,
  ) => ({ ...build, codecForward: "f16s", codecBackward: "f16s" } as const));
  const expected = await reference(builds);
  const engines = await Promise.all(builds.map(async (build, i): Promise<StageEngine> => {
    const engine = i === 1 ? await createWgslEngine(gpu, build) : createCpuEngine(build);
    await engine.load(testParams(spec, build.stage, 100));
    engine.scaleLoss?.(SCALE);
    return engine;
  }));
  assert.deepEqual(engines.map((engine) => engine.scaleLoss !== undefined), [false, true, false]);
  const { loss, weightGrads } = await runMicroBatch(engines, ids, { slot: 0 });
  assert.ok(Math.abs(loss - expected.loss) <= LOSS_TOLERANCE, `loss ${loss}, not ${expected.loss}`);
  for (const [i, gradient] of weightGrads.entries()) {
    const error = relL2(gradient, expected.weightGrads[i]!);
    assert.ok(error <= GRADIENT_TOLERANCE, `stage ${i}: relative error ${error}`);
  }
  for (const engine of engines) engine.destroy();
});

Deno.test(onAdapter(gpu, "what is computed again in halves has the bits of what is kept"), async () => {
  const tied = { ...spec, tie_word_embeddings: true };
  const [kept] = await opened(halfBuilds(1, {}, tied));
  const wanted = await runMicroBatch([kept!], ids, { slot: 0 });
  for (const recompute of ["attention", "block"] as const) {
    const [engine] = await opened(halfBuilds(1, { recompute }, tied));
    const { loss, weightGrads } = await runMicroBatch([engine!], ids, { slot: 0 });
    assert.equal(loss, wanted.loss);
    assertSameBits(weightGrads[0]!, wanted.weightGrads[0]!, recompute);
    engine!.destroy();
  }
  kept!.destroy();
});

Deno.test(
  onAdapter(gpu, "memory in halves is predicted, smaller, and a warm step makes no GPU object"),
  async () => {
    for (const recompute of ["none", "block"] as const) {
      for (
        const build of [...halfBuilds(3, { recompute }), ...halfBuilds(1, { recompute, optimizer: "gpu" })]
      ) {
        const { counted, counts } = countingDevice(gpu);
        const [engine] = await opened([build], SCALE, counted);
        const { params, activations, scratch } = engine!.memory();
        assert.equal(counts.bufferBytes, params + activations + scratch);
        const whole = await createWgslEngine(gpu, { ...build, dtype: "f32" });
        assert.equal(whole.memory().params, params, "parameters stay in f32");
        assert.ok(activations < whole.memory().activations, `${activations} bytes of activations`);
        for (const it of [engine!, whole]) it.destroy();
      }
    }
    const { counted, counts } = countingDevice(gpu);
    const engines = await opened(halfBuilds(3), SCALE, counted);
    await runMicroBatch(engines, ids, { slot: 0 });
    const { created, submits } = counts;
    for (const engine of engines) engine.scaleLoss!(SCALE - 1);
    await runMicroBatch(engines, ids, { slot: 1 });
    assert.equal(counts.created, created, "objects made in a warm step");
    assert.equal(counts.submits - submits, 9, "one submit for each of F, B, W in three stages");
    for (const engine of engines) engine.destroy();
  },
);

Deno.test("a slot in halves takes half the memory of GPT-2's activations", () => {
  const gpt2 = {
    ...{
      vocab_size: 50_257,
      block_size: 256,
      n_layer: 12,
      n_head: 12,
      n_kv_head: 12,
      n_embd: 768,
      n_inner: 2048,
    },
    ...{ tie_word_embeddings: true, rope_theta: 10_000, norm_eps: 1e-5 },
  };
  const [build] = buildsOf(gpt2, 1, { codec: "raw32", slots: 2 });
  const bytes = (dtype: "f32" | "f16") => {
    const { activations } = stageBytes({ ...build!, dtype });
    return activations;
  };
  const share = bytes("f16") / bytes("f32");
  assert.ok(share > 0.5 && share < 0.51, `${share} of the bytes`);
});

Deno.test(
  onAdapter(
    gpu,
    "an overflow shows in the weight gradient, leaves a sane gradient, and is gone with its step",
  ),
  async () => {
    for (const recompute of ["none", "block"] as const) {
      const builds = halfBuilds(3, { recompute });
      const clean = await opened(builds);
      const wanted = await runMicroBatch(clean, others, { slot: 0 });
      const engines = await opened(builds, TOO_LARGE);
      const over = await runMicroBatch(engines, ids, { slot: 0 });
      // The stages before it were handed zeros and garbage that is finite.
      assert.ok(over.weightGrads.at(-1)!.some((value) => !Number.isFinite(value)), recompute);
      for (const gradient of over.gradients) {
        const decoded = decodeTensor(gradient);
        assert.ok(decoded.ok && decoded.value.every(Number.isFinite), `${recompute}: what left is finite`);
      }
      for (const engine of engines) engine.scaleLoss!(SCALE);
      const after = await runMicroBatch(engines, others, { slot: 0 });
      for (const [i, gradient] of after.weightGrads.entries()) {
        assertSameBits(gradient, wanted.weightGrads[i]!, `${recompute}: stage ${i} after an overflow`);
      }
      for (const engine of [...engines, ...clean]) engine.destroy();
    }
  },
);

const LEAVING = "an overflow of nothing but what leaves the stage is told by its weight gradient";
Deno.test(onAdapter(gpu, LEAVING), async () => {
  const [, middle] = halfBuilds(3);
  const [engine] = await opened([middle!], 0);
  const [R, C] = [2 * spec.block_size, spec.n_embd];
  // The gradient that comes in is just within a half's range and goes round the layer; a little is added to it there.
  const layout = stageLayout(spec, middle!.stage);
  const params = testParams(spec, middle!.stage, 100);
  for (const { name, offset, size, shape } of layout.tensors) {
    const factor = name.includes("mlp") ? 0 : shape.length === 1 ? 1 : 0.05;
    for (let k = offset; k < offset + size; k++) params[k]! *= factor;
  }
  await engine!.load(params);
  await engine!.forward(0, { activation: raw(testValues(R * C, 3), R, C) });
  const gradient = await engine!.backward(0, raw(new Float32Array(R * C).fill(65_300), R, C));
  const decoded = decodeTensor(gradient!);
  assert.ok(decoded.ok && decoded.value.some((value) => value === 0), "no value of it overflowed");
  const weights = await engine!.weightGrad(0);
  const lost = [...weights.entries()].filter(([, value]) => !Number.isFinite(value)).map(([at]) => at);
  assert.deepEqual(lost, [0], "told by the first value, and by no other");
  engine!.destroy();
});

function raw(values: Float32Array, rows: number, cols: number) {
  const payload = new Uint8Array(values.slice().buffer);
  return { codec: "raw32" as const, exponent: 0, rows, cols, payload };
}

Deno.test(
  onAdapter(
    gpu,
    "the optimizer on the GPU counts an overflow, and passes over the step as the exact core does",
  ),
  async () => {
    const [build] = halfBuilds(1, { optimizer: "gpu" });
    const engine = await createWgslEngine(gpu, build!);
    const optimizer = engine.optimizer!;
    const state = createState(stageLayout(spec, build!.stage), testParams(spec, build!.stage, 100));
    await optimizer.load(state);
    engine.scaleLoss!(TOO_LARGE);
    await optimizer.begin();
    await engine.forward(0, ids);
    await engine.backward(0, null);
    await optimizer.addGradient(0);
    assert.ok((await optimizer.facts(1)).nonFinite > 0);
    const config = { beta1: 0.9, beta2: 0.99, weight_decay: 0.1, grad_clip: 1, reduce: "int8" as const };
    await optimizer.passOver(0, { microBatches: 1, lr: 1e-2, gradNormSq: 1, config });
    const after = await optimizer.read();
    for (const key of ["params", "m", "v"] as const) assertSameBits(after[key], state[key], key);
    // Everything that is left of this gradient is finite or 0, so its exponents are those of some total.
    passOver(state, new Int32Array(state.layout.size), { microBatches: 1, config });
    assert.ok(
      after.exponents.every((exponent, i) => exponent >= state.exponents[i]!),
      "exponents follow the sum",
    );
    assert.ok(
      after.exponents.some((exponent, i) => exponent < createState(state.layout, state.params).exponents[i]!),
    );
    engine.destroy();
  },
);
