// The picture of a step as data: bars where the operations were, waits between them, words that say the same, and never more
// than can be drawn.
import assert from "node:assert/strict";
import type { StepTrace, TraceLane, TraceOp } from "../peer/wire/status.ts";
import { fixtures } from "./fixtures.ts";
import { adminScreen } from "./view_model_admin.ts";
import { BARS_MAX, type GanttView, ganttView, summaryOf } from "./view_model_gantt.ts";

function op(kind: TraceOp["kind"], startMs: number, endMs: number, part: Partial<TraceOp> = {}): TraceOp {
  return { kind, stage: 0, microBatch: 0, startMs, endMs, waitMs: 0, linkWaitMs: 0, ...part };
}

function lane(peer: string, ops: TraceOp[]): TraceLane {
  const busyMs = ops.reduce((sum, it) => sum + it.endMs - it.startMs, 0);
  return { peer, ops, dropped: 0, busyMs, waitMs: 0, linkWaitMs: 0 };
}

function traceOf(lanes: TraceLane[], part: Partial<StepTrace> = {}): StepTrace {
  const endMs = Math.max(...lanes.flatMap(({ ops }) => ops.map((it) => it.endMs)));
  return {
    ...{ step: 7, gen: 1, stages: 1, microBatches: 1, measuredMs: 100, predictedMs: null, bubble: 0.25 },
    ...{ startMs: 0, endMs, lanes },
    ...part,
  };
}

function view(trace: StepTrace): GanttView {
  return ganttView(trace) ?? assert.fail("nothing to draw");
}

function shapes(drawn: GanttView, row = 0): [string, number, number][] {
  return drawn.rows[row]!.bars.map((
    { kind, x, width },
  ) => [kind, Math.round(x * 100), Math.round(width * 100)]);
}

Deno.test("gantt: without a trace there is no picture", () => {
  assert.equal(ganttView(null), null);
  assert.equal(ganttView(traceOf([lane("a", [op("F", 0, 1)])], { lanes: [] })), null);
});

Deno.test("gantt: operations, waits for others and for links, and the idle end, each where it was", () => {
  const ops = [
    op("F", 20, 40, { waitMs: 20, linkWaitMs: 5 }),
    op("B", 50, 60, { waitMs: 10, linkWaitMs: 10 }),
    op("W", 60.5, 70, { waitMs: 0.5 }),
  ];
  const drawn = view(traceOf([lane("a", ops)], { endMs: 90 }));
  assert.deepEqual(shapes(drawn), [
    ...[["idle", 0, 15], ["link", 15, 5], ["F", 20, 20], ["link", 40, 10]],
    ...[["B", 50, 10], ["W", 61, 10], ["idle", 70, 20]],
  ]);
  assert.deepEqual(drawn.kinds, ["F", "B", "W", "link", "idle"]);
  assert.deepEqual([drawn.committed, drawn.predicted, drawn.note], [1, null, ""]);
});

Deno.test("gantt: the picture ends with whatever is last: the commit, the last operation or the prediction", () => {
  const lanes = [lane("a", [op("F", 0, 50)])];
  assert.deepEqual(shapes(view(traceOf(lanes, { predictedMs: 200 }))), [["F", 0, 25]]);
  assert.deepEqual([view(traceOf(lanes, { predictedMs: 200 })).committed], [0.5]);
  assert.equal(view(traceOf(lanes, { predictedMs: 50 })).predicted, 0.5);
  assert.deepEqual(shapes(view(traceOf(lanes, { measuredMs: 10 }))), [["F", 0, 100]]);
});

Deno.test("gantt: a row per stage and peer in the order of stages; work for another stage is not idle time", () => {
  const both = [
    op("F", 0, 10, { stage: 3 }),
    op("F", 10, 30),
    op("W", 30, 40),
    op("B", 40, 60, { stage: 3 }),
  ];
  const drawn = view(traceOf([lane("b", both), lane("a", [op("F", 0, 60, { stage: 1 })])]));
  assert.deepEqual(drawn.rows.map((row) => `${row.stage} ${row.peer}`), [
    "Stage 1 b",
    "Stage 2 a",
    "Stage 4 b",
  ]);
  assert.deepEqual(shapes(drawn, 0), [["elsewhere", 0, 10], ["F", 10, 20], ["W", 30, 10], [
    "elsewhere",
    40,
    20,
  ]]);
  assert.deepEqual(shapes(drawn, 2), [["F", 0, 10], ["elsewhere", 10, 30], ["B", 40, 20]]);
});

