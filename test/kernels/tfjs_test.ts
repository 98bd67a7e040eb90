// The tfjs stage engine against the double-precision engine: boundary tensors, loss and weight gradients on the WASM backend
// (and once on its WebGPU backend), bytes as predicted, nothing left over after a step, mixed pipelines, and its refusals.
import assert from "node:assert/strict";
import { setImmediate } from "node:timers";
import * as tf from "@tensorflow/tfjs-core";
import { decodeTensor } from "../../peer/codec/codec.ts";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { createTfjsEngine } from "../../peer/engine/tfjs.ts";
import { wasmBackend } from "../../peer/engine/tfjs_backend.ts";
import { WasmMath } from "../../peer/engine/tfjs_wasm.ts";
import { mathShape } from "../../peer/model/tfjs_math.ts";
import { tiledEngine } from "./tfjs_support.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import { stageLayout } from "../../peer/model/layout.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { Encoded, ModelSpec } from "../../peer/wire/run.ts";
import {
  buildsOf,
  type MicroBatch,
  runMicroBatch,
  type TestCodec,
  testIds,
  testParams,
  tinySpec,
} from "./engine_support.ts";
import { assertSameBits, onAdapter, relL2, testDevice } from "./support.ts";

/** As in engine_test.ts: f32 operations against f64 through a few layers leave some 1e-6. */
const F32_TOLERANCE = 2e-5;
/** As there: a code next to a tie may round the other way, in a few places. */
const CODE_TOLERANCE = 2e-3;

const gpu = await testDevice();

const ids = { tokens: testIds(tinySpec, 5), targets: testIds(tinySpec, 6) };

type Create = (build: StageBuild) => Promise<StageEngine>;

const onCpu: Create = (build) => Promise.resolve(createCpuEngine(build));
const onWasm: Create = (build) => createTfjsEngine(build, { backend: "wasm" });

function loaded(builds: readonly StageBuild[], create: Create): Promise<StageEngine[]> {
  return Promise.all(builds.map(async (build) => {
    const engine = await create(build);
    await engine.load(testParams(build.spec, build.stage, 100));
    return engine;
  }));
}

function destroy(...engines: readonly StageEngine[]): void {
  for (const engine of engines) engine.destroy();
}

function values(encoded: Encoded): Float32Array {
  const decoded = decodeTensor(encoded);
  assert.ok(decoded.ok, "the engine encodes what the CPU decodes");
  return decoded.value;
}

function compareBoundaries(actual: readonly Encoded[], expected: readonly Encoded[], what: string): void {
  assert.equal(actual.length, expected.length);
  for (const [i, encoded] of actual.entries()) {
    const wanted = expected[i]!;
    const { payload, ...header } = wanted;
    assert.deepEqual({ ...encoded, payload: encoded.payload.length }, { ...header, payload: payload.length });
    const limit = wanted.codec === "raw32" ? F32_TOLERANCE : CODE_TOLERANCE;
    const error = relL2(values(encoded), values(wanted));
    assert.ok(error <= limit, `${what} ${i}: relative error ${error} above ${limit}`);
  }
}

/** Tensor by tensor, so that a small one (a gain) cannot hide behind a large one. */
function compareGrads(actual: Float32Array, expected: Float32Array, build: StageBuild): void {
  assert.equal(actual.length, expected.length);
  for (const { name, offset, size } of stageLayout(build.spec, build.stage).tensors) {
    const [got, wanted] = [actual.subarray(offset, offset + size), expected.subarray(offset, offset + size)];
    // A bias of the keys moves all scores of a query alike, which softmax does not see: its gradient is rounding alone.
    const blind = name.endsWith("k_proj.bias");
    const error = blind ? Math.hypot(...got) / Math.hypot(...expected) : relL2(got, wanted);
    assert.ok(error <= F32_TOLERANCE, `gradient of ${name}: relative error ${error}`);
  }
}

function compare(actual: MicroBatch, expected: MicroBatch, builds: readonly StageBuild[]): void {
  compareBoundaries(actual.activations, expected.activations, "activation");
  compareBoundaries(actual.gradients, expected.gradients, "gradient");
  const drift = Math.abs(actual.loss - expected.loss);
  assert.ok(drift <= F32_TOLERANCE, `${actual.loss} for loss ${expected.loss}`);
  builds.forEach((build, i) => compareGrads(actual.weightGrads[i]!, expected.weightGrads[i]!, build));
}

