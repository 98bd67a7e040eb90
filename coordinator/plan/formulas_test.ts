// The schedules that the golden table does not name, against their papers' formulas; every emitter's simulated trace
// against the rules of dependencies; and the order that peers choose at run time, recorded and checked like the others.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  breadthFirst,
  gpipe,
  interleaved,
  oneForwardOneBackward,
  pipeDream2bw,
} from "../../peer/schedule/emitters.ts";
import {
  chimera,
  chimeraBackwardHalving,
  chimeraForwardDoubling,
} from "../../peer/schedule/emitters_chimera.ts";
import { dualPipe, zbH1, zbH2 } from "../../peer/schedule/emitters_split.ts";
import { zbV } from "../../peer/schedule/emitters_zbv.ts";
import { dependencies, makeOp, type Schedule } from "../../peer/schedule/ir.ts";
import { problemsOf } from "../../peer/schedule/validate.ts";
import { simulatePipeline, singleReplicas } from "./dynamic.ts";
import { type Network, NO_NETWORK } from "./network.ts";
import { recordedSchedule } from "./recorded.ts";
import { type OpSeconds, simulate, type Simulation, type TraceEntry } from "./simulate.ts";

const EQUAL: OpSeconds = { F: 1, B: 1, W: 1 };

Deno.test("chimera with f pairs: bubble ratio (P-2f) / (2fN + P - 2f) if F = BW", () => {
  for (
    const [P, pairs, N] of [[4, 2, 4], [8, 2, 8], [12, 2, 12], [12, 3, 12], [16, 2, 16], [16, 4, 16]] as const
  ) {
    const result = simulate(chimera(P, N, { pairs }), { F: 1, B: 0.5, W: 0.5 }, NO_NETWORK);
    const ratio = (P - 2 * pairs) / (2 * pairs * N + P - 2 * pairs);
    close(result.bubble, ratio);
    close(result.makespan, 2 * N + P / pairs - 2);
  }
});

Deno.test("forward doubling: 3N + 2(P-2) from the second unit on, no more in the first; 2P activations", () => {
  for (const P of [2, 4, 6, 8, 16]) {
    for (const units of [1, 2, 3]) {
      const N = 2 * P * units;
      const result = simulate(chimeraForwardDoubling(P, N), EQUAL, NO_NETWORK);
      const formula = 3 * N + 2 * (P - 2);
      if (units > 1) close(result.makespan, formula);
      // Both forwards of a slot are sent as soon as each is done, which one unit alone turns to account.
      else assert.ok(result.makespan <= formula && result.makespan >= 3 * N + P - 2, `${result.makespan}`);
      assert.equal(Math.max(...result.peak), 2 * P);
    }
  }
});

Deno.test("backward halving: 3N + (P-2), within Chimera's memory", () => {
  for (const P of [2, 4, 8, 16]) {
    const N = 2 * P;
    const result = simulate(chimeraBackwardHalving(P, N), { F: 0.5, B: 0.5, W: 0.5 }, NO_NETWORK);
    close(result.makespan, 3 * N + P - 2);
    assert.ok(Math.max(...result.peak) / 2 <= P);
  }
});

Deno.test("zb-v: no bubble from N = 2P-1 on if F = B = W, within the memory of 1F1B", () => {
  for (const [P, N] of [[1, 1], [2, 3], [3, 5], [4, 7], [4, 12], [8, 24]] as const) {
    const result = simulate(zbV(P, N), EQUAL, NO_NETWORK);
    close(result.stageBubble, 0);
    assert.ok(Math.max(...result.peak) <= 2 * P);
  }
});

Deno.test("2bw: after the fill a step takes N of the bottleneck's micro-batches", () => {
  const makespan = (steps: number) => simulate(pipeDream2bw(6, 8, { steps }), EQUAL, NO_NETWORK).makespan;
  close(makespan(3) - makespan(2), 24);
  close(makespan(1), simulate(oneForwardOneBackward(6, 8), EQUAL, NO_NETWORK).makespan);
});

