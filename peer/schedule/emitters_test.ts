// Every emitted schedule is complete, free of deadlock, within its memory and ordered; and each check of the
// validator is shown to notice its own kind of damage.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  breadthFirst,
  gpipe,
  interleaved,
  latencyAwareWarmUp,
  oneForwardOneBackward,
  pipeDream2bw,
} from "./emitters.ts";
import { chimera, chimeraBackwardHalving, chimeraForwardDoubling } from "./emitters_chimera.ts";
import { dualPipe, zbH1, zbH2, zeroBubble } from "./emitters_split.ts";
import { zbV } from "./emitters_zbv.ts";
import { measurePeaks, parts, type Schedule } from "./ir.ts";
import { problemsOf } from "./validate.ts";

const RUNS = { seed: 20240607, numRuns: 60 };
const devices = fc.integer({ min: 2, max: 16 });
const microBatches = fc.integer({ min: 1, max: 64 });

function checkAll(name: string, arbitrary: fc.Arbitrary<Schedule>): void {
  Deno.test(`${name} is valid for every size`, () => {
    fc.assert(fc.property(arbitrary, (schedule) => assert.deepEqual(problemsOf(schedule), [])), RUNS);
  });
}

checkAll("gpipe", fc.tuple(devices, microBatches).map(([P, N]) => gpipe(P, N)));
checkAll("1f1b", fc.tuple(devices, microBatches).map(([P, N]) => oneForwardOneBackward(P, N)));
checkAll(
  "latency-aware 1f1b",
  fc.tuple(devices, microBatches, fc.double({ min: 0, max: 5, noNaN: true })).map(([P, N, hop]) =>
    oneForwardOneBackward(P, N, latencyAwareWarmUp(P, 1, hop))
  ),
);
checkAll(
  "interleaved",
  fc.tuple(devices, fc.integer({ min: 1, max: 4 }), fc.integer({ min: 1, max: 4 }))
    .map(([P, k, v]) => interleaved(P, k * P, v)),
);
checkAll(
  "breadth-first",
  fc.tuple(devices, fc.integer({ min: 1, max: 32 }), fc.integer({ min: 1, max: 4 }))
    .map(([P, N, v]) => breadthFirst(P, N, v)),
);
checkAll(
  "chimera",
  fc.tuple(fc.integer({ min: 1, max: 8 }), fc.integer({ min: 1, max: 4 })).map(([h, k]) =>
    chimera(2 * h, 2 * h * k)
  ),
);
checkAll(
  "chimera with more pairs",
  fc.tuple(fc.integer({ min: 1, max: 4 }), fc.integer({ min: 1, max: 3 }), fc.integer({ min: 1, max: 3 }))
    .map(([h, pairs, k]) => chimera(2 * h * pairs, 2 * h * pairs * k, { pairs })),
);
checkAll(
  "chimera, forward doubling and backward halving",
  fc.tuple(fc.integer({ min: 1, max: 6 }), fc.integer({ min: 1, max: 3 }), fc.boolean()).map((
    [h, k, halves],
  ) => halves ? chimeraBackwardHalving(2 * h, 2 * h * k) : chimeraForwardDoubling(2 * h, 4 * h * k)),
);
checkAll("zb-v", fc.tuple(fc.integer({ min: 1, max: 12 }), microBatches).map(([P, N]) => zbV(P, N)));
checkAll(
  "2bw",
  fc.tuple(devices, fc.integer({ min: 0, max: 16 }), fc.integer({ min: 1, max: 4 }))
    .map(([P, more, steps]) => pipeDream2bw(P, P - 1 + more, { steps })),
);
checkAll("zb-h1", fc.tuple(devices, microBatches).map(([P, N]) => zbH1(P, N)));
checkAll("zb-h2", fc.tuple(devices, microBatches).map(([P, N]) => zbH2(P, N)));
checkAll(
  "dualpipe",
  fc.tuple(fc.integer({ min: 1, max: 8 }), fc.integer({ min: 0, max: 16 }))
    .map(([h, more]) => dualPipe(2 * h, 4 * h + 2 * more)),
);

checkAll(
  "dualpipe without pairs",
  fc.tuple(fc.integer({ min: 1, max: 8 }), fc.integer({ min: 0, max: 16 }))
    .map(([h, more]) => dualPipe(2 * h, 4 * h + 2 * more, { paired: false })),
);

Deno.test("1f1b with the textbook warm-up holds min(N, P-p) activations", () => {
  assert.deepEqual(measurePeaks(oneForwardOneBackward(5, 8)), [5, 4, 3, 2, 1]);
  assert.deepEqual(measurePeaks(oneForwardOneBackward(5, 3)), [3, 3, 3, 2, 1]);
});

