// The simulator against published numbers: the golden table of bubbles and memories (every row equals the
// closed form of its paper), a measured benchmark of an eight-stage run, and bounds that no run may break.
import assert from "node:assert/strict";
import fc from "fast-check";
import { breadthFirst, gpipe, interleaved, oneForwardOneBackward } from "../../peer/schedule/emitters.ts";
import { chimera } from "../../peer/schedule/emitters_chimera.ts";
import { dualPipe, zbH1, zbH2 } from "../../peer/schedule/emitters_split.ts";
import type { Schedule } from "../../peer/schedule/ir.ts";
import { type Network, NO_NETWORK } from "./network.ts";
import { type OpSeconds, simulate } from "./simulate.ts";

/** F = 1, BW = 1, as in the Chimera paper. */
const FUSED: OpSeconds = { F: 1, B: 0.5, W: 0.5 };
/** F = B = W = 1; a pair of DualPipe takes the sum. */
const SPLIT: OpSeconds = { F: 1, B: 1, W: 1, FB: 3 };
const UNEVEN: OpSeconds = { F: 2, B: 3, W: 1 };

type Row = [
  name: string,
  seconds: OpSeconds,
  P: number,
  N: number,
  makespan: number,
  bubble: number,
  stageBubble: number,
  peak: string,
];

