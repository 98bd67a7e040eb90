// One replica under any order of arrivals, and whole pipelines with replicas and random delays: every operation
// once, caps kept, no deadlock, for all schedules.
import assert from "node:assert/strict";
import fc from "fast-check";
import type { ScheduleId, View } from "../wire/run.ts";
import {
  activationArrived,
  createProgress,
  finished,
  gradientArrived,
  inFlight,
  nextOp,
  opDone,
  type Progress,
  progressFromView,
  slotsHeld,
  type StageOp,
} from "./executor.ts";

const SCHEDULES: ScheduleId[] = ["gpipe", "1f1b", "dynamic"];
const RUNS = { seed: 7, numRuns: 150 };
const MIDDLE = { first: false, last: false, index: 1, stages: 3 };
const ONLY = { first: true, last: true, index: 0, stages: 1 };

Deno.test("any order of arrivals finishes one replica, each operation once and within the caps", () => {
  const scenario = fc.record({
    schedule: fc.constantFrom(...SCHEDULES),
    microBatches: fc.uniqueArray(fc.nat(40), { minLength: 1, maxLength: 12 }),
    caps: fc.record({ inflight: fc.integer({ min: 1, max: 6 }), slots: fc.integer({ min: 1, max: 6 }) }),
    arrivals: fc.infiniteStream(fc.nat(1000)),
  });
  fc.assert(
    fc.property(scenario, ({ schedule, microBatches, caps, arrivals }) => {
      const list = microBatches.toSorted((a, b) => a - b);
      const progress = createProgress(schedule, MIDDLE, list, caps);
      const waiting = list.flatMap((
        mb,
      ) => [() => activationArrived(progress, mb), () => gradientArrived(progress, mb)]);
      const ran: string[] = [];
      while (!finished(progress)) {
        const op = nextOp(progress);
        if (op === null) {
          assert.ok(waiting.length > 0, "stuck with everything arrived");
          waiting.splice(arrivals.next().value! % waiting.length, 1)[0]!();
          continue;
        }
        opDone(progress, op);
        ran.push(`${op.kind}${op.microBatch}`);
        assert.ok(inFlight(progress) <= caps.inflight && slotsHeld(progress) <= caps.slots);
      }
      assert.deepEqual(ran.toSorted(), list.flatMap((mb) => [`F${mb}`, `B${mb}`, `W${mb}`]).toSorted());
      assert.equal(nextOp(progress), null);
    }),
    RUNS,
  );
});

Deno.test("a pipeline with replicas, unequal caps and random delays never deadlocks", () => {
  const pipeline = fc.integer({ min: 1, max: 5 }).chain((P) =>
    fc.record({
      schedule: fc.constantFrom(...SCHEDULES),
      caps: fc.array(fc.integer({ min: 1, max: 6 }), { minLength: P, maxLength: P }),
      /** Replica of each stage's micro-batch m: owners[s][m]; lists of any shape come out. */
      owners: fc.integer({ min: 1, max: 14 }).chain((N) =>
        fc.array(fc.array(fc.nat(2), { minLength: N, maxLength: N }), { minLength: P, maxLength: P })
      ),
      choices: fc.infiniteStream(fc.nat(1000)),
    })
  );
  fc.assert(
    fc.property(pipeline, ({ schedule, caps, owners, choices }) => {
      const view = viewOf(schedule, caps, owners);
      runPipeline(view, () => choices.next().value!);
    }),
    { seed: 11, numRuns: 400 },
  );
});

Deno.test("dynamic: a ready backward comes first, then a forward within the caps, then a weight gradient", () => {
  const progress = createProgress("dynamic", MIDDLE, [3, 5, 9], { inflight: 2, slots: 2 });
  assert.equal(nextOp(progress), null);
  for (const mb of [9, 3, 5]) assert.equal(activationArrived(progress, mb), true);
  run(progress, "F3 F5");
  assert.equal(nextOp(progress), null, "two are in flight");
  gradientArrived(progress, 5);
  run(progress, "B5");
  assert.deepEqual(
    nextOp(progress),
    { kind: "W", microBatch: 5, slot: 1 },
    "slots are full, so W must free one",
  );
  gradientArrived(progress, 3);
  run(progress, "B3 W3");
  assert.deepEqual(nextOp(progress), { kind: "F", microBatch: 9, slot: 0 });
  run(progress, "F9 W5");
  gradientArrived(progress, 9);
  run(progress, "B9 W9");
  assert.equal(finished(progress), true);
});