async function testAgainstCpu(
  spec: ModelSpec,
  { stages, codec, create = onWasm }: { stages: number; codec: TestCodec; create?: Create },
): Promise<void> {
  const builds = buildsOf(spec, stages, { codec });
  const cpu = await loaded(builds, onCpu), tfjs = await loaded(builds, create);
  const batch = { tokens: testIds(spec, 5), targets: testIds(spec, 6) };
  const expected = await runMicroBatch(cpu, batch, { slot: 0 });
  const first = await runMicroBatch(tfjs, batch, { slot: 0, fed: expected });
  compare(first, expected, builds);
  const again = await runMicroBatch(tfjs, batch, { slot: 1, fed: expected });
  assert.equal(again.loss, first.loss, "loss of the same micro-batch in another slot");
  again.weightGrads.forEach((grad, i) => assertSameBits(grad, first.weightGrads[i]!, "another slot"));
  destroy(...cpu, ...tfjs);
}

for (const codec of ["raw32", "f16s", "i8b64", "mixed"] as const) {
  Deno.test(`tfjs-wasm: three stages equal the CPU engine, ${codec}`, () => {
    return testAgainstCpu(tinySpec, { stages: 3, codec });
  });
}

const gpt2: ModelSpec = { ...tinySpec, architecture: "gpt2", n_kv_head: 4, norm_eps: 1e-3 };

Deno.test("tfjs-wasm: three stages of a GPT-2 equal the CPU engine", () => {
  return testAgainstCpu(gpt2, { stages: 3, codec: "raw32" });
});

Deno.test("tfjs-wasm: a tied GPT-2 that computes again equals the CPU engine", () => {
  const create: Create = (build) => onWasm({ ...build, recompute: "block" });
  return testAgainstCpu({ ...gpt2, tie_word_embeddings: true }, { stages: 1, codec: "raw32", create });
});

Deno.test("tfjs-wasm: a tied single stage equals the CPU engine", () => {
  return testAgainstCpu({ ...tinySpec, tie_word_embeddings: true }, { stages: 1, codec: "raw32" });
});

Deno.test("tfjs-wasm: two tied stages equal the CPU engine", () => {
  const spec = { ...tinySpec, tie_word_embeddings: true, n_layer: 2 };
  return testAgainstCpu(spec, { stages: 2, codec: "i8b64" });
});

Deno.test("tfjs-wasm: odd widths, one key head for three queries, and several vocabulary tiles equal the CPU engine", () => {
  const odd = { ...tinySpec, n_head: 3, n_kv_head: 1, n_embd: 18, n_inner: 7, block_size: 5 };
  return testAgainstCpu({ ...odd, n_layer: 1, vocab_size: 83 }, {
    stages: 1,
    codec: "raw32",
    create: narrow,
  });
});

Deno.test("tfjs-wasm: several tiles of a tied vocabulary equal the CPU engine", () => {
  const spec = { ...tinySpec, n_layer: 1, vocab_size: 41, tie_word_embeddings: true };
  return testAgainstCpu(spec, { stages: 1, codec: "raw32", create: narrow });
});

Deno.test("tfjs-wasm: sequences of several query blocks equal the CPU engine", () => {
  const long = { ...tinySpec, n_layer: 1, n_head: 2, n_kv_head: 1, n_embd: 4, n_inner: 3, block_size: 263 };
  return testAgainstCpu(long, { stages: 1, codec: "raw32" });
});

Deno.test("tfjs-wasm: one token per sequence equals the CPU engine", () => {
  return testAgainstCpu({ ...tinySpec, block_size: 1, n_layer: 1 }, { stages: 1, codec: "raw32" });
});

/** Several tiles of a small vocabulary, the last one cut short. */
function narrow(build: StageBuild): Promise<StageEngine> {
  return tiledEngine(build, 16);
}

Deno.test("tfjs-wasm: slots are independent, and an evaluation keeps them", async () => {
  const builds = buildsOf(tinySpec, 1, { codec: "raw32" });
  const [engine] = await loaded(builds, onWasm);
  const other = { tokens: testIds(tinySpec, 15), targets: testIds(tinySpec, 16) };
  const expected = [];
  for (const batch of [ids, other]) expected.push(await runMicroBatch([engine!], batch, { slot: 0 }));
  // W reads the tokens long after F, when their arrays may hold others.
  const lent = { tokens: ids.tokens.slice(), targets: ids.targets.slice() };
  const losses = [(await engine!.forward(0, lent)).loss, (await engine!.forward(1, other)).loss];
  for (const array of [lent.tokens, lent.targets]) array.fill(0);
  assert.deepEqual(losses, expected.map(({ loss }) => loss));
  await engine!.backward(0, null);
  assert.equal((await engine!.forward(null, other)).loss, losses[1]);
  await engine!.backward(1, null);
  for (const slot of [1, 0]) {
    assertSameBits(await engine!.weightGrad(slot), expected[slot]!.weightGrads[0]!, `slot ${slot}`);
  }
  engine!.destroy();
});