Deno.test("gantt: a row in words and as cells says what its bars say", () => {
  const ops = [
    op("F", 0, 10),
    op("F", 10, 30, { microBatch: 4 }),
    op("B", 50, 70, { waitMs: 20, linkWaitMs: 8 }),
    op("W", 70, 80),
  ];
  const [row] = view(traceOf([lane("tab-1", ops)], { endMs: 120 })).rows;
  assert.equal(
    row!.text,
    "Stage 1 on tab-1: 2 micro-batches, F 15 ms, B 20 ms, W 10 ms each; waits 20 ms, 8 ms of it for links; " +
      "the computer is idle for 50 %.",
  );
  assert.deepEqual(row!.cells, ["2 micro-batches", "15 ms", "20 ms", "10 ms", "20 ms", "8 ms", "50 %"]);
});

Deno.test("gantt: numbers of micro-batches stand only where they fit", () => {
  const at = (microBatch: number, startMs: number, endMs: number) => op("F", startMs, endMs, { microBatch });
  const drawn = view(traceOf([lane("a", [at(0, 0, 5), at(1, 10, 12), at(98, 20, 22), at(2, 30, 30.5)])]));
  const labels = drawn.rows[0]!.bars.map(({ label, shown }) => `${label} ${shown}`).filter((it) =>
    it !== " never"
  );
  assert.deepEqual(labels, ["1 always", "2 wide", "99 never", "3 never"]);
});

Deno.test("gantt: predicted against measured in one sentence", () => {
  const said = (predictedMs: number | null) => summaryOf(traceOf([lane("a", [])], { predictedMs, endMs: 1 }));
  assert.equal(
    said(null),
    "Step 7 took 100 ms; nothing was predicted yet. Computing peers were idle for 25 % of it.",
  );
  assert.match(said(80), /took 100 ms; 80 ms were predicted, 25 % less\./);
  assert.match(said(125), /125 ms were predicted, 20 % more\./);
  assert.match(said(100), /100 ms were predicted, as it came\./);
  assert.match(said(0), /0 ms were predicted, as it came\./);
});

Deno.test("gantt: never more bars than the limit; what is merged and what is missing is said", () => {
  const many = Array.from(
    { length: 3_000 },
    (_, i) => op(i % 20 < 10 ? "F" : "B", i, i + 1, { microBatch: i % 256 }),
  );
  const lanes = [{ ...lane("a", many), dropped: 9 }, lane("b", many.map((it) => ({ ...it, stage: 1 })))];
  const drawn = view(traceOf(lanes, { measuredMs: 3_000, stages: 2 }));
  assert.ok(drawn.rows.reduce((sum, { bars }) => sum + bars.length, 0) <= BARS_MAX);
  assert.ok(drawn.rows.every(({ bars }) => bars.length > 100), "a merged row shows nothing");
  for (const { bars } of drawn.rows) {
    const covered = bars.reduce((sum, { width }) => sum + width, 0);
    assert.ok(Math.abs(covered - 1) < 1e-6, `bars cover ${covered}`);
    assert.ok(bars.every(({ shown }) => shown === "never"));
  }
  assert.match(drawn.note, /too many operations.*The first 9 operations found no room/);
  assert.match(drawn.rows[0]!.text, /256 micro-batches/);
});

Deno.test("gantt: round times on the axis, few enough for a phone", () => {
  const labels = (measuredMs: number) =>
    view(traceOf([lane("a", [op("F", 0, 1)])], { measuredMs })).ticks.map(({ label }) => label);
  assert.deepEqual(labels(100), ["0 ms", "20 ms", "40 ms", "60 ms", "80 ms"]);
  assert.deepEqual(labels(7_400), ["0 ms", "2 s", "4 s", "6 s"]);
  const { ticks } = view(traceOf([lane("a", [op("F", 0, 1)])]));
  assert.deepEqual(ticks.filter(({ wide }) => !wide).map(({ label }) => label), ["0 ms", "40 ms", "80 ms"]);
});

Deno.test("gantt: a board shows the step it was given, its peers what they measured", () => {
  const { model } = fixtures.find(({ name }) => name === "admin-training")!;
  const screen = adminScreen(model as Parameters<typeof adminScreen>[0]);
  assert.ok(screen.kind === "board" && screen.gantt !== null);
  assert.equal(screen.gantt.rows.length, 5);
  const [peer] = screen.peers;
  assert.deepEqual(peer!.operations, [{
    times: "F 22 ms, B 31 ms, W 24 ms",
    wait: "waits 4.2 ms; encode 2.4 ms, decode 0.3 ms, send 0.6 ms",
  }]);
  assert.equal(peer!.linkLines[0], "deno-81c0: 38 ms, 2.4 MB/s up, 1.1 MB/s down, direct");
  assert.equal(peer!.linkLines.at(-1), "2 further links not measured: plans presume");
  assert.equal(
    peer!.linkLines.at(-2),
    "tab-77e2: 38 ms, not measured up, not measured down, over a TURN server",
  );
  const spare = screen.peers.find(({ id }) => id === "tab-77e2");
  assert.deepEqual([spare!.operations, spare!.linkLines], [[], []]);
});
