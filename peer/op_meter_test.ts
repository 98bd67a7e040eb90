// Moving averages and traces from jobs with known times: first ones skipped, rests counted, waits told apart from work, and
// nothing grows without bound.
import assert from "node:assert/strict";
import type { Job } from "./core/peer_state.ts";
import { AVERAGE_WEIGHT, OpMeter, SKIPPED } from "./op_meter.ts";
import { MEASURES_MAX, TRACE_OPS_MAX } from "./wire/measures.ts";

type OpJob = Job & { job: "op" };

function op(kind: OpJob["kind"], microBatch: number, changes: Partial<OpJob> = {}): OpJob {
  return {
    ...{ job: "op", cut: 1, gen: 1, pass: "train", step: 0, stage: 0, kind, microBatch, slot: 0 },
    ...changes,
  };
}

/** Runs jobs one after the other from `at` on, each `ms` long after `wait` of idleness; returns the end. */
function play(meter: OpMeter, at: number, jobs: [job: Job, ms: number, wait?: number][]): number {
  for (const [job, ms, wait = 0] of jobs) {
    const due = at + wait;
    at = due + ms;
    meter.ran(job, { due, begun: due, ended: at, stretch: 1 });
  }
  return at;
}

/** The three operations of a micro-batch. */
function whole(microBatch: number, [f, b, w]: [number, number, number], changes: Partial<OpJob> = {}) {
  const kinds = [["F", f], ["B", b], ["W", w]] as const;
  return kinds.map(([kind, ms]): [Job, number] => [op(kind, microBatch, changes), ms]);
}

Deno.test("op meter: the mean of the first micro-batches but the very first, later ones weigh a tenth", () => {
  const meter = new OpMeter();
  meter.opened({ gen: 1, step: 0, traced: false }, 0);
  let at = play(meter, 0, whole(0, [900, 800, 700]));
  assert.equal(SKIPPED, 1);
  assert.deepEqual(meter.times(1)[0], {
    ...{ cut: 1, stage: 0, microBatches: 0, forwardMs: 0, backwardMs: 0, weightGradMs: 0, waitMs: 0 },
  });
  at = play(meter, at, [...whole(1, [10, 20, 30]), ...whole(2, [20, 40, 60])]);
  const [mean] = meter.times(1);
  assert.deepEqual([mean!.microBatches, mean!.forwardMs, mean!.backwardMs, mean!.weightGradMs], [
    2,
    15,
    30,
    45,
  ]);
  for (let m = 3; m < 60; m++) at = play(meter, at, whole(m, [10, 20, 30]));
  const before = meter.times(1)[0]!.forwardMs;
  play(meter, at, whole(60, [110, 20, 30]));
  const after = meter.times(1)[0]!.forwardMs;
  assert.ok(Math.abs(after - before - AVERAGE_WEIGHT * (110 - before)) < 1e-9, `${before} became ${after}`);
});

Deno.test("op meter: waiting is idle time before an operation, from the round's opening on", () => {
  const meter = new OpMeter();
  play(meter, 0, [[op("W", 0, { step: 0 }), 5]]);
  meter.opened({ gen: 1, step: 1, traced: true }, 1_000);
  const next = (kind: OpJob["kind"], m: number) => op(kind, m, { step: 1 });
  // 40 ms after the opening the first frame is here; what passed before the opening is no wait.
  meter.ran(next("F", 0), { due: 1_040, begun: 1_040, ended: 1_050, stretch: 1 });
  // A seal is work: it ends the idleness without being an operation.
  const seal: Job = { job: "seal", cut: 1, step: 1, stage: 0, tied: null, countTied: false };
  meter.ran(seal, { due: 1_060, begun: 1_060, ended: 1_080, stretch: 1 });
  // From 1,085 on it could go on, but rests until 1,100.
  meter.ran(next("B", 0), { due: 1_085, begun: 1_100, ended: 1_110, stretch: 2 });
  meter.ran(next("W", 0), { due: 1_110, begun: 1_110, ended: 1_120, stretch: 1 });
  const trace = meter.trace(1_125)!;
  assert.deepEqual(trace.ops.map(({ kind, startUs, endUs, waitUs }) => [kind, startUs, endUs, waitUs]), [
    ["F", 40_000, 50_000, 40_000],
    ["B", 100_000, 110_000, 5_000],
    ["W", 110_000, 120_000, 0],
  ]);
  assert.deepEqual([trace.gen, trace.step, trace.saidUs, trace.dropped], [1, 1, 125_000, 0]);
});

Deno.test("op meter: waits are averaged per micro-batch, rests belong to the operations", () => {
  const meter = new OpMeter();
  meter.opened({ gen: 1, step: 0, traced: false }, 0);
  let at = play(meter, 0, whole(0, [1, 1, 1]));
  at = play(meter, at, [[op("F", 1), 10, 4], [op("B", 1), 10, 8], [op("W", 1), 10]]);
  assert.equal(meter.times(1)[0]!.waitMs, 12);
  at = play(meter, at, [[op("F", 3), 10, 2], [op("B", 3), 10], [op("W", 3), 10]]);
  assert.equal(meter.times(1)[0]!.waitMs, 7, "what one micro-batch waited counts for the next");
  meter.ran(op("F", 2), { due: at, begun: at + 10, ended: at + 20, stretch: 2 });
  const mean = meter.times(1)[0]!.forwardMs;
  assert.ok(Math.abs(mean - 40 / 3) < 1e-9, `${mean} for 10, 10, and 10 at half the time`);
});