/** Bubbles are rounded to four digits, everything else is exact. */
const GOLDEN: Row[] = [
  ["gpipe", FUSED, 4, 4, 14, 0.4286, 6, "4,4,4,4"],
  ["1f1b", FUSED, 4, 4, 14, 0.4286, 6, "4,3,2,1"],
  ["chimera", FUSED, 4, 4, 10, 0.2, 2, "3,4,4,3"],
  ["gpipe", FUSED, 4, 8, 22, 0.2727, 6, "8,8,8,8"],
  ["1f1b", FUSED, 4, 8, 22, 0.2727, 6, "4,3,2,1"],
  ["chimera", FUSED, 4, 8, 18, 0.1111, 2, "3,4,4,3"],
  ["gpipe", FUSED, 8, 8, 30, 0.4667, 14, "8,8,8,8,8,8,8,8"],
  ["1f1b", FUSED, 8, 8, 30, 0.4667, 14, "8,7,6,5,4,3,2,1"],
  ["chimera", FUSED, 8, 8, 22, 0.2727, 6, "5,6,7,8,8,7,6,5"],
  ["gpipe", FUSED, 8, 16, 46, 0.3043, 14, "16,16,16,16,16,16,16,16"],
  ["1f1b", FUSED, 8, 16, 46, 0.3043, 14, "8,7,6,5,4,3,2,1"],
  ["chimera", FUSED, 8, 16, 38, 0.1579, 6, "5,6,7,8,8,7,6,5"],
  ["gpipe", FUSED, 8, 32, 78, 0.1795, 14, "32,32,32,32,32,32,32,32"],
  ["1f1b", FUSED, 8, 32, 78, 0.1795, 14, "8,7,6,5,4,3,2,1"],
  ["chimera", FUSED, 8, 32, 70, 0.0857, 6, "5,6,7,8,8,7,6,5"],
  ["gpipe", FUSED, 16, 16, 62, 0.4839, 30, "16,16,16,16,16,16,16,16,16,16,16,16,16,16,16,16"],
  ["1f1b", FUSED, 16, 16, 62, 0.4839, 30, "16,15,14,13,12,11,10,9,8,7,6,5,4,3,2,1"],
  ["chimera", FUSED, 16, 16, 46, 0.3043, 14, "9,10,11,12,13,14,15,16,16,15,14,13,12,11,10,9"],
  ["chimera", SPLIT, 4, 4, 16, 0.25, 4, "3,4,4,3"],
  ["chimera", SPLIT, 8, 8, 36, 0.3333, 12, "5,6,7,8,8,7,6,5"],
  ["chimera", SPLIT, 16, 16, 76, 0.3684, 28, "9,10,11,12,13,14,15,16,16,15,14,13,12,11,10,9"],
  ["chimera", SPLIT, 4, 8, 30, 0.2, 6, "3,4,4,3"],
  ["chimera", SPLIT, 8, 16, 66, 0.2727, 18, "5,6,7,8,8,7,6,5"],
  ["chimera", SPLIT, 8, 32, 126, 0.2381, 30, "5,6,7,8,8,7,6,5"],
  ["interleaved2", SPLIT, 4, 8, 28.5, 0.1579, 4.5, "11,9,7,5"],
  ["breadthFirst2", SPLIT, 4, 8, 28.5, 0.1579, 4.5, "16,16,16,16"],
  ["interleaved2", SPLIT, 8, 16, 58.5, 0.1795, 10.5, "23,21,19,17,15,13,11,9"],
  ["breadthFirst2", SPLIT, 8, 16, 58.5, 0.1795, 10.5, "32,32,32,32,32,32,32,32"],
  ["interleaved4", SPLIT, 8, 32, 101.25, 0.0519, 5.25, "39,37,35,33,31,29,27,25"],
  ["breadthFirst4", SPLIT, 8, 32, 101.25, 0.0519, 5.25, "128,128,128,128,128,128,128,128"],
  ["1f1b", SPLIT, 4, 8, 33, 0.2727, 9, "4,3,2,1"],
  ["zbH1", SPLIT, 4, 8, 27, 0.1111, 3, "4,4,4,4"],
  ["zbH2", SPLIT, 4, 8, 27, 0.1111, 0, "7,7,7,7"],
  ["1f1b", SPLIT, 4, 12, 45, 0.2, 9, "4,3,2,1"],
  ["zbH1", SPLIT, 4, 12, 39, 0.0769, 3, "4,4,4,4"],
  ["zbH2", SPLIT, 4, 12, 39, 0.0769, 0, "7,7,7,7"],
  ["1f1b", SPLIT, 8, 24, 93, 0.2258, 21, "8,7,6,5,4,3,2,1"],
  ["zbH1", SPLIT, 8, 24, 79, 0.0886, 7, "8,8,8,8,8,8,8,8"],
  ["zbH2", SPLIT, 8, 24, 79, 0.0886, 0, "15,15,15,15,15,15,15,15"],
  ["1f1b", SPLIT, 8, 32, 117, 0.1795, 21, "8,7,6,5,4,3,2,1"],
  ["zbH1", SPLIT, 8, 32, 103, 0.068, 7, "8,8,8,8,8,8,8,8"],
  ["zbH2", SPLIT, 8, 32, 103, 0.068, 0, "15,15,15,15,15,15,15,15"],
  ["dualPipe", SPLIT, 4, 8, 26, 0.0769, 2, "5,5,5,5"],
  ["dualPipe", SPLIT, 8, 20, 66, 0.0909, 6, "9,9,9,9,9,9,9,9"],
  ["dualPipe", SPLIT, 8, 32, 102, 0.0588, 6, "9,9,9,9,9,9,9,9"],
  ["zbH1", UNEVEN, 4, 12, 84, 0.1429, 12, "4,4,4,4"],
  ["zbH2", UNEVEN, 4, 12, 81, 0.1111, 9, "7,7,7,7"],
  ["1f1b", UNEVEN, 4, 12, 90, 0.2, 18, "4,3,2,1"],
  ["zbH1", UNEVEN, 8, 32, 220, 0.1273, 28, "8,8,8,8,8,8,8,8"],
  ["zbH2", UNEVEN, 8, 32, 213, 0.0986, 21, "15,15,15,15,15,15,15,15"],
  ["1f1b", UNEVEN, 8, 32, 234, 0.1795, 42, "8,7,6,5,4,3,2,1"],
];

