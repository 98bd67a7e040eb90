// What must be shown in a real browser: the exact core's golden vectors, the link suite between two tabs and between a
// tab and Deno, every kernel, and the GPU engine against the CPU engine of the same page. Everything runs in Chromium.
import assert from "node:assert/strict";
import type { Page } from "playwright";
import { decodeTensor } from "../../peer/codec/codec.ts";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild } from "../../peer/engine/engine.ts";
import { kernelSpecs } from "../../peer/gpu/kernels/index.ts";
import { matmulSpecs } from "../../peer/gpu/kernels/matmul_family.ts";
import { CHUNK_BYTES_MAX, CHUNK_PAYLOAD_BYTES_MAX } from "../../peer/net/chunks.ts";
import { LINK_CASES } from "../../peer/net/link_suite.ts";
import { denoStack } from "../../peer/net/wrtc_deno.ts";
import type { CodecId, Encoded, ModelSpec } from "../../peer/wire/run.ts";
import type { EngineName } from "../../peer/wire/status.ts";
import golden from "../fixtures/exact/golden.json" with { type: "json" };
import {
  buildsOf,
  type MicroBatch,
  runMicroBatch,
  testIds,
  testParams,
  tinySpec,
} from "../kernels/engine_support.ts";
import { relL2 } from "../kernels/support.ts";
import type { StageJob, StageResult } from "./browser_entry.ts";
import { callTab, closeBrowser, openTabs, SHARED_BROWSER, type Tabs } from "./browser_support.ts";
import { type FrameNote, framesOf, LinkEnd, noteOf } from "./link_end.ts";

const MIB = 1024 * 1024;

/** As in test/kernels/engine_test.ts: f32 operations against f64 through a few layers leave some 1e-6. */
const F32_TOLERANCE = 2e-5;
/** As in test/kernels/halves_engine_test.ts. */
const F16_TOLERANCE = 6e-3;
/** As there: a code next to a tie may round the other way, in a few places. */
const CODE_TOLERANCE = 2e-3;

/** The native WebRTC stack frees its threads and simple-peer its timers some time after a close. */
const QUIET_MS = 400;

Deno.test.afterAll(closeBrowser);

/** A test with a fresh context, which also fails on an error that no code of a tab caught. */
function tabTest(name: string, run: (tabs: Tabs, test: Deno.TestContext) => Promise<void>): void {
  Deno.test(`Chromium: ${name}`, SHARED_BROWSER, async (test) => {
    await using tabs = await openTabs();
    await run(tabs, test);
    assert.deepEqual(tabs.errors, [], "uncaught in a tab");
  });
}

tabTest("ten steps of the exact core give the recorded hashes", async (tabs) => {
  assert.deepEqual(await callTab(await tabs.open(), "runGoldenScenario"), golden.hashes);
});

tabTest("two tabs pass the acceptance suite of links", async (tabs, test) => {
  const page = await tabs.open();
  for (const { name } of LINK_CASES) await test.step(name, () => callTab(page, "linkCase", name));
  assert.equal(tabs.context.pages().length, 2, "the suite ran between two tabs");
  await assert.rejects(callTab(page, "linkCase", "no such case"), /no case/);
});

/**
 * Hands a signal to the tab's end of a link. What is still under way when the test ends has nowhere to go; a signal
 * lost before that shows as a link that never opens.
 */
function signalTo(page: Page, data: string): void {
  callTab(page, "signal", data).catch(() => {});
}

function notes(sizes: readonly number[], salt: number): FrameNote[] {
  return framesOf(sizes, salt).map(noteOf);
}

tabTest("two separate tabs exchange frames whole and in order, both ways at once", async (tabs) => {
  const sizes = [0, 1, CHUNK_PAYLOAD_BYTES_MAX, CHUNK_PAYLOAD_BYTES_MAX + 1, CHUNK_BYTES_MAX, 7, MIB, 3];
  const pages: Page[] = [];
  for (const other of [1, 0]) pages.push(await tabs.open((data) => signalTo(pages[other]!, data)));
  const [a, b] = [pages[0]!, pages[1]!];
  await callTab(b, "openEnd", false);
  await callTab(a, "openEnd", true);
  const [atA, atB] = await Promise.all([
    callTab(a, "exchange", sizes, 100),
    callTab(b, "exchange", sizes, 200),
  ]);
  assert.deepEqual(atA, notes(sizes, 200));
  assert.deepEqual(atB, notes(sizes, 100));
});

