// The simulated executor against the published comparison of schedules under latency, against the static
// simulator where both run the same order, and under jitter, replicas and faults of the plan.
import assert from "node:assert/strict";
import fc from "fast-check";
import { gpipe, oneForwardOneBackward } from "../../peer/schedule/emitters.ts";
import type { ScheduleId } from "../../peer/wire/run.ts";
import { inflightCaps } from "../../peer/schedule/windows.ts";
import { type SimulatedStage, simulatePipeline, singleReplicas } from "./dynamic.ts";
import { type Network, NO_NETWORK } from "./network.ts";
import { type OpSeconds, simulate } from "./simulate.ts";

const THIRDS: OpSeconds = { F: 0.02, B: 0.02, W: 0.02 };
const textbook = (P: number) => Array.from({ length: P }, (_, p) => P - p);

/** P = 8, N = 32, 60 ms of compute and 20 ms of transfer: step time / (N * 60 ms), most activations held. */
const LATENCY_TABLE: [latency: number, fused: string, split: string, peak: number][] = [
  [0, "1.36", "1.22", 15],
  [0.01, "1.44", "1.30", 17],
  [0.025, "1.56", "1.42", 21],
  [0.05, "1.75", "1.55", 27],
  [0.1, "2.09", "1.86", 32],
];

for (const [latency, fused, split, peak] of LATENCY_TABLE) {
  Deno.test(`the dynamic order at ${latency * 1000} ms is as fast as published, fused and split`, () => {
    const caps = inflightCaps(Array(8).fill(0.06), Array(7).fill(latency + 0.02), 32);
    const network: Network = { latency, transfer: 0.02, mode: "duplex" };
    const costs = { seconds: THIRDS, network };
    const whole = simulatePipeline("dynamic", singleReplicas(32, caps), { ...costs, fusedBackward: true });
    assert.equal((whole.makespan / (32 * 0.06)).toFixed(2), fused);
    assert.equal(Math.max(...whole.peak), peak);
    const slots = caps.map(() => caps[0]!);
    const parts = simulatePipeline("dynamic", singleReplicas(32, caps, slots), costs);
    assert.equal((parts.makespan / (32 * 0.06)).toFixed(2), split);
    assert.equal(Math.max(...parts.peak), peak);
  });
}

Deno.test("calibration: the eight-stage benchmark, latency-aware, on duplex links", () => {
  const benchmark = (bytesPerToken: number, sequences: number) => {
    const N = 512 / sequences;
    const t = 0.2 / N;
    const transfer = bytesPerToken * sequences * 1024 * 8 / 200e6;
    const transfers = Array<number>(7).fill(transfer);
    const caps = inflightCaps(Array(8).fill(t), Array(7).fill(0.05 + transfer), N, { transfers });
    // The reference counts a stage's own micro-batch as one bottleneck, not by its time: at most one forward more.
    const stages = singleReplicas(N, caps, caps.map(() => N));
    const network: Network = { latency: 0.05, transfer, mode: "duplex" };
    return simulatePipeline("dynamic", stages, { seconds: { F: t / 3, B: t / 3, W: t / 3 }, network })
      .makespan;
  };
  within(benchmark(2048, 8), 52.39, 0.01);
  within(benchmark(322, 16), 10.24, 0.01);
});

Deno.test("fixed orders take as long here as in the static simulator", () => {
  const instance = fc.record({
    P: fc.integer({ min: 1, max: 6 }),
    N: fc.integer({ min: 1, max: 12 }),
    times: fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 18, maxLength: 18 }),
    latency: fc.integer({ min: 0, max: 9 }),
    transfer: fc.integer({ min: 0, max: 9 }),
    schedule: fc.constantFrom<ScheduleId>("gpipe", "1f1b"),
  });
  fc.assert(
    fc.property(instance, ({ P, N, times, latency, transfer, schedule }) => {
      const at = (offset: number) => (stage: number) => times[offset + stage]!;
      const costs = {
        seconds: { F: at(0), B: at(6), W: at(12) },
        network: { latency, transfer, mode: "duplex" as const },
      };
      const caps = schedule === "gpipe" ? Array<number>(P).fill(N) : textbook(P);
      const run = simulatePipeline(schedule, singleReplicas(N, caps), { ...costs, fusedBackward: true });
      const emitted = schedule === "gpipe" ? gpipe(P, N) : oneForwardOneBackward(P, N);
      const fixed = simulate(emitted, costs.seconds, costs.network);
      assert.ok(Math.abs(run.makespan - fixed.makespan) < 1e-9, `${run.makespan} and ${fixed.makespan}`);
      assert.deepEqual(run.peak, fixed.peak);
    }),
    { seed: 41, numRuns: 150 },
  );
});

