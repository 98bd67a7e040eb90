// The GPU stage engine against the double-precision engine: boundary tensors, loss, input and weight gradients;
// memory as predicted, and no GPU object made once the engine is warm.
import assert from "node:assert/strict";
import { Buffer } from "node:buffer";
import { decodeTensor } from "../../peer/codec/codec.ts";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { createWgslEngine } from "../../peer/engine/wgsl.ts";
import type { GpuDevice } from "../../peer/gpu/device.ts";
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
import { countingDevice } from "./counting.ts";
import { assertSameBits, onAdapter, relL2, testDevice } from "./support.ts";

const gpu = await testDevice();

/** Single f32 operations differ from f64 by 6e-8; three blocks of sums and exponentials leave some 1e-6. */
const F32_TOLERANCE = 2e-5;
/** A code next to a tie may round the other way: one step of 1/127 of the block's largest value, in a few places. */
const CODE_TOLERANCE = 2e-3;

const ids = { tokens: testIds(tinySpec, 5), targets: testIds(tinySpec, 6) };

async function loaded(builds: readonly StageBuild[], create: (b: StageBuild) => Promise<StageEngine>) {
  return await Promise.all(builds.map(async (build) => {
    const engine = await create(build);
    await engine.load(testParams(build.spec, build.stage, 100));
    return engine;
  }));
}

function onGpu(device: GpuDevice): (build: StageBuild) => Promise<StageEngine> {
  return (build) => createWgslEngine(device, build);
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
    const { codec, rows, cols, exponent } = wanted;
    assert.deepEqual(
      { codec: encoded.codec, rows: encoded.rows, cols: encoded.cols, exponent: encoded.exponent },
      { codec, rows, cols, exponent },
      `${what} ${i}`,
    );
    assert.equal(encoded.payload.byteLength, wanted.payload.byteLength);
    const error = relL2(values(encoded), values(wanted));
    const limit = codec === "raw32" ? F32_TOLERANCE : CODE_TOLERANCE;
    assert.ok(error <= limit, `${what} ${i}: relative error ${error} above ${limit}`);
  }
}

function compare(actual: MicroBatch, expected: MicroBatch): void {
  compareBoundaries(actual.activations, expected.activations, "activation");
  compareBoundaries(actual.gradients, expected.gradients, "gradient");
  assert.ok(
    Math.abs(actual.loss - expected.loss) <= F32_TOLERANCE,
    `${actual.loss} for loss ${expected.loss}`,
  );
  for (const [i, grad] of actual.weightGrads.entries()) {
    const error = relL2(grad, expected.weightGrads[i]!);
    assert.ok(error <= F32_TOLERANCE, `weight gradient of stage ${i}: relative error ${error}`);
  }
}

function assertSameMicroBatch(actual: MicroBatch, expected: MicroBatch, what: string): void {
  assert.equal(actual.loss, expected.loss, `${what}: loss`);
  for (const [i, grad] of actual.weightGrads.entries()) {
    assertSameBits(grad, expected.weightGrads[i]!, `${what}: weight gradient of stage ${i}`);
  }
  for (const key of ["activations", "gradients"] as const) {
    const same = actual[key].every((e, i) => Buffer.compare(e.payload, expected[key][i]!.payload) === 0);
    assert.ok(same, `${what}: ${key}`);
  }
}

async function testAgainstCpu(spec: ModelSpec, stages: number, codec: TestCodec): Promise<void> {
  const builds = buildsOf(spec, stages, { codec });
  const cpu = await loaded(builds, (build) => Promise.resolve(createCpuEngine(build)));
  const wgsl = await loaded(builds, onGpu(gpu));
  const expected = await runMicroBatch(cpu, ids, { slot: 0 });
  const first = await runMicroBatch(wgsl, ids, { slot: 0, fed: expected });
  compare(first, expected);
  const second = await runMicroBatch(wgsl, ids, { slot: 1, fed: expected });
  assertSameMicroBatch(second, first, "another slot");
  const alone = await runMicroBatch(wgsl, ids, { slot: 0 });
  const drift = Math.abs(alone.loss - expected.loss);
  assert.ok(drift <= CODE_TOLERANCE, `the pipeline on its own boundaries: loss off by ${drift}`);
  for (const engine of [...cpu, ...wgsl]) engine.destroy();
}

for (const codec of ["raw32", "f16s", "i8b64", "mixed"] as const) {
  Deno.test(onAdapter(gpu, `three stages equal the CPU engine, ${codec}`), () => {
    return testAgainstCpu(tinySpec, 3, codec);
  });
}

Deno.test(onAdapter(gpu, "a tied single stage equals the CPU engine"), () => {
  return testAgainstCpu({ ...tinySpec, tie_word_embeddings: true }, 1, "raw32");
});

Deno.test(onAdapter(gpu, "two tied stages equal the CPU engine"), () => {
  return testAgainstCpu({ ...tinySpec, tie_word_embeddings: true, n_layer: 2 }, 2, "i8b64");
});

