// The bench over slow links: its clock, its links, what it takes for fixed costs, its predictions, and a small run of real peers.
// How quick this machine is proves nothing here.
import assert from "node:assert/strict";
import { ManualClock } from "../peer/net/clock.ts";
import { createLinkHost, type RelayingLinkHost } from "../peer/net/host.ts";
import type { View } from "../peer/wire/run.ts";
import { measure, parseFlags } from "./wan.ts";
import { PreciseClock } from "./wan_clock.ts";
import type { TracedOp } from "./wan_engine.ts";
import { WanNetwork } from "./wan_links.ts";
import { type Costs, gapsOf, midmean, NO_OVERHEADS, predict } from "./wan_predict.ts";
import { CASES, chimeraBubble, type Row, ruledOut, summarise, table } from "./wan_rows.ts";
import { rowOf as realRowOf, tracedSteps } from "./wan_real.ts";
import { isEven, latenessOf } from "./wan_run.ts";

Deno.test("wan: the clock runs what is due in order, never early, and not what was called off", async () => {
  const clock = new PreciseClock();
  const begun = clock.now();
  const done: string[] = [];
  const early: string[] = [];
  const at = (ms: number, name: string) =>
    clock.at(begun + ms, () => {
      done.push(name);
      if (clock.now() - begun < ms) early.push(name);
    });
  at(9, "c");
  at(2.5, "a");
  const callOff = at(6, "never");
  at(4, "b");
  callOff();
  await clock.until(begun + 12);
  assert.deepEqual([done, early], [["a", "b", "c"], []]);
  assert.ok(clock.takeLag().maxMs >= 0);
});

Deno.test("wan: two hosts link through signals, frames take the delay and the rate, and are counted", async () => {
  const clock = new ManualClock();
  const network = new WanNetwork({ delayMs: 30, bytesPerS: 1_000_000, clock });
  const hosts = new Map<string, RelayingLinkHost>();
  for (const self of ["a", "b"]) {
    const host = createLinkHost({
      ...{ selfId: self, clock, relay: null },
      createLink: (remote, options) => network.createLink(self, remote, options),
    });
    host.onsignal = (remote, data) => hosts.get(remote)!.signal(self, data);
    hosts.set(self, host);
  }
  const [a, b] = [hosts.get("a")!, hosts.get("b")!];
  const arrived: number[] = [];
  const states: string[] = [];
  b.onframe = () => arrived.push(clock.now());
  b.onstate = (_, state) => states.push(state);
  b.connect("a", { initiator: false, iceServers: [] });
  a.connect("b", { initiator: true, iceServers: [] });
  await Promise.resolve();
  a.send("b", new Uint8Array(10_000), 0);
  clock.advance(39);
  assert.deepEqual([arrived.length, states.at(-1)], [0, "open"]);
  clock.advance(2);
  assert.equal(arrived.length, 1);
  assert.ok(network.bytes > 10_000, `${network.bytes}`);
  a.close("b", "the test is over");
  clock.advance(400);
  assert.equal(states.at(-1), "closed");
});

/** Operations of one peer: "F0 10-30" is stage 0's forward from 10 to 30 ms. */
function ops(text: string, peer = "p"): TracedOp[] {
  return text.split(", ").map((word) => {
    const [, kind, stage, start, end] = /^([FBW])(\d) (\S+)-(\S+)$/.exec(word)!;
    return { peer, stage: Number(stage), kind: kind as "F", startMs: Number(start), endMs: Number(end) };
  });
}

Deno.test("wan: a gap counts as overhead only where the later operation had nothing to wait for", () => {
  const first = gapsOf({ ops: ops("F0 0-10, F0 11-20, B0 50-60, W0 62-70, W0 73-80, F0 84-90"), nextMs: 99 });
  assert.deepEqual(first, { F: [1], B: [2], W: [3] });
  const later = gapsOf({ ops: ops("F1 0-10, F1 30-40, W1 50-60, B1 61-70, W2 71-80"), nextMs: 99 });
  assert.deepEqual(later, { F: [], B: [], W: [] });
  assert.equal(midmean([900, 1, 2, 3]), 2.5);
  assert.ok(Number.isNaN(midmean([])));
});

function view(schedule: View["schedule"], stages: [peer: string, microBatches: number[]][][]): View {
  return {
    ...{ gen: 1, cut: 1, baseStep: 0, schedule, codecForward: "raw32", codecBackward: "raw32" },
    stages: stages.map((replicas, index) => ({
      ...{ index, firstLayer: index, endLayer: index + 1, embed: index === 0, head: false, inflight: 9 },
      replicas: replicas.map(([peer, microBatches]) => ({ peer, microBatches })),
    })),
  };
}

const COSTS: Costs = {
  ...{ layerMs: { F: 10, B: 20, W: 30 }, fused: false, wire: { delayMs: 5, bytesPerS: 1000 } },
  ...{ messageBytes: 7, sumBytes: 0, overheads: NO_OVERHEADS },
};