Deno.test("the declared memory is reached, so the bound is tight", () => {
  for (
    const schedule of [
      gpipe(4, 6),
      oneForwardOneBackward(4, 8),
      chimera(8, 16),
      chimera(12, 12, { pairs: 2 }),
      zbH2(4, 12),
      zbV(4, 8),
      dualPipe(4, 8),
    ]
  ) {
    assert.deepEqual(measurePeaks(schedule), schedule.peakActivations, schedule.name);
  }
});

Deno.test("sizes that a schedule cannot have are refused with the numbers", () => {
  assert.throws(() => gpipe(0, 4), /P=0, N=4/);
  assert.throws(() => gpipe(1024, 1024), /at most 65536/);
  assert.throws(() => interleaved(4, 6, 2), /N=6, P=4/);
  assert.throws(() => chimera(3, 6), /P=3, N=6/);
  assert.throws(() => chimera(6, 6, { pairs: 2 }), /P divisible by 4 .* P=6, N=6/);
  assert.throws(() => chimeraForwardDoubling(4, 4), /divisible by 2P, got P=4, N=4/);
  assert.throws(() => chimeraBackwardHalving(4, 6), /P=4, N=6/);
  assert.throws(() => pipeDream2bw(8, 6, { steps: 2 }), /at least 7 micro-batches in a step, got N=6/);
  assert.throws(() => dualPipe(4, 6), /P=4, N=6/);
  assert.throws(() => zeroBubble(4, 8, { warmUp: () => 5, memoryCap: 4 }), /memory cap 4/);
});

Deno.test("the validator notices a missing, a repeated and a foreign operation", () => {
  const schedule = gpipe(2, 2);
  const first = schedule.ops[0]![0]!;
  assert.match(damaged(schedule, (list) => list.slice(1)).join(), /F:0:0:0 occurs 0 times/);
  assert.match(damaged(schedule, (list) => [...list, first]).join(), /F:0:0:0 occurs 2 times/);
  const foreign = { kind: "F" as const, direction: 0, stage: 0, microBatch: 9 };
  assert.match(damaged(schedule, (list) => [...list, foreign]).join(), /F:0:0:9 is not part/);
});

Deno.test("the validator notices a deadlock: the second stage asks for a micro-batch that comes too late", () => {
  const growing = oneForwardOneBackward(3, 8, (p) => [1, 2, 0][p]!);
  assert.match(problemsOf(growing).join(), /device 0 stops at operation/);
});

Deno.test("the validator notices a wrong device, too little memory and a wrong backward order", () => {
  const schedule = oneForwardOneBackward(2, 3);
  const swapped = { ...schedule, ops: schedule.ops.toReversed() };
  assert.match(problemsOf(swapped).join(), /which does not hold the stage/);
  assert.match(problemsOf({ ...schedule, peakActivations: [1, 1] }).join(), /device 0 holds 2 activations/);
  assert.match(problemsOf({ ...schedule, backwardOrder: "lifo" }).join(), /not lifo/);
});

Deno.test("the validator notices a step that would need a third version of the weights", () => {
  const order = pipeDream2bw(4, 4, { steps: 3 });
  const short = { ...order, asynchronous: { perStep: 2, delay: 1 } };
  assert.match(problemsOf(short).join(), /forward 4 of stage 0:0 needs 2 weight gradients, has 1/);
  assert.match(problemsOf({ ...order, asynchronous: { perStep: 4, delay: 0 } }).join(), /needs 4/);
});

Deno.test("each device of a mirror pair holds the same stages, so each loss leaves a holder", () => {
  for (const schedule of [chimera(6, 6), chimera(8, 8, { pairs: 2 }), chimeraForwardDoubling(4, 8)]) {
    const { devices: P, placement } = schedule;
    const stagesOf = (device: number) => placement.map((of) => of.indexOf(device)).toSorted((a, b) => a - b);
    for (let p = 0; p < P; p++) assert.deepEqual(stagesOf(p), stagesOf(P - 1 - p));
  }
});

Deno.test("a fused pair counts as both of its halves", () => {
  const pairs = dualPipe(4, 8).ops.flat().filter((op) => op.kind === "FB");
  assert.ok(pairs.length > 0);
  for (const pair of pairs) assert.deepEqual(parts(pair).map((op) => op.kind), ["F", "BW"]);
});

function damaged(
  schedule: Schedule,
  damage: (list: Schedule["ops"][number]) => Schedule["ops"][number],
): string[] {
  const ops = schedule.ops.map((list, device) => device === 0 ? damage(list) : list);
  return problemsOf({ ...schedule, ops });
}