for (const initiator of ["tab", "Deno"] as const) {
  tabTest(`a tab and Deno exchange frames of 1 MiB, ${initiator} first`, (tabs) => {
    return exchangeWithDeno(tabs, initiator);
  });
}

async function exchangeWithDeno(tabs: Tabs, initiator: "tab" | "Deno"): Promise<void> {
  const sizes = [MIB, MIB, 1, MIB];
  const made = Promise.withResolvers<LinkEnd>();
  const page = await tabs.open((data) => void made.promise.then((end) => end.link.signal(data)));
  await callTab(page, "openEnd", initiator === "tab");
  const own = new LinkEnd({
    initiator: initiator === "Deno",
    stack: denoStack,
    onsignal: (data) => signalTo(page, data),
  });
  made.resolve(own);
  const [atTab, atDeno] = await Promise.all([
    callTab(page, "exchange", sizes, 100),
    own.exchange(sizes, 200),
  ]);
  assert.deepEqual(atTab, notes(sizes, 200));
  assert.deepEqual(atDeno, notes(sizes, 100));
  own.link.close("test over");
  await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
}

tabTest("every kernel compiles, and what does not is refused with its line", async (tabs, test) => {
  const page = await tabs.open();
  const report = await callTab(page, "compileKernels");
  await test.step(`every kernel [${report.adapter}]`, () => {
    assert.deepEqual(report.refused, []);
    assert.deepEqual(report.compiled, kernelSpecs.map(({ name }) => name));
  });
  // In the same tab, whose device has compiled them: shared tiles take a software adapter seconds each.
  await test.step("every matrix product gives the reference's sums, and tuning leaves none out", async () => {
    const { checked, wrong } = await callTab(page, "checkProducts");
    assert.deepEqual(wrong, []);
    // Products in halves are not measured: they take f32's choice. Their sums are tested in test/kernels.
    const floats = matmulSpecs.map(({ name }) => name).filter((name) => !name.includes("halves"));
    assert.deepEqual(checked.toSorted(), floats.toSorted());
    const result = await callTab(page, "tuneStage", buildsOf(tinySpec, 1, { codec: "raw32" })[0]!);
    assert.deepEqual(result.excluded, []);
    assert.ok(
      result.choices.length > 0 && result.choices.every(({ gflops }) => gflops > 0),
      JSON.stringify(result),
    );
  });
  const broken = await callTab(page, "compileText", "fn main() {\n  let x = y;\n}\n");
  assert.match(broken, /^shader-invalid: .*2:\d+ .*y/s);
  // Other implementations accept this one, which is why the kernels must be compiled here too.
  const barrier = "@compute @workgroup_size(4) fn main(@builtin(local_invocation_index) i: u32) {\n" +
    "  if (i > 1u) { workgroupBarrier(); }\n}\n";
  assert.match(await callTab(page, "compileText", barrier), /^shader-invalid: .*2:\d+ .*uniform/s);
});

tabTest("two stages on WebGPU equal the CPU engine of the same page", async (tabs, test) => {
  const page = await tabs.open();
  for (const codec of ["raw32", "f16s", "i8b64"] as const) {
    await test.step(codec, () => compareStages(page, tinySpec, codec));
  }
  const gpt2: ModelSpec = { ...tinySpec, architecture: "gpt2", n_kv_head: 4, tie_word_embeddings: true };
  await test.step("a GPT-2", () => compareStages(page, gpt2, "raw32"));
});

tabTest("two stages in halves equal the CPU engine within f16, and an overflow shows", async (tabs) => {
  const page = await tabs.open();
  const spec = { ...tinySpec, n_head: 2, n_kv_head: 1 };
  for (const job of await stageJobs(spec, "raw32")) {
    const halves = { ...job, build: { ...job.build, dtype: "f16" as const } };
    const cpu = await callTab(page, "runStage", "cpu", job);
    const actual = await callTab(page, "runStage", "wgsl", { ...halves, lossScale: 12 });
    for (const key of ["activation", "gradient"] as const) {
      const [wanted, found] = [cpu[key], actual[key]];
      if (wanted) closeTo(values(found!), values(wanted), F16_TOLERANCE);
    }
    assert.ok(Math.abs((actual.loss ?? 0) - (cpu.loss ?? 0)) <= F16_TOLERANCE, `loss ${actual.loss}`);
    closeTo(actual.weightGrad, cpu.weightGrad, F16_TOLERANCE);
    const over = await callTab(page, "runStage", "wgsl", { ...halves, lossScale: 40 });
    assert.ok(over.weightGrad.some((value) => !Number.isFinite(value)), "no value tells of the overflow");
    if (over.gradient) assert.ok(values(over.gradient).every(Number.isFinite), "what leaves is sane");
  }
});

