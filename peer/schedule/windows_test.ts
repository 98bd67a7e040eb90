// In-flight caps against the formula, and the spans of fixed orders against a brute-force count.
import assert from "node:assert/strict";
import fc from "fast-check";
import { gpipeChunk, inflightCaps, type StageLoad, windows1f1b } from "./windows.ts";

Deno.test("without latency the caps are those of 1F1B, plus the slack", () => {
  assert.deepEqual(inflightCaps([1, 1, 1, 1], [0, 0, 0], 64, { slack: 0 }), [4, 3, 2, 1]);
  assert.deepEqual(inflightCaps([1, 1, 1, 1], [0, 0, 0], 64), [6, 5, 4, 3]);
});

Deno.test("latency raises the caps by a round trip, counted in the bottleneck's time", () => {
  // 60 ms of compute, 70 ms per hop (50 latency, 20 transfer), eight stages: 27 in flight, as in the table.
  assert.equal(inflightCaps(Array(8).fill(0.06), Array(7).fill(0.07), 32)[0], 27);
  assert.deepEqual(inflightCaps([1, 2], [1], 64, { slack: 0 }), [3, 1]);
});

Deno.test("a link slower than every stage is the bottleneck, and lowers the caps to its pace", () => {
  assert.deepEqual(inflightCaps([1, 1], [10], 64, { slack: 0 }), [22, 1]);
  assert.deepEqual(inflightCaps([1, 1], [10], 64, { slack: 0, transfers: [10] }), [3, 1]);
});

Deno.test("caps are at least 1 and at most the step, and never grow along the pipeline", () => {
  const times = fc.array(fc.double({ min: 1e-3, max: 10, noNaN: true }), { minLength: 1, maxLength: 8 });
  const hops = fc.array(fc.double({ min: 0, max: 10, noNaN: true }), { minLength: 7, maxLength: 7 });
  fc.assert(
    fc.property(times, hops, fc.integer({ min: 1, max: 64 }), (t, hop, N) => {
      const caps = inflightCaps(t, hop, N);
      assert.equal(caps.length, t.length);
      caps.forEach((cap, p) => assert.ok(cap >= 1 && cap <= N && cap <= (caps[p - 1] ?? N)));
    }),
    { seed: 3, numRuns: 200 },
  );
});

const loads = fc.array(
  fc.record({
    cap: fc.integer({ min: 1, max: 5 }),
    owners: fc.array(fc.nat(2), { minLength: 10, maxLength: 10 }),
  }),
  { minLength: 1, maxLength: 4 },
).map((stages): StageLoad[] =>
  stages.map(({ cap, owners }) => ({
    cap,
    lists: [0, 1, 2].map((owner) => owners.flatMap((holder, m) => holder === owner ? [m] : [])),
  }))
);

Deno.test("1f1b spans never grow, and are as wide as the caps and the pipeline's depth allow", () => {
  fc.assert(
    fc.property(loads, (load) => {
      let widest = 10;
      const expected = load.map((stage, p) => {
        const held = Math.min(load.length - p, stage.cap);
        while (stage.lists.some((list) => mostInWindow(list, widest) > held)) widest--;
        return widest;
      });
      assert.deepEqual(windows1f1b(load), expected);
    }),
    { seed: 4, numRuns: 200 },
  );
});

Deno.test("the gpipe chunk is the largest that fits every replica", () => {
  fc.assert(
    fc.property(loads, (load) => {
      const fits = (chunk: number) =>
        load.every((stage) => stage.lists.every((list) => mostInChunk(list, chunk) <= stage.cap));
      let expected = 10;
      while (!fits(expected)) expected--;
      assert.equal(gpipeChunk(load), expected);
    }),
    { seed: 5, numRuns: 200 },
  );
});

function mostInWindow(list: readonly number[], width: number): number {
  return Math.max(0, ...list.map((start) => list.filter((m) => m >= start && m < start + width).length));
}

function mostInChunk(list: readonly number[], chunk: number): number {
  const same = (a: number, b: number) => Math.floor(a / chunk) === Math.floor(b / chunk);
  return Math.max(0, ...list.map((m) => list.filter((other) => same(m, other)).length));
}
