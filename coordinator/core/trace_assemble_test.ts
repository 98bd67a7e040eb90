// From clocks that nobody set to one picture: placed by half the round trip, moved where causes would come after effects, with
// waits divided into those for a computation and those for a link.
import assert from "node:assert/strict";
import fc from "fast-check";
import type { Trace, TracedOp } from "../../peer/wire/measures.ts";
import type { View } from "../../peer/wire/run.ts";
import type { TraceOp } from "../../peer/wire/status.ts";
import { simulatePipeline, singleReplicas } from "../plan/dynamic.ts";
import { assembleTrace } from "./trace_assemble.ts";

function viewOf(stages: string[][]): View {
  const N = 2;
  return {
    ...{ gen: 1, cut: 1, baseStep: 0, schedule: "dynamic", codecForward: "raw32", codecBackward: "raw32" },
    stages: stages.map((peers, index) => ({
      ...{
        index,
        firstLayer: index,
        endLayer: index + 1,
        embed: index === 0,
        head: index === stages.length - 1,
      },
      ...{ inflight: 1 },
      replicas: peers.map((peer, i) => ({ peer, microBatches: i < N ? [i] : [] })),
    })),
  };
}

type Row = [
  kind: TracedOp["kind"],
  stage: number,
  microBatch: number,
  startMs: number,
  endMs: number,
  waitMs?: number,
];

function traceOf(rows: Row[], dropped = 0): Trace {
  const ops = rows.map(([kind, stage, microBatch, startMs, endMs, waitMs = 0]) => ({
    ...{ kind, stage, microBatch, startUs: startMs * 1000, endUs: endMs * 1000, waitUs: waitMs * 1000 },
  }));
  return { type: "trace", gen: 1, step: 0, saidUs: 0, dropped, ops };
}

const TWO = viewOf([["a"], ["b"]]);
const A = traceOf([["F", 0, 0, 0, 10], ["B", 0, 0, 55, 65, 45], ["W", 0, 0, 65, 75]]);
const B = traceOf([["F", 1, 0, 20, 30, 20], ["B", 1, 0, 30, 40], ["W", 1, 0, 40, 50]]);

Deno.test("trace: clocks are placed by half the round trip; sums, span and bubble follow", () => {
  const picture = assembleTrace(TWO, { a: A, b: B }, { a: 1, b: 4 });
  assert.deepEqual(picture.lanes.map(({ ops }) => ops[0]!.startMs), [1, 24]);
  assert.deepEqual([picture.startMs, picture.endMs], [1, 76]);
  assert.deepEqual(picture.lanes.map(({ busyMs, waitMs }) => [busyMs, waitMs]), [[30, 45], [30, 20]]);
  assert.ok(Math.abs(picture.bubble - (1 - 60 / 150)) < 1e-9);
});

Deno.test("trace: a wait for what was on its way is one for the link, the rest one for its computation", () => {
  const [a, b] = assembleTrace(TWO, { a: A, b: B }, { a: 0, b: 0 }).lanes;
  // b had nothing to do from 0 on: until 10 a computed, until 20 the activation was on its way.
  assert.equal(b!.linkWaitMs, 10);
  // a waited from 10 to 55; the gradient was made at 40.
  assert.equal(a!.linkWaitMs, 15);
});

Deno.test("trace: nobody waits for a link longer than at all, nor for one to itself", () => {
  // b was busy until 45 and waited for 5 ms, though the activation had been made at 10.
  const busy = traceOf([["F", 1, 0, 50, 60, 5]]);
  const [, b] = assembleTrace(TWO, { a: A, b: busy }, { a: 0, b: 0 }).lanes;
  assert.deepEqual([b!.waitMs, b!.linkWaitMs], [5, 5]);
  const alone = traceOf([["F", 0, 0, 0, 10], ["F", 1, 0, 30, 40, 20]]);
  const [one] = assembleTrace(viewOf([["a"], ["a"]]), { a: alone }, { a: 0 }).lanes;
  assert.deepEqual([one!.waitMs, one!.linkWaitMs], [20, 0]);
});

