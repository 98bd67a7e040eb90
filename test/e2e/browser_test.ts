// What must be shown in a real browser: the exact core's golden vectors, the link suite between two tabs and between a
// tab and Deno, every kernel, and the GPU engine against the CPU engine of the same page. Everything runs in Chromium.
import assert from "node:assert/strict";
import type { Page } from "playwright-core";
import { decodeTensor } from "../../peer/codec/codec.ts";
import { kernelSpecs } from "../../peer/gpu/kernels/index.ts";
import { CHUNK_BYTES_MAX, CHUNK_PAYLOAD_BYTES_MAX } from "../../peer/net/chunks.ts";
import { LINK_CASES } from "../../peer/net/link_suite.ts";
import { denoStack } from "../../peer/net/wrtc_deno.ts";
import type { CodecId, Encoded, ModelSpec } from "../../peer/wire/run.ts";
import golden from "../fixtures/exact/golden.json" with { type: "json" };
import { buildsOf, testIds, testParams, tinySpec } from "../kernels/engine_support.ts";
import { relL2 } from "../kernels/support.ts";
import type { StageJob, StageResult } from "./browser_entry.ts";
import { callTab, openTabs } from "./browser_support.ts";
import { type FrameNote, framesOf, LinkEnd, noteOf } from "./link_end.ts";

const MIB = 1024 * 1024;

/** As in test/kernels/engine_test.ts: f32 operations against f64 through a few layers leave some 1e-6. */
const F32_TOLERANCE = 2e-5;
/** As there: a code next to a tie may round the other way, in a few places. */
const CODE_TOLERANCE = 2e-3;

/** The native WebRTC stack frees its threads and simple-peer its timers some time after a close. */
const QUIET_MS = 400;

Deno.test("Chromium: ten steps of the exact core give the recorded hashes", async () => {
  await using tabs = await openTabs();
  assert.deepEqual(await callTab(await tabs.open(), "runGoldenScenario"), golden.hashes);
});

Deno.test("Chromium: two tabs pass the acceptance suite of links", async (test) => {
  await using tabs = await openTabs();
  const page = await tabs.open();
  for (const { name } of LINK_CASES) await test.step(name, () => callTab(page, "linkCase", name));
  assert.equal(tabs.context.pages().length, 2, "the suite ran between two tabs");
  await assert.rejects(callTab(page, "linkCase", "no such case"), /no case/);
});

function notes(sizes: readonly number[], salt: number): FrameNote[] {
  return framesOf(sizes, salt).map(noteOf);
}

Deno.test("Chromium: two separate tabs exchange frames whole and in order, both ways at once", async () => {
  const sizes = [0, 1, CHUNK_PAYLOAD_BYTES_MAX, CHUNK_PAYLOAD_BYTES_MAX + 1, CHUNK_BYTES_MAX, 7, MIB, 3];
  await using tabs = await openTabs();
  const pages: Page[] = [];
  for (const other of [1, 0]) {
    pages.push(await tabs.open((data) => void callTab(pages[other]!, "signal", data)));
  }
  const [a, b] = pages;
  await callTab(b!, "openEnd", false);
  await callTab(a!, "openEnd", true);
  const [atA, atB] = await Promise.all([
    callTab(a!, "exchange", sizes, 100),
    callTab(b!, "exchange", sizes, 200),
  ]);
  assert.deepEqual(atA, notes(sizes, 200));
  assert.deepEqual(atB, notes(sizes, 100));
});

for (const initiator of ["tab", "Deno"] as const) {
  Deno.test({
    name: `Chromium: a tab and Deno exchange frames of 1 MiB, ${initiator} first`,
    // The native addon keeps handles that the sanitizers take for leaks of the test.
    sanitizeOps: false,
    sanitizeResources: false,
    fn: () => exchangeWithDeno(initiator),
  });
}

async function exchangeWithDeno(initiator: "tab" | "Deno"): Promise<void> {
  const sizes = [MIB, MIB, 1, MIB];
  await using tabs = await openTabs();
  const early: string[] = [];
  let own: LinkEnd | undefined;
  const page = await tabs.open((data) => own ? own.link.signal(data) : void early.push(data));
  await callTab(page, "openEnd", initiator === "tab");
  own = new LinkEnd({
    initiator: initiator === "Deno",
    stack: denoStack,
    onsignal: (data) => void callTab(page, "signal", data),
  });
  for (const data of early) own.link.signal(data);
  const [atTab, atDeno] = await Promise.all([
    callTab(page, "exchange", sizes, 100),
    own.exchange(sizes, 200),
  ]);
  assert.deepEqual(atTab, notes(sizes, 200));
  assert.deepEqual(atDeno, notes(sizes, 100));
  own.link.close("test over");
  await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
}

Deno.test("Chromium: every kernel compiles, and what Chromium refuses is reported with its line", async () => {
  await using tabs = await openTabs();
  const page = await tabs.open();
  const report = await callTab(page, "compileKernels");
  assert.deepEqual(report.refused, []);
  assert.deepEqual(report.compiled, kernelSpecs.map(({ name }) => name));
  const broken = await callTab(page, "compileText", "fn main() {\n  let x = y;\n}\n");
  assert.match(broken, /^shader-invalid: .*2:\d+ .*y/s);
  // Other implementations accept this one, which is why the kernels must be compiled here too.
  const barrier = "@compute @workgroup_size(4) fn main(@builtin(local_invocation_index) i: u32) {\n" +
    "  if (i > 1u) { workgroupBarrier(); }\n}\n";
  assert.match(await callTab(page, "compileText", barrier), /^shader-invalid: .*2:\d+ .*uniform/s);
});

for (const codec of ["raw32", "f16s", "i8b64"] as const) {
  Deno.test(`Chromium: two stages on WebGPU equal the CPU engine of the same page, ${codec}`, () => {
    return compareStages(tinySpec, codec);
  });
}

/** Each stage gets the same boundary tensors on both engines, so that no difference travels to the next. */
async function compareStages(spec: ModelSpec, codec: CodecId): Promise<void> {
  await using tabs = await openTabs();
  const page = await tabs.open();
  const [first, last] = buildsOf(spec, 2, { codec }).map((build) => ({
    build,
    params: testParams(spec, build.stage, 100),
  }));
  const tokens = testIds(spec, 5);
  const targets = testIds(spec, 6);
  const start = { ...first!, input: { tokens }, gradient: null };
  const { activation } = await forward(page, start);
  const lastJob = { ...last!, input: { activation, targets }, gradient: null };
  const upper = await bothEngines(page, lastJob);
  compare(upper, codec);
  const lower = await bothEngines(page, { ...start, gradient: upper.cpu.gradient });
  compare(lower, codec);
}