for (const [name, seconds, P, N, makespan, bubble, stageBubble, peak] of GOLDEN) {
  Deno.test(`golden: ${name} P=${P} N=${N} takes ${makespan}`, () => {
    const { schedule, chunks } = emit(name, P, N);
    const result = simulate(schedule, divided(seconds, chunks), NO_NETWORK);
    close(result.makespan, makespan);
    close(result.stageBubble, stageBubble);
    close(result.bubble, 1 - N * perMicroBatch(seconds) / makespan);
    assert.equal(result.bubble.toFixed(4), bubble.toFixed(4));
    assert.equal(result.peak.join(), peak);
  });
}

/** One step of the ProtocolNanoGPT benchmark: 8 stages, 524 288 tokens, 200 Mb/s, 50 ms, 0.2 s of compute. */
function benchmarkStep(
  bytesPerToken: number,
  sequences: number,
  mode: Network["mode"],
  of = oneForwardOneBackward,
) {
  const N = 512 / sequences;
  const third = 0.2 / N / 3;
  const transfer = bytesPerToken * sequences * 1024 * 8 / 200e6;
  return simulate(of(8, N), { F: third, B: third, W: third }, { latency: 0.05, transfer, mode }).makespan;
}

Deno.test("calibration: the benchmark's published seconds per step come out within 1 %", () => {
  within(benchmarkStep(2048, 8, "stop-and-wait"), 100.475, 0.01);
  within(benchmarkStep(322, 16, "stop-and-wait"), 19.889, 0.01);
});

Deno.test("calibration: the same run under the other link models", () => {
  within(benchmarkStep(2048, 8, "inbound-shared"), 99.27, 1e-4);
  within(benchmarkStep(2048, 8, "duplex"), 89.637, 1e-4);
  within(benchmarkStep(322, 16, "inbound-shared"), 19.237, 1e-4);
  within(benchmarkStep(322, 16, "duplex"), 17.994, 1e-4);
  within(benchmarkStep(2048, 8, "stop-and-wait", gpipe), 100.977, 1e-4);
  within(benchmarkStep(2048, 8, "duplex", gpipe), 94.677, 1e-4);
});

Deno.test("latency stretches 1F1B by about twice the hop per micro-batch, GPipe hardly", () => {
  const seconds = { F: 0.02, B: 0.02, W: 0.02 };
  const network: Network = { latency: 0.05, transfer: 0.02, mode: "duplex" };
  const ratio = (schedule: Schedule) => simulate(schedule, seconds, network).makespan / (32 * 0.06);
  assert.equal(ratio(gpipe(8, 32)).toFixed(2), "1.73");
  assert.equal(ratio(oneForwardOneBackward(8, 32)).toFixed(2), "3.70");
  assert.equal(ratio(chimera(8, 32)).toFixed(2), "3.35");
  assert.equal(ratio(zbH1(8, 32)).toFixed(2), "3.34");
  assert.equal(ratio(zbH2(8, 32)).toFixed(2), "2.09");
});

Deno.test("no run beats the lower bound of its bottleneck, and memory keeps its formula", () => {
  const instance = fc.record({
    P: fc.integer({ min: 2, max: 6 }),
    N: fc.integer({ min: 1, max: 16 }),
    times: fc.array(fc.double({ min: 0.01, max: 3, noNaN: true }), { minLength: 18, maxLength: 18 }),
    latency: fc.double({ min: 0, max: 3, noNaN: true }),
    transfer: fc.double({ min: 0, max: 2, noNaN: true }),
    mode: fc.constantFrom<Network["mode"]>("duplex", "inbound-shared", "stop-and-wait"),
    emit: fc.constantFrom(gpipe, (P: number, N: number) => oneForwardOneBackward(P, N), zbH1, zbH2),
  });
  fc.assert(
    fc.property(instance, ({ P, N, times, latency, transfer, mode, emit: emitter }) => {
      const at = (offset: number) => (stage: number) => times[offset + stage]!;
      const schedule = emitter(P, N);
      const result = simulate(schedule, { F: at(0), B: at(6), W: at(12) }, { latency, transfer, mode });
      result.peak.forEach((peak, device) => assert.ok(peak <= schedule.peakActivations[device]!));
      let fill = 0;
      let drain = 0;
      for (let p = 0; p < P; p++) {
        // Nothing reaches stage p before the fill, and its last B has to travel back to stage 0.
        assert.ok(result.makespan >= fill + N * (at(0)(p) + at(6)(p) + at(12)(p)) - 1e-9);
        assert.ok(result.makespan >= fill + N * (at(0)(p) + at(6)(p)) + drain - 1e-9);
        fill += at(0)(p) + latency + transfer;
        drain += at(6)(p) + latency + transfer;
      }
    }),
    { seed: 31, numRuns: 200 },
  );
});