Deno.test("any plan that covers the step ends, within its caps and its bounds, under any jitter", () => {
  const instance = fc.record({
    schedule: fc.constantFrom<ScheduleId>("gpipe", "1f1b", "dynamic"),
    owners: fc.integer({ min: 1, max: 12 }).chain((N) =>
      fc.array(fc.array(fc.nat(2), { minLength: N, maxLength: N }), { minLength: 1, maxLength: 4 })
    ),
    inflight: fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 4, maxLength: 4 }),
    slots: fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 4, maxLength: 4 }),
    mode: fc.constantFrom<Network["mode"]>("duplex", "inbound-shared", "stop-and-wait"),
    fusedBackward: fc.boolean(),
    factors: fc.infiniteStream(fc.double({ min: 0.1, max: 3, noNaN: true })),
  });
  fc.assert(
    fc.property(instance, ({ schedule, owners, inflight, slots, mode, fusedBackward, factors }) => {
      const stages = owners.map((list, s): SimulatedStage => ({
        inflight: inflight[s]!,
        slots: slots[s]!,
        replicas: [0, 1, 2].map((owner) => list.flatMap((holder, m) => holder === owner ? [m] : [])),
      }));
      const jitter = () => factors.next().value!;
      const network: Network = { latency: 1, transfer: 0.5, mode };
      const result = simulatePipeline(schedule, stages, { seconds: THIRDS, network, fusedBackward, jitter });
      const N = owners[0]!.length;
      assert.equal(result.trace.length, stages.length * N * (fusedBackward ? 2 : 3));
      result.peak.forEach((peak, device) => assert.ok(peak <= slots[Math.floor(device / 3)]!));
      assert.ok(result.makespan >= Math.max(...result.busy) - 1e-9);
    }),
    { seed: 42, numRuns: 200 },
  );
});

Deno.test("two replicas of the slow stage halve its time", () => {
  const even = [0, 2, 4, 6, 8, 10, 12, 14];
  const odd = even.map((m) => m + 1);
  const all = [...even, ...odd].toSorted((a, b) => a - b);
  const ends = { inflight: 16, slots: 16, replicas: [all] };
  const seconds: OpSeconds = { F: (stage) => stage === 1 ? 2 : 1, B: (stage) => stage === 1 ? 2 : 1, W: 0 };
  const run = (replicas: number[][]) =>
    simulatePipeline("dynamic", [ends, { ...ends, replicas }, ends], { seconds, network: NO_NETWORK })
      .makespan;
  // The bottleneck's 16 * 4 seconds, then half of them, plus filling and draining.
  assert.ok(run([all]) >= 64);
  assert.ok(run([even, odd]) <= 32 + 8, `${run([even, odd])}`);
});

Deno.test("the same input gives the same run, to the last bit", () => {
  const stages = singleReplicas(9, [4, 3, 2]);
  const costs = {
    seconds: THIRDS,
    network: { latency: 0.013, transfer: 0.007, mode: "inbound-shared" as const },
  };
  assert.deepEqual(simulatePipeline("dynamic", stages, costs), simulatePipeline("dynamic", stages, costs));
});

Deno.test("stages of one device take turns: backward first, then forward, and what stays on it takes no way", () => {
  const seconds: OpSeconds = { F: 1, B: 2, W: 4 };
  const network: Network = { latency: 10, transfer: 5, mode: "duplex" };
  const stage = { inflight: 2, slots: 2, replicas: [[0, 1]] };
  const stages = [{ ...stage, devices: [0] }, { ...stage, devices: [1] }, { ...stage, devices: [1] }];
  const { trace, makespan, busy, peak } = simulatePipeline("dynamic", stages, { seconds, network });
  const order = trace.filter((entry) => entry.device === 1);
  assert.equal(
    order.map(({ kind, stage, microBatch }) => `${kind}${stage}${microBatch}`).join(" "),
    "F10 F20 B20 B10 F11 F21 B21 B11 W10 W20 W11 W21",
  );
  // The second activation is there at 21; the last gradient leaves when B of stage 1 is done, at 28.
  assert.deepEqual(order.map(({ start }) => start), [16, 17, 18, 20, 22, 23, 24, 26, 28, 32, 36, 40]);
  assert.deepEqual([busy, peak, makespan], [[14, 28], [2, 4], 28 + 15 + 2 + 4]);
  const apart = [{ ...stage, devices: [0] }, { ...stage, devices: [1] }, { ...stage, devices: [2] }];
  const plain = [stage, stage, stage];
  assert.deepEqual(
    simulatePipeline("dynamic", apart, { seconds, network }),
    simulatePipeline("dynamic", plain, { seconds, network }),
  );
});

Deno.test("two stages a device fill the pipeline in half the time", () => {
  const [P, N, ms] = [8, 32, 20];
  const all = Array.from({ length: N }, (_, m) => m);
  const makespan = (loops: number) => {
    const stages = Array.from({ length: P * loops }, (_, s): SimulatedStage => ({
      ...{ inflight: N, slots: N, replicas: [all], devices: [s % P] },
    }));
    const seconds = { F: ms / loops, B: ms / loops, W: ms / loops };
    return simulatePipeline("dynamic", stages, { seconds, network: NO_NETWORK }).makespan;
  };
  assert.deepEqual([1, 2, 4].map(makespan), [1, 2, 4].map((loops) => 3 * N * ms + (P - 1) * ms / loops));
});

Deno.test("a plan whose stages hold different micro-batches is refused", () => {
  const stages = [...singleReplicas(4, [2]), ...singleReplicas(3, [2])];
  const costs = { seconds: THIRDS, network: NO_NETWORK };
  assert.throws(
    () => simulatePipeline("dynamic", stages, costs),
    /stage 1 holds 3 micro-batches, stage 0 holds 4/,
  );
  const shifted = [{ inflight: 2, slots: 2, replicas: [[0, 1]] }, {
    inflight: 2,
    slots: 2,
    replicas: [[0, 2]],
  }];
  assert.throws(() => simulatePipeline("dynamic", shifted, costs), /never finishes/);
});

function within(actual: number, expected: number, share: number): void {
  assert.ok(Math.abs(actual / expected - 1) < share, `${actual}, expected ${expected}`);
}