Deno.test("wan: predictions add up by hand, with overheads, fused backward, two stages a peer, and sums", () => {
  const line = view("dynamic", [[["a", [0]]], [["b", [0]]]]);
  // Forward twice, backward twice, a weight gradient; 5 ms and 7 ms for each of two messages.
  const whole = 10 + 12 + 10 + 20 + 12 + 20 + 30;
  assert.equal(Math.round(predict(line, COSTS).stepMs), whole);
  const overheads = { op: { F: 1, B: 2, W: 4 }, hop: 8, commit: 100 };
  assert.equal(Math.round(predict(line, { ...COSTS, overheads }).stepMs), whole + 2 + 4 + 4 + 16 + 100);
  assert.equal(Math.round(predict(line, { ...COSTS, fused: true }).stepMs), whole + 30);
  const alone = view("dynamic", [[["a", [0]]], [["a", [0]]]]);
  assert.equal(Math.round(predict(alone, COSTS).stepMs), 120);
  const shared = view("dynamic", [[["a", [0]], ["b", [1]]]]);
  assert.equal(Math.round(predict(shared, { ...COSTS, sumBytes: 50 }).stepMs), 60 + 5 + 50);
  assert.equal(Math.round(predict(shared, { ...COSTS, sumBytes: 50 }).pipelineMs), 60);
});

Deno.test("wan: a placed schedule is predicted in its own order, backward first and sent before the weights", () => {
  const placed = view("zb-h1", [[["a", [0, 1]]], [["b", [0, 1]]]]);
  const said = predict(placed, { ...COSTS, wire: { delayMs: 0 } });
  // Stage 0 ends last: its first gradient comes after a forward of each stage and B of stage 1; then it runs B, W, B, W.
  assert.equal(Math.round(said.stepMs), 10 + 10 + 20 + 20 + 30 + 20 + 30);
  // Two stages a peer and one micro-batch: four forwards; then each B waits for its peer's W before it, not for the other's.
  const looped = view("breadth-first", [[["a", [0]]], [["b", [0]]], [["a", [0]]], [["b", [0]]]]);
  assert.equal(
    Math.round(predict(looped, { ...COSTS, wire: { delayMs: 0 } }).stepMs),
    40 + 20 + 20 + 30 + 20 + 30,
  );
});

Deno.test("wan: where steps overlap a step is the work of the slowest peer, and its commit is hidden", () => {
  const overheads = { op: { F: 1, B: 2, W: 4 }, hop: 8, commit: 100 };
  const alone = predict(view("2bw", [[["a", [0, 1]]]]), { ...COSTS, overheads });
  assert.deepEqual([Math.round(alone.stepMs), alone.bubble.toFixed(6)], [2 * 67, "0.000000"]);
  const shared = predict(view("2bw", [[["a", [0, 1, 2, 3]]], [["b", [0, 1, 2, 3]]]]), COSTS);
  assert.equal(Math.round(shared.stepMs), 240);
});

Deno.test("wan: peers are even if they compute alike, and a step is late by its operations' mean", () => {
  assert.ok(isEven(view("dynamic", [[["a", [0]], ["b", [1]]], [["b", [0]], ["a", [1]]]])));
  assert.ok(!isEven(view("dynamic", [[["a", [0]]], [["b", [0]]], [["b", [0]]]])));
  const step = { ops: ops("F0 0-11, W0 20-55"), nextMs: 60 };
  const late = latenessOf(step, view("dynamic", [[["p", [0]]]]), { layerMs: COSTS.layerMs, fused: false });
  assert.ok(Math.abs(late - 6 / 40) < 1e-9, `${late}`);
});

function row(setting: string, schedule: string, changes: Partial<Row>): Row {
  return {
    ...{
      setting,
      schedule,
      followed: "dynamic" as const,
      peers: 8,
      microBatches: 32,
      stepMs: 100,
      predictedMs: 100,
      error: 0,
    },
    ...{ tokensPerS: 100, idealMs: 90, bubble: 0.1, predictedBubble: 0.1, commitMs: 1 },
    ...{ late: 0, lagP95Ms: 0, disturbed: 0, ...changes },
  };
}