Deno.test("a device runs one operation at a time, and the trace holds all of them", () => {
  const result = simulate(dualPipe(4, 8), { F: 1, B: 2, W: 3 }, {
    latency: 1,
    transfer: 0.5,
    mode: "duplex",
  });
  const count = { F: 0, B: 0, W: 0, BW: 0 };
  for (const entry of result.trace) count[entry.kind]++;
  assert.equal(count.F, 32);
  assert.equal(count.B + count.BW, 32);
  assert.equal(count.W + count.BW, 32);
  const ends = [0, 0, 0, 0];
  const starts = [-1, -1, -1, -1];
  for (const entry of result.trace) {
    // Both halves of a fused pair carry the times of the pair.
    assert.ok(entry.start >= ends[entry.device]! || entry.start === starts[entry.device]);
    ends[entry.device] = entry.end;
    starts[entry.device] = entry.start;
  }
});

Deno.test("stages and links may differ one by one", () => {
  const seconds: OpSeconds = { F: (stage) => stage + 1, B: 1, W: 0, BW: (_, device) => 2 * (device + 1) };
  const network: Network = { latency: (from, to) => from < to ? 10 : 100, transfer: 0, mode: "duplex" };
  // F0 1, hop 10, F1 2, BW1 4, hop back 100, BW0 2.
  close(simulate(oneForwardOneBackward(2, 1), seconds, network).makespan, 119);
});

Deno.test("a schedule that deadlocks is refused by name", () => {
  const growing = oneForwardOneBackward(3, 8, (p) => [1, 2, 0][p]!);
  assert.throws(() => simulate(growing, SPLIT, NO_NETWORK), /1f1b deadlocks/);
});

/** The schedule of a golden row; a digit at the end of its name is the number of chunks per device. */
function emit(name: string, P: number, N: number): { schedule: Schedule; chunks: number } {
  const chunks = Number(/\d$/.exec(name)?.[0] ?? 1);
  if (name.startsWith("interleaved")) return { schedule: interleaved(P, N, chunks), chunks };
  if (name.startsWith("breadthFirst")) return { schedule: breadthFirst(P, N, chunks), chunks };
  const emitters: Record<string, (P: number, N: number) => Schedule> = {
    gpipe,
    chimera,
    dualPipe,
    zbH1,
    zbH2,
    "1f1b": oneForwardOneBackward,
  };
  return { schedule: emitters[name]!(P, N), chunks: 1 };
}

/** Times of one of `chunks` equal parts of a device's layers. */
function divided(seconds: OpSeconds, chunks: number): OpSeconds {
  if (chunks === 1) return seconds;
  const part = (value: OpSeconds["F"]) => Number(value) / chunks;
  return { F: part(seconds.F), B: part(seconds.B), W: part(seconds.W) };
}

function perMicroBatch(seconds: OpSeconds): number {
  return Number(seconds.F) + Number(seconds.B) + Number(seconds.W);
}

function close(actual: number, expected: number): void {
  assert.ok(Math.abs(actual - expected) < 1e-9, `${actual}, expected ${expected}`);
}

function within(actual: number, expected: number, share: number): void {
  assert.ok(Math.abs(actual / expected - 1) < share, `${actual}, expected ${expected}`);
}