for (const [stages, tie_word_embeddings] of [[3, false], [1, true]] as const) {
  Deno.test(`tfjs-wasm: blocks that are computed again give the same bits, ${stages} stages`, async () => {
    const spec = { ...tinySpec, tie_word_embeddings };
    const builds = buildsOf(spec, stages, { codec: "i8b64" });
    const kept = await loaded(builds, onWasm);
    const again = await loaded(builds.map((build) => ({ ...build, recompute: "block" as const })), onWasm);
    const expected = await runMicroBatch(kept, ids, { slot: 0 });
    const other = { tokens: testIds(tinySpec, 15), targets: testIds(tinySpec, 16) };
    await again[0]!.forward(0, stages === 1 ? other : { tokens: other.tokens });
    const actual = await runMicroBatch(again, ids, { slot: 1 });
    assert.deepEqual({ ...actual, weightGrads: [] }, { ...expected, weightGrads: [] });
    actual.weightGrads.forEach((grad, i) => assertSameBits(grad, expected.weightGrads[i]!, `stage ${i}`));
    destroy(...kept, ...again);
  });
}

Deno.test("tfjs-wasm: new parameters count from their load on, and free every slot", async () => {
  const builds = buildsOf(tinySpec, 1, { codec: "raw32" });
  const [engine] = await loaded(builds, onWasm), [fresh] = await loaded(builds, onWasm);
  const next = testParams(tinySpec, builds[0]!.stage, 7);
  const before = await runMicroBatch([engine!], ids, { slot: 0 });
  await engine!.forward(0, ids);
  await engine!.load(next);
  await fresh!.load(next);
  const after = await runMicroBatch([engine!], ids, { slot: 0 });
  assert.notEqual(after.loss, before.loss);
  assertSameBits(
    after.weightGrads[0]!,
    (await runMicroBatch([fresh!], ids, { slot: 0 })).weightGrads[0]!,
    "load",
  );
  destroy(engine!, fresh!);
});

function code(wanted: string): (error: unknown) => boolean {
  return (error) => error instanceof ShoalError && error.code === wanted;
}

Deno.test("tfjs-wasm: wrong input is refused with a code, and the slot stays as it was", async () => {
  const [first, second] = buildsOf(tinySpec, 3, { codec: "i8b64" });
  const [head, middle] = await loaded([first!, second!], onWasm);
  const { activation } = await head!.forward(0, { tokens: ids.tokens });
  assert.ok(activation);
  const badScale = { ...activation, payload: Uint8Array.from(activation.payload).fill(0xff, 0, 2) };
  const half = { ...activation, codec: "f16s" as const };
  for (const bad of [badScale, { ...activation, rows: 1 }, half]) {
    await assert.rejects(middle!.forward(0, { activation: bad }), code("bad-frame"));
  }
  await assert.rejects(head!.forward(1, { tokens: ids.tokens.map(() => 11) }), code("bad-corpus"));
  await assert.rejects(head!.forward(0, { tokens: ids.tokens }), /slot 0 of 2 is forward done/);
  await assert.rejects(head!.weightGrad(0), /not backward done/);
  await assert.rejects(head!.backward(0, null), /exactly the last stage/);
  await assert.rejects(head!.load(new Float32Array(3)), code("bad-state"));
  await middle!.forward(0, { activation });
  await assert.rejects(middle!.backward(0, half), code("bad-frame"));
  await middle!.backward(0, activation);
  destroy(head!, middle!);
});

Deno.test("tfjs-wasm: diverged arithmetic is an error, and the slot can be used again", async () => {
  const [build] = buildsOf(tinySpec, 3, { codec: "i8b64" });
  const engine = await onWasm(build!);
  await engine.load(testParams(tinySpec, build!.stage, 1).fill(NaN));
  await assert.rejects(engine.forward(0, { tokens: ids.tokens }), /diverged/);
  await engine.load(testParams(tinySpec, build!.stage, 1));
  await engine.forward(0, { tokens: ids.tokens });
  engine.destroy();
});