Deno.test("wan: the summary compares like with like, and what was not measured is null", () => {
  const rows = [
    row("0ms", "dynamic", { tokensPerS: 99 }),
    row("0ms", "dynamic-looped", { tokensPerS: 110, error: -0.07 }),
    row("0ms", "zb-v", { tokensPerS: 100 }),
    row("0ms", "chimera-paper", { tokensPerS: 500, bubble: 0.3 }),
    // Whichever it is, it is measured already.
    row("0ms", "auto", { tokensPerS: 105, followed: "dualpipe" }),
    // Another training is no rival.
    row("0ms", "2bw", { tokensPerS: 200 }),
    row("50ms", "2bw", { tokensPerS: 90 }),
    row("50ms", "dynamic", { tokensPerS: 60 }),
    row("50ms", "1f1b", { tokensPerS: 40 }),
    row("50ms", "1f1b-fused", { tokensPerS: 30, error: 0.02 }),
  ];
  const { chimera_bubble_error, ...rest } = summarise(rows);
  assert.deepEqual(rest, {
    ...{ dynamic_vs_1f1b_50ms: 2, dynamic_vs_live_1f1b_50ms: 1.5, dynamic_vs_best_0ms: 1.1 },
    ...{ dynamic_line_vs_best_0ms: 0.99, best_0ms: "zb-v", worst_prediction_error: 0.07 },
    ...{ delayed_vs_dynamic_50ms: 1.5, auto_vs_best_0ms: 1.05, auto_0ms: "dualpipe" },
  });
  assert.equal(chimeraBubble(8), 6 / 18);
  assert.ok(Math.abs(chimera_bubble_error! - 0.1) < 1e-9, `${chimera_bubble_error}`);
  for (const value of Object.values(summarise([]))) assert.equal(value, null);
  assert.equal(summarise(rows, [{ error: -0.2 }]).worst_prediction_error, 0.2);
  assert.match(table(rows), /\n0ms +auto: dualpipe +100 /);
  assert.match(table(rows), /^links +schedule +step ms .*\n0ms +dynamic +100 +100 +0\.0 % +99 +1\.11 /);
});

Deno.test("wan: of real processes the steps count whose prediction is known", () => {
  const line = (step: number, step_s: number, predicted_s?: number) =>
    JSON.stringify({ event: "step", step, step_s, bubble: 0.5, ...(predicted_s ? { predicted_s } : {}) });
  const text = [
    line(1, 9),
    line(2, 0.22, 0.2),
    '{"event":"eval"}',
    line(3, 0.2, 0.2),
    line(4, 0.3, 0.25),
    '{"ev',
  ];
  const lines = tracedSteps(text.join("\n"));
  assert.deepEqual(lines.map(({ step }) => step), [2, 3, 4]);
  const found = realRowOf("1f1b", lines);
  assert.deepEqual([found.stepMs, found.predictedMs, found.steps], [220, 200, 3]);
  assert.ok(Math.abs(found.error - 0.1) < 1e-9, `${found.error}`);
});

Deno.test("wan: sizes that rule a schedule out are told in words before anything starts", () => {
  const reason = (name: string, peers: number, N: number) =>
    ruledOut(CASES.find((it) => it.name === name)!, peers, N);
  assert.match(reason("dualpipe", 4, 6)!, /dualpipe needs .* N even, at least 2P/);
  assert.match(reason("chimera", 3, 6)!, /chimera needs P even/);
  assert.equal(reason("chimera", 4, 8), null);
  assert.equal(reason("dynamic-looped", 3, 1), null);
});

Deno.test("wan: flags have defaults and bounds, --quick changes the defaults only", () => {
  const full = parseFlags([]);
  assert.deepEqual([full.peers, full.microBatches, full.opMs, full.steps], [8, 32, 20, 3]);
  assert.deepEqual([full.settings.length, full.cases.length], [5, CASES.length + 1]);
  assert.deepEqual([full.real, parseFlags(["--quick"]).real], [20, 0]);
  const quick = parseFlags(["--quick", "--peers=3", "--schedules=zb-v,dynamic"]);
  assert.deepEqual([quick.peers, quick.microBatches, quick.settings.map(({ name }) => name)], [3, 8, [
    "0ms",
    "50ms",
  ]]);
  assert.deepEqual(quick.cases.map(({ name }) => name), ["dynamic", "zb-v"]);
  assert.throws(() => parseFlags(["--settings=1ms"]), /--settings must name some of 0ms, .* got "1ms"/);
  assert.throws(() => parseFlags(["--peers=1"]), /--peers must be a whole number from 2 to 32, got "1"/);
  assert.throws(
    () => parseFlags(["--schedule=1f1b"]),
    /unknown flag "--schedule" \(did you mean "--schedules"\?\)/,
  );
});

Deno.test("wan: two real peers train a few steps of each kind, and every row has what it should", async () => {
  const flags = parseFlags([
    ...["--peers=2", "--micro-batches=4", "--op-ms=6", "--steps=1"],
    ...["--settings=10ms", "--schedules=dynamic,dynamic-looped,chimera,1f1b-fused,interleaved"],
  ]);
  const { rows, skipped, overheads } = await measure(flags, () => {});
  assert.deepEqual(skipped, []);
  assert.deepEqual(rows.map((it) => it.schedule), [
    ...["dynamic", "interleaved", "chimera", "dynamic-looped", "1f1b-fused"],
  ]);
  assert.ok([...Object.values(overheads.op), overheads.hop, overheads.commit].every(Number.isFinite));
  for (const it of rows) {
    assert.deepEqual([it.peers, it.microBatches, it.idealMs], [2, 4, 72], it.schedule);
    // Two hops at least lie on every step's way. What it really takes is the machine's affair.
    assert.ok(it.predictedMs > it.idealMs, `${it.schedule}: ${it.predictedMs}`);
    assert.ok(it.stepMs > 0 && it.bubble > 0 && it.bubble < 1 && it.tokensPerS > 0, it.schedule);
  }
});