tabTest("two stages on tfjs' WASM backend equal the CPU engine of the same page", async (tabs) => {
  await compareStages(await tabs.open(), tinySpec, "i8b64", "tfjs-wasm");
});

/** As small as it gets: tfjs compiles a shader per shape, and a software adapter takes long over each. */
const MINIMAL = { n_layer: 2, n_head: 1, n_kv_head: 1, n_embd: 2, n_inner: 2, block_size: 2, vocab_size: 3 };

tabTest("two stages on tfjs' WebGPU backend equal the CPU engine of the same page", async (tabs) => {
  await compareStages(await tabs.open(), { ...tinySpec, ...MINIMAL }, "raw32", "tfjs-webgpu");
});

/** Each stage gets the same boundary tensors on both engines, so that no difference travels to the next. */
async function compareStages(
  page: Page,
  spec: ModelSpec,
  ...[codec, engine = "wgsl"]: [CodecId, EngineName?]
): Promise<void> {
  for (const job of await stageJobs(spec, codec)) {
    const cpu = await callTab(page, "runStage", "cpu", job);
    const actual = await callTab(page, "runStage", engine, job);
    assert.match(actual.engine, new RegExp(`^${engine}`));
    compare(actual, cpu);
  }
}

/** A micro-batch of two stages, each with what the CPU engine's other one hands it. */
async function stageJobs(spec: ModelSpec, codec: CodecId): Promise<StageJob[]> {
  const builds = buildsOf(spec, 2, { codec });
  const params = builds.map(({ stage }) => testParams(spec, stage, 100));
  const ids = { tokens: testIds(spec, 5), targets: testIds(spec, 6) };
  const { activations: [activation], gradients: [gradient] } = await boundaries(builds, params, ids);
  const { tokens, targets } = ids;
  return [
    { build: builds[0]!, params: params[0]!, input: { tokens }, gradient: gradient! },
    { build: builds[1]!, params: params[1]!, input: { activation: activation!, targets }, gradient: null },
  ];
}

function closeTo(actual: Float32Array, expected: Float32Array, limit: number): void {
  const error = relL2(actual, expected);
  assert.ok(error <= limit, `relative error ${error} above ${limit}`);
}

/** What crosses the boundary of the two stages, made here by the CPU engine. */
async function boundaries(
  builds: readonly StageBuild[],
  params: readonly Float32Array[],
  ids: { tokens: Uint32Array; targets: Uint32Array },
): Promise<MicroBatch> {
  const engines = builds.map(createCpuEngine);
  for (const [i, engine] of engines.entries()) await engine.load(params[i]!);
  const result = await runMicroBatch(engines, ids, { slot: 0 });
  for (const engine of engines) engine.destroy();
  return result;
}

function compare(actual: StageResult, expected: StageResult): void {
  compareBoundary(actual.activation ?? null, expected.activation ?? null, "activation");
  compareBoundary(actual.gradient, expected.gradient, "boundary gradient");
  assert.equal(typeof actual.loss, typeof expected.loss);
  const drift = Math.abs((actual.loss ?? 0) - (expected.loss ?? 0));
  assert.ok(drift <= F32_TOLERANCE, `loss ${actual.loss}, expected ${expected.loss}`);
  assert.ok(expected.weightGrad.some((value) => value !== 0), "the weight gradient is all zero");
  const error = relL2(actual.weightGrad, expected.weightGrad);
  assert.ok(error <= F32_TOLERANCE, `weight gradient: relative error ${error}`);
}

function compareBoundary(actual: Encoded | null, expected: Encoded | null, what: string): void {
  if (actual === null || expected === null) return assert.equal(actual, expected, what);
  const { payload, ...header } = expected;
  assert.deepEqual(
    { ...actual, payload: payload.length },
    { ...header, payload: actual.payload.length },
    what,
  );
  const error = relL2(values(actual), values(expected));
  const limit = expected.codec === "raw32" ? F32_TOLERANCE : CODE_TOLERANCE;
  assert.ok(error <= limit, `${what}: relative error ${error} above ${limit}`);
}

function values(encoded: Encoded): Float32Array {
  const decoded = decodeTensor(encoded);
  assert.ok(decoded.ok, "an engine's boundary tensor decodes");
  return decoded.value;
}