/** Every emitter, for sizes that it takes: half and k draw P and N. */
const EMITTERS: ((half: number, k: number) => Schedule)[] = [
  (half, k) => gpipe(half, k),
  (half, k) => oneForwardOneBackward(half, k),
  (half, k) => interleaved(half, half * k, 2),
  (half, k) => breadthFirst(half, k, 3),
  (half, k) => chimera(2 * half, 2 * half * k),
  (half, k) => chimera(4 * half, 4 * half * k, { pairs: 2 }),
  (half, k) => chimeraForwardDoubling(2 * half, 4 * half * k),
  (half, k) => chimeraBackwardHalving(2 * half, 2 * half * k),
  (half, k) => zbH1(half, k),
  (half, k) => zbH2(half, k),
  (half, k) => zbV(half, k),
  (half, k) => dualPipe(2 * half, 4 * half + 2 * k),
  (half, k) => dualPipe(2 * half, 4 * half + 2 * k, { paired: false }),
  (half, k) => pipeDream2bw(half, half + k, { steps: 2 }),
];

const conditions = {
  half: fc.integer({ min: 1, max: 4 }),
  k: fc.integer({ min: 1, max: 5 }),
  times: fc.array(fc.double({ min: 0.01, max: 3, noNaN: true }), { minLength: 5, maxLength: 5 }),
  latency: fc.double({ min: 0, max: 3, noNaN: true }),
  transfer: fc.double({ min: 0, max: 2, noNaN: true }),
  mode: fc.constantFrom<Network["mode"]>("duplex", "inbound-shared", "stop-and-wait"),
};

Deno.test("every emitter, at random times on random links: valid, and no operation starts before its inputs", () => {
  const instance = fc.record({ ...conditions, emitter: fc.nat(EMITTERS.length - 1) });
  fc.assert(
    fc.property(instance, ({ half, k, times, latency, transfer, mode, emitter }) => {
      const schedule = EMITTERS[emitter]!(half, k);
      assert.deepEqual(problemsOf(schedule), []);
      const at = (offset: number) => (stage: number, device: number) => times[(stage + device + offset) % 5]!;
      const network: Network = { latency, transfer, mode };
      const result = simulate(schedule, { F: at(0), B: at(1), W: at(2) }, network);
      checkTrace(schedule, result, latency + transfer);
      result.peak.forEach((peak, device) => assert.ok(peak <= schedule.peakActivations[device]!));
      result.busy.forEach((busy) => assert.ok(result.makespan >= busy - 1e-9));
    }),
    { seed: 51, numRuns: 400 },
  );
});

Deno.test("the dynamic order, recorded, is valid and takes as long when it is run as a list", () => {
  fc.assert(
    fc.property(fc.record(conditions), ({ half: P, k: N, times, latency, transfer, mode }) => {
      const at = (offset: number) => (stage: number) => times[(stage + offset) % 5]!;
      const costs = { seconds: { F: at(0), B: at(1), W: at(2) }, network: { latency, transfer, mode } };
      const stages = singleReplicas(N, Array<number>(P).fill(Math.min(N, 3)));
      const result = simulatePipeline("dynamic", stages, costs);
      const schedule = recordedSchedule(result, stages);
      assert.deepEqual(problemsOf(schedule), []);
      close(simulate(schedule, costs.seconds, costs.network).makespan, result.makespan);
      checkTrace(schedule, result, latency + transfer);
    }),
    { seed: 52, numRuns: 200 },
  );
});

Deno.test("a recording needs stages of one replica", () => {
  const stages = [{ inflight: 2, slots: 2, replicas: [[0], [1]] }];
  const result = simulatePipeline("dynamic", stages, { seconds: EQUAL, network: NO_NETWORK });
  assert.throws(() => recordedSchedule(result, stages), /stage 0 has 2 replicas/);
});

/** Each operation starts when its inputs are there, at the earliest a hop after they were made elsewhere. */
function checkTrace(schedule: Schedule, result: Simulation, hop: number): void {
  const key = (kind: string, at: { direction: number; stage: number; microBatch: number }) =>
    `${kind}:${at.direction}:${at.stage}:${at.microBatch}`;
  const made = new Map<string, TraceEntry>();
  for (const entry of result.trace) made.set(key(entry.kind === "BW" ? "B" : entry.kind, entry), entry);
  for (const entry of result.trace) {
    for (const needed of dependencies(makeOp(entry.kind, entry), schedule)) {
      const input = made.get(key(needed.kind, needed))!;
      // The halves of a fused pair share their times and wait for one another's inputs, not for one another.
      if (input.start === entry.start && input.device === entry.device) continue;
      const earliest = input.end + (input.device === entry.device ? 0 : hop);
      assert.ok(
        entry.start >= earliest - 1e-9,
        `${key(entry.kind, entry)} of ${schedule.name} starts too early`,
      );
    }
  }
}

function close(actual: number, expected: number): void {
  assert.ok(Math.abs(actual - expected) < 1e-9, `${actual}, expected ${expected}`);
}