Deno.test("1f1b and gpipe keep their order although later inputs are here first", () => {
  const oneF = createProgress("1f1b", MIDDLE, [0, 1, 2], { inflight: 2, slots: 2 });
  activationArrived(oneF, 1);
  assert.equal(nextOp(oneF), null, "1 waits for 0");
  for (const mb of [0, 2]) activationArrived(oneF, mb);
  for (const mb of [0, 1, 2]) gradientArrived(oneF, mb);
  assert.equal(drain(oneF), "F0 F1 B0 W0 F2 B1 W1 B2 W2");
  const gpipe = createProgress("gpipe", ONLY, [0, 1, 2], { inflight: 3, slots: 3 });
  assert.equal(drain(gpipe), "F0 F1 F2 B2 W2 B1 W1 B0 W0");
  const chunks = createProgress("gpipe", ONLY, [0, 1, 2], { inflight: 2, slots: 2 });
  assert.equal(drain(chunks), "F0 F1 B1 W1 B0 W0 F2 B2 W2");
});

Deno.test("replicas that share a stage evenly each get the textbook depth", () => {
  const view = viewOf("1f1b", [3, 3, 3], [[0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 1]]);
  const orders = view.stages.map((_, s) => orderOf(progressFromView(view, s, "p0")));
  assert.deepEqual(orders, [
    "F0 F2 F4 B0 W0 B2 W2 B4 W4",
    "F0 F2 B0 W0 F4 B2 W2 B4 W4",
    "F0 B0 W0 F2 B2 W2 F4 B4 W4",
  ]);
});

Deno.test("gpipe in a view runs the whole step as one chunk if every replica can hold its share", () => {
  const view = viewOf("gpipe", [2, 4], [[0, 1, 0, 1], [0, 0, 0, 0]]);
  assert.equal(orderOf(progressFromView(view, 1, "p0")), "F0 F1 F2 F3 B3 W3 B2 W2 B1 W1 B0 W0");
  assert.equal(orderOf(progressFromView(view, 0, "p1")), "F1 F3 B3 W3 B1 W1");
});

Deno.test("a peer without a replica of the stage has nothing to do", () => {
  const progress = progressFromView(viewOf("1f1b", [2], [[0, 0]]), 0, "somebody");
  assert.equal(finished(progress), true);
  assert.equal(nextOp(progress), null);
});

Deno.test("repeated, foreign and meaningless arrivals change nothing", () => {
  const progress = createProgress("dynamic", MIDDLE, [4], { inflight: 1, slots: 1 });
  assert.equal(activationArrived(progress, 4), true);
  const before = structuredClone(progress);
  assert.equal(activationArrived(progress, 4), false);
  assert.equal(gradientArrived(progress, 5), false);
  assert.deepEqual(progress, before);
  const only = createProgress("dynamic", ONLY, [4], { inflight: 1, slots: 1 });
  assert.equal(activationArrived(only, 4), false);
  assert.equal(gradientArrived(only, 4), false);
});

Deno.test("an operation that could not have run is our own mistake", () => {
  const progress = createProgress("dynamic", MIDDLE, [0, 1], { inflight: 2, slots: 2 });
  assert.throws(() => opDone(progress, { kind: "F", microBatch: 0 }), /F0 finished before its input arrived/);
  assert.throws(() => opDone(progress, { kind: "B", microBatch: 0 }), /B0 cannot be done now/);
  assert.throws(() => opDone(progress, { kind: "F", microBatch: 7 }), /F7 cannot be done now/);
  const fixed = createProgress("1f1b", ONLY, [0, 1], { inflight: 2, slots: 2 });
  assert.throws(() => opDone(fixed, { kind: "F", microBatch: 1 }), /F1 finished out of order/);
});