Deno.test("tfjs-wasm: a stage that WASM cannot address is refused before anything is allocated", async () => {
  const spec = { ...tinySpec, n_embd: 8192, n_inner: 32_768, n_layer: 2, n_head: 64 };
  const [build] = buildsOf(spec, 1, { codec: "raw32" });
  await assert.rejects(onWasm(build!), code("out-of-memory"));
  const [small] = await loaded(buildsOf(tinySpec, 1, { codec: "raw32" }), onWasm);
  await small!.forward(null, ids);
  small!.destroy();
});

Deno.test("tfjs-wasm: stages share one heap, and give their part back", async () => {
  const backend = await wasmBackend();
  const shape = mathShape(buildsOf(tinySpec, 1, { codec: "raw32" })[0]!);
  for (let i = 0; i < 3; i++) new WasmMath(backend, shape, 3e9).destroy();
  const first = new WasmMath(backend, shape, 3e9);
  assert.throws(() => new WasmMath(backend, shape, 2e9), code("out-of-memory"));
  first.destroy();
});

Deno.test(onAdapter(gpu, "stages on WebGPU, tfjs-wasm and the CPU agree in one pipeline"), async () => {
  const builds = buildsOf(tinySpec, 3, { codec: "raw32" });
  const cpu = await loaded(builds, onCpu);
  const expected = await runMicroBatch(cpu, ids, { slot: 0 });
  const onGpu: Create = (build) => createWgslEngine(gpu, build);
  for (const [a, b, c] of [[onGpu, onWasm, onCpu], [onWasm, onCpu, onGpu]] as const) {
    const mixed =
      (await Promise.all([loaded([builds[0]!], a), loaded([builds[1]!], b), loaded([builds[2]!], c)])).flat();
    compare(await runMicroBatch(mixed, ids, { slot: 1 }), expected, builds);
    destroy(...mixed);
  }
  destroy(...cpu);
});

Deno.test("tfjs-webgpu: a tied stage with several tiles of the vocabulary equals the CPU engine and leaves nothing", async () => {
  const spec = { ...tinySpec, n_layer: 1, tie_word_embeddings: true, vocab_size: 300 };
  for (const model of [spec, { ...spec, architecture: "gpt2" as const, n_kv_head: 4 }]) {
    await testAgainstCpu(model, {
      ...{ stages: 1, codec: "raw32" },
      create: (build) => createTfjsEngine(build, { backend: "webgpu" }),
    });
  }
  assert.equal(tf.memory().numTensors, 0);
});

/** A clock that leaps between any two looks at it, so that an engine pauses wherever it may. */
function leapingClock(): Disposable {
  const { now } = performance;
  let ms = 0;
  performance.now = () => ms += 1000;
  return { [Symbol.dispose]: () => void (performance.now = now) };
}

Deno.test("tfjs-wasm: between two layers others are heard, and operations asked for meanwhile wait their turn", async () => {
  const builds = buildsOf(tinySpec, 1, { codec: "raw32" });
  const [engine] = await loaded(builds, onWasm);
  const other = { tokens: testIds(tinySpec, 15), targets: testIds(tinySpec, 16) };
  const expected = [];
  for (const batch of [ids, other]) expected.push(await runMicroBatch([engine!], batch, { slot: 0 }));
  using _ = leapingClock();
  const order: string[] = [];
  const first = engine!.forward(0, ids).then(({ loss }) => {
    order.push("F 0");
    return loss;
  });
  const heard = new Promise<void>((resolve) => {
    setImmediate(() => {
      order.push("somebody else");
      resolve();
    });
  });
  const all = Promise.all([
    ...[first, engine!.forward(1, other).then(({ loss }) => loss)],
    ...[engine!.backward(0, null), engine!.backward(1, null)],
    ...[engine!.weightGrad(1), engine!.weightGrad(0)],
  ]);
  const [lossA, lossB, , , gradB, gradA] = await all;
  await heard;
  assert.deepEqual(order, ["somebody else", "F 0"]);
  assert.deepEqual([lossA, lossB], expected.map(({ loss }) => loss));
  assertSameBits(gradA as Float32Array, expected[0]!.weightGrads[0]!, "slot 0");
  assertSameBits(gradB as Float32Array, expected[1]!.weightGrads[0]!, "slot 1");
  engine!.destroy();
});