Deno.test("trace: a peer that heard late of the round is moved until no result is used before it was made", () => {
  // b was busy for 30 ms when the round was opened: on its own clock everything is 30 ms earlier.
  const late = traceOf(
    B.ops.map((op): Row => [op.kind, op.stage, op.microBatch, op.startUs / 1000 - 15, op.endUs / 1000 - 15]),
  );
  const { lanes } = assembleTrace(TWO, { a: A, b: late }, { a: 0, b: 0 });
  assert.deepEqual(lanes.map(({ ops }) => ops[0]!.startMs), [0, 10]);
});

Deno.test("trace: replicas exchange by micro-batch, and a chain of stages is moved along", () => {
  const view = viewOf([["a", "b"], ["c", "d"], ["e", "f"]]);
  const at = (stage: number, m: number, start: number) => traceOf([["F", stage, m, start, start + 10]]);
  const traces = {
    a: at(0, 0, 0),
    b: at(0, 1, 50),
    c: at(1, 0, 0),
    d: at(1, 1, 0),
    e: at(2, 0, 0),
    f: at(2, 1, 5),
  };
  const lags = { a: 0, b: 0, c: 0, d: 0, e: 0, f: 0 };
  const starts = assembleTrace(view, traces, lags).lanes.map(({ ops }) => ops[0]!.startMs);
  assert.deepEqual(starts, [0, 50, 10, 60, 20, 70]);
});

Deno.test("trace: however wrong the clocks, what a simulated step did is told in an order that can be", () => {
  const seconds = { F: 0.01, B: 0.02, W: 0.015 };
  const network = { latency: 0.008, transfer: 0.002, mode: "duplex" as const };
  const delays = fc.array(fc.integer({ min: 0, max: 60 }), { minLength: 4, maxLength: 4 });
  const property = fc.property(fc.integer({ min: 1, max: 6 }), delays, (N, heardLate) => {
    const { trace } = simulatePipeline("dynamic", singleReplicas(N, [4, 3, 2, 2]), { seconds, network });
    const view = viewOf([["p0"], ["p1"], ["p2"], ["p3"]]);
    const traces = Object.fromEntries(heardLate.map((late, device) => {
      const own = trace.filter((it) => it.device === device);
      return [
        `p${device}`,
        traceOf(own.map((it): Row => {
          const [start, end] = [it.start * 1000 - late + 100, it.end * 1000 - late + 100].map(Math.round) as [
            number,
            number,
          ];
          return [it.kind as TracedOp["kind"], it.stage, it.microBatch, start, end];
        })),
      ];
    }));
    const lags = { p0: 0, p1: 0, p2: 0, p3: 0 };
    const ops = assembleTrace(view, traces, lags).lanes.flatMap((lane) => lane.ops);
    const endOf = (kind: TraceOp["kind"], stage: number, m: number) =>
      ops.find((op) => op.kind === kind && op.stage === stage && op.microBatch === m)!.endMs;
    for (const { kind, stage, microBatch, startMs } of ops) {
      if (kind === "F" && stage > 0) assert.ok(startMs >= endOf("F", stage - 1, microBatch) - 1e-9);
      if (kind === "B" && stage < 3) assert.ok(startMs >= endOf("B", stage + 1, microBatch) - 1e-9);
    }
  });
  fc.assert(property, { seed: 7, numRuns: 60 });
});

Deno.test("trace: a page is given no more than it can draw, the newest of each peer", () => {
  const many = traceOf(Array.from({ length: 4_000 }, (_, i): Row => ["W", 0, 0, i, i + 1]));
  const traces = Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`p${i}`, many]));
  const { lanes } = assembleTrace(
    TWO,
    traces,
    Object.fromEntries(Object.keys(traces).map((peer) => [peer, 0])),
  );
  assert.ok(lanes.reduce((sum, { ops }) => sum + ops.length, 0) <= 32_768);
  for (const { ops, dropped, busyMs } of lanes) {
    assert.equal(ops.length + dropped, 4_000);
    assert.deepEqual([ops.at(-1)!.endMs, busyMs], [4_000, 4_000]);
  }
});