Deno.test("op meter: stages have averages of their own, a new cut begins anew, evaluations do not count", () => {
  const meter = new OpMeter();
  meter.opened({ gen: 1, step: 0, traced: true }, 0);
  let at = play(
    meter,
    0,
    [0, 1].flatMap((m) => [...whole(m, [2, 3, 4]), ...whole(m, [20, 30, 40], { stage: 3 })]),
  );
  at = play(meter, at, [[op("F", 5, { pass: "eval" }), 500]]);
  assert.deepEqual(meter.times(1).map((it) => [it.stage, it.forwardMs]), [[0, 2], [3, 20]]);
  assert.equal(meter.trace(at)!.ops.length, 12);
  meter.opened({ gen: 1, step: 8, traced: false }, at);
  at = play(meter, at, [[op("F", 5, { step: 7 }), 500]]);
  assert.equal(
    meter.times(1)[0]!.forwardMs,
    2,
    "what is left of a step before tells of waiting, not of computing",
  );
  assert.deepEqual(meter.times(2), []);
  play(meter, at, [[op("F", 0, { cut: 2, step: 8 }), 1]]);
  assert.deepEqual([meter.times(1).length, meter.times(2).length], [0, 1]);
});

Deno.test("op meter: decoding, encoding and sending are told per micro-batch, from differences of sums", () => {
  const meter = new OpMeter();
  meter.opened({ gen: 1, step: 0, traced: false }, 0);
  const sums = { decodeMs: 100, decodes: 10, encodeMs: 200, encodes: 10 };
  const ran = (kind: OpJob["kind"], spent: Partial<typeof sums>, stretch = 1) => {
    for (const [name, by] of Object.entries(spent)) sums[name as keyof typeof sums] += by;
    meter.ran(op(kind, 0), { due: 0, begun: 0, ended: 9, stretch, boundary: { ...sums } });
  };
  ran("F", { decodeMs: 50, decodes: 1 });
  assert.equal(meter.times(1)[0]!.decodeMs, undefined, "nobody knows what the first one took");
  ran("F", { decodeMs: 3, decodes: 1, encodeMs: 8, encodes: 2 });
  ran("W", { decodeMs: 70, decodes: 1 });
  ran("B", { encodeMs: 5, encodes: 1 }, 2);
  const told = () => {
    const [{ decodeMs, encodeMs, sendMs }] = meter.times(1) as [ReturnType<OpMeter["times"]>[number]];
    return [decodeMs, encodeMs, sendMs];
  };
  assert.deepEqual(told(), [3, 4 + 10, undefined]);
  meter.ran(op("B", 0), { due: 0, begun: 0, ended: 9, stretch: 1, boundary: null });
  meter.ran(op("B", 0), { due: 0, begun: 0, ended: 9, stretch: 1, boundary: { ...sums, encodeMs: 0 } });
  assert.deepEqual(told(), [3, 14, undefined], "an engine that is new tells nothing at first");
  const frame = { kind: "gradient", fromStage: 0, pass: "train", cut: 1 } as const;
  meter.sent(frame, 2);
  meter.sent({ ...frame, kind: "activation" }, 4);
  meter.sent({ ...frame, kind: "activation" }, 6);
  for (const other of [{ kind: "part" }, { pass: "eval" }, { cut: 2 }, { fromStage: 1 }] as const) {
    meter.sent({ ...frame, ...other }, 500);
  }
  assert.deepEqual(told(), [3, 14, 2 + 5]);
});

Deno.test("op meter: a peer with very many stages tells of as many as a message holds", () => {
  const meter = new OpMeter();
  meter.opened({ gen: 1, step: 0, traced: false }, 0);
  for (let stage = MEASURES_MAX + 2; stage >= 0; stage--) play(meter, 0, whole(0, [1, 1, 1], { stage }));
  assert.deepEqual(meter.times(1).map((it) => it.stage), Array.from({ length: MEASURES_MAX }, (_, i) => i));
});

Deno.test("op meter: a trace is due once until more is done, and keeps the newest operations", () => {
  const meter = new OpMeter();
  meter.opened({ gen: 1, step: 0, traced: false }, 0);
  play(meter, 0, whole(0, [1, 1, 1]));
  assert.equal(meter.tracedStep, null, "a step that nobody asked for");
  meter.opened({ gen: 1, step: 0, traced: true }, 10);
  assert.equal(meter.tracedStep, null, "nothing was done yet");
  let at = play(meter, 10, whole(1, [1, 1, 1]));
  assert.equal(meter.tracedStep, 0);
  meter.trace(at);
  assert.equal(meter.tracedStep, null);
  at = play(meter, at, [[op("F", 2), 1]]);
  assert.equal(meter.tracedStep, 0);
  for (let i = 0; i < TRACE_OPS_MAX; i++) at = play(meter, at, [[op("W", i % 8), 1]]);
  const trace = meter.trace(at)!;
  assert.deepEqual([trace.ops.length, trace.dropped], [TRACE_OPS_MAX, 4]);
  assert.equal(trace.ops[0]!.kind, "W");
  assert.equal(meter.tracedStep, null);
  play(meter, at, [[op("W", 0), 1]]);
  assert.equal(meter.tracedStep, 0, "one more, when the trace is full");
});