Deno.test("impossible caps, unsorted lists and spans beyond the slots are refused", () => {
  assert.throws(() => createProgress("dynamic", MIDDLE, [0], { inflight: 0, slots: 2 }), /at least 1, got 0/);
  assert.throws(
    () => createProgress("dynamic", MIDDLE, [1, 0], { inflight: 1, slots: 1 }),
    /must ascend, got 1,0/,
  );
  const wide = { inflight: 2, slots: 2, span: 3 };
  assert.throws(() => createProgress("gpipe", MIDDLE, [0, 1, 2], wide), /span of 3 needs more than 2 slots/);
});

Deno.test("the state survives a trip through JSON", () => {
  const progress = createProgress("1f1b", ONLY, [0, 1, 2], { inflight: 2, slots: 2 });
  run(progress, "F0");
  const copy = JSON.parse(JSON.stringify(progress)) as Progress;
  assert.deepEqual(copy, progress);
  assert.equal(drain(copy), drain(progress));
});

function viewOf(schedule: ScheduleId, caps: number[], owners: number[][]): View {
  const stages = owners.map((list, index) => ({
    index,
    firstLayer: index,
    endLayer: index + 1,
    embed: index === 0,
    head: index === owners.length - 1,
    inflight: caps[index]!,
    replicas: [0, 1, 2].map((owner) => ({
      peer: `p${owner}`,
      microBatches: list.flatMap((holder, microBatch) => holder === owner ? [microBatch] : []),
    })),
  }));
  return { gen: 1, cut: 1, baseStep: 0, stages, schedule, codecForward: "raw32", codecBackward: "raw32" };
}

/** Interleaves replicas and deliveries as `choose` says; fails if nothing can move before all is done. */
function runPipeline(view: View, choose: () => number): void {
  const replicas = view.stages.flatMap((stage) =>
    stage.replicas.map(({ peer }) => ({
      stage: stage.index,
      progress: progressFromView(view, stage.index, peer),
    }))
  );
  const messages: { kind: "F" | "B"; stage: number; microBatch: number }[] = [];
  while (!replicas.every((replica) => finished(replica.progress))) {
    const moves = [
      ...replicas.flatMap(({ stage, progress }) => {
        const op = nextOp(progress);
        return op === null ? [] : [() => runOp(stage, progress, op)];
      }),
      ...messages.map((_, i) => () => deliver(messages.splice(i, 1)[0]!)),
    ];
    assert.ok(moves.length > 0, `deadlock: ${JSON.stringify(view)}`);
    moves[choose() % moves.length]!();
  }

  function runOp(stage: number, progress: Progress, op: StageOp): void {
    opDone(progress, op);
    const cap = view.stages[stage]!.inflight;
    assert.ok(inFlight(progress) <= cap && slotsHeld(progress) <= cap);
    if (op.kind !== "W") messages.push({ kind: op.kind, stage, microBatch: op.microBatch });
  }

  function deliver(message: { kind: "F" | "B"; stage: number; microBatch: number }): void {
    const to = message.stage + (message.kind === "F" ? 1 : -1);
    const arrived = message.kind === "F" ? activationArrived : gradientArrived;
    const readers = replicas.filter((replica) => replica.stage === to);
    const taken = readers.filter((replica) => arrived(replica.progress, message.microBatch)).length;
    assert.equal(taken, to < 0 || to === view.stages.length ? 0 : 1, "exactly one replica takes a message");
  }
}

/** Runs the named operations, and checks that nextOp wants exactly them. */
function run(progress: Progress, names: string): void {
  for (const name of names.split(" ")) {
    const op = nextOp(progress);
    assert.equal(op === null ? null : `${op.kind}${op.microBatch}`, name);
    opDone(progress, op!);
  }
}

function drain(progress: Progress): string {
  const names: string[] = [];
  for (let op = nextOp(progress); op !== null; op = nextOp(progress)) {
    names.push(`${op.kind}${op.microBatch}`);
    opDone(progress, op);
  }
  return names.join(" ");
}

function orderOf(progress: Progress): string {
  return progress.order!.map((op) => `${op.kind}${op.microBatch}`).join(" ");
}