Deno.test(onAdapter(gpu, "odd widths and several vocabulary tiles equal the CPU engine"), async () => {
  const odd = {
    ...tinySpec,
    n_head: 3,
    n_kv_head: 1,
    n_embd: 18,
    n_inner: 7,
    block_size: 5,
    vocab_size: 2150,
  };
  const spec = { ...odd, n_layer: 1 };
  const build = buildsOf(spec, 1, { codec: "raw32", slots: 1 });
  const [cpu] = await loaded(build, (b) => Promise.resolve(createCpuEngine(b)));
  const [wgsl] = await loaded(build, onGpu(gpu));
  const batch = { tokens: testIds(spec, 7), targets: testIds(spec, 8) };
  compare(await runMicroBatch([wgsl!], batch, { slot: 0 }), await runMicroBatch([cpu!], batch, { slot: 0 }));
  wgsl!.destroy();
});

Deno.test(onAdapter(gpu, "evaluation gives the forward's bits and keeps the slots"), async () => {
  const [build] = buildsOf(tinySpec, 1, { codec: "raw32" });
  const [engine] = await loaded([build!], onGpu(gpu));
  const { loss } = await engine!.forward(0, ids);
  const other = { tokens: testIds(tinySpec, 15), targets: testIds(tinySpec, 16) };
  await engine!.forward(null, other);
  assert.equal((await engine!.forward(null, ids)).loss, loss);
  await engine!.backward(0, null);
  const grad = await engine!.weightGrad(0);
  const again = await runMicroBatch([engine!], ids, { slot: 1 });
  assertSameBits(again.weightGrads[0]!, grad, "weight gradient after evaluations");
  engine!.destroy();
});

Deno.test(onAdapter(gpu, "memory is predicted, and a warm step makes no GPU object"), async () => {
  const alike = buildsOf(tinySpec, 3, { codec: "i8b64" });
  for (const build of [...alike, ...buildsOf(tinySpec, 3, { codec: "mixed" })]) {
    const { counted, counts } = countingDevice(gpu);
    const [engine] = await loaded([build], onGpu(counted));
    const { params, activations, scratch } = engine!.memory();
    assert.equal(counts.bufferBytes, params + activations + scratch);
    assert.ok(params > 0 && activations > 0 && scratch > 0);
    engine!.destroy();
  }
  const { counted, counts } = countingDevice(gpu);
  const engines = await loaded(buildsOf(tinySpec, 3, { codec: "i8b64" }), onGpu(counted));
  await runMicroBatch(engines, ids, { slot: 0 });
  const { created, submits } = counts;
  await runMicroBatch(engines, ids, { slot: 1 });
  assert.equal(counts.created, created, "objects made in a warm step");
  assert.equal(counts.submits - submits, 9, "one submit for each of F, B, W in three stages");
  for (const engine of engines) engine.destroy();
});

Deno.test(onAdapter(gpu, "wrong input is refused with a code"), async () => {
  const [first, second] = buildsOf(tinySpec, 3, { codec: "i8b64" });
  const [head, middle] = await loaded([first!, second!], onGpu(gpu));
  const { activation } = await head!.forward(0, { tokens: ids.tokens });
  assert.ok(activation);
  const code = (wanted: string) => (error: unknown) => error instanceof ShoalError && error.code === wanted;
  const badScale = { ...activation, payload: Uint8Array.from(activation.payload).fill(0xff, 0, 2) };
  await assert.rejects(middle!.forward(0, { activation: badScale }), code("bad-frame"));
  await assert.rejects(middle!.forward(0, { activation: { ...activation, rows: 1 } }), code("bad-frame"));
  await assert.rejects(
    middle!.forward(0, { activation: { ...activation, codec: "f16s" } }),
    code("bad-frame"),
  );
  await assert.rejects(head!.forward(1, { tokens: ids.tokens.map(() => 11) }), code("bad-corpus"));
  await assert.rejects(head!.forward(0, { tokens: ids.tokens }), /slot 0 of 2 is forward done/);
  await assert.rejects(head!.weightGrad(0), /not backward done/);
  head!.destroy();
  middle!.destroy();
});

Deno.test(onAdapter(gpu, "diverged arithmetic and a lost device are coded errors"), async () => {
  const own = await testDevice();
  const [build] = buildsOf(tinySpec, 3, { codec: "i8b64" });
  const engine = await createWgslEngine(own, build!);
  await engine.load(testParams(tinySpec, build!.stage, 1).fill(NaN));
  await assert.rejects(engine.forward(0, { tokens: ids.tokens }), /diverged/);
  own.destroy();
  assert.equal(typeof await own.lost, "string");
  await assert.rejects(engine.forward(0, { tokens: ids.tokens }), (error) => {
    return error instanceof ShoalError && error.code === "device-lost";
  });
});
