// The split of layers over stages against brute force over every cut.
import assert from "node:assert/strict";
import fc from "fast-check";
import { bestSplit, type LayerRange, splitWithin } from "./partition.ts";

const real = (min: number, max: number) => fc.double({ min, max, noNaN: true });

const anything = () => true;

Deno.test("equal stages get equal layers, a faster stage gets more", () => {
  assert.deepEqual(sizes(splitWithin(12, [1, 1, 1], anything)), [4, 4, 4]);
  assert.deepEqual(sizes(splitWithin(12, [1, 2, 3], anything)), [2, 4, 6]);
  assert.deepEqual(sizes(splitWithin(4, [1, 100, 1], anything)), [1, 2, 1]);
  assert.deepEqual(splitWithin(1, [5], anything), [{ firstLayer: 0, endLayer: 1 }]);
});

Deno.test("memory moves the cut, and where nothing fits there is none", () => {
  const atMost = (limits: number[]) => (s: number, i: number, j: number) => j - i <= limits[s]!;
  assert.deepEqual(sizes(splitWithin(12, [1, 1, 1], atMost([9, 2, 9]))), [5, 2, 5]);
  assert.equal(splitWithin(12, [1, 1, 1], atMost([5, 2, 4])), null);
});

Deno.test("a heavy last layer stands alone", () => {
  const costs = [1, 1, 1, 3];
  assert.deepEqual(sizes(bestSplit(4, 2, (_, i, j) => sumOf(costs, { firstLayer: i, endLayer: j }))), [3, 1]);
});

Deno.test("the split covers every layer in order and its slowest stage is the fastest possible", () => {
  const instance = fc.record({
    costs: fc.array(real(0.1, 5), { minLength: 4, maxLength: 9 }),
    throughput: fc.array(real(0.2, 4), { minLength: 1, maxLength: 4 }),
    limits: fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 4, maxLength: 4 }),
  });
  let impossible = 0;
  fc.assert(
    fc.property(instance, ({ costs, throughput, limits }) => {
      const seconds = (s: number, firstLayer: number, endLayer: number) =>
        endLayer - firstLayer > limits[s]!
          ? Infinity
          : sumOf(costs, { firstLayer, endLayer }) / throughput[s]!;
      const slowest = (cut: LayerRange[]) =>
        Math.max(...cut.map(({ firstLayer, endLayer }, s) => seconds(s, firstLayer, endLayer)));
      const split = bestSplit(costs.length, throughput.length, seconds);
      const expected = Math.min(...allCuts(costs.length, throughput.length).map(slowest));
      impossible += Number(split === null);
      if (split === null) return assert.equal(expected, Infinity);
      checkCover(split, costs.length);
      assert.equal(split.length, throughput.length);
      assert.ok(Math.abs(slowest(split) - expected) < 1e-9);
    }),
    { seed: 21, numRuns: 200 },
  );
  assert.ok(impossible > 20 && impossible < 150, `${impossible} had no split`);
});

Deno.test("splits that cannot be are refused with the numbers", () => {
  assert.throws(() => splitWithin(2, [1, 1, 1], anything), /cannot cut 2 layers into 3 stages/);
  assert.throws(() => splitWithin(2, [1, 0], anything), /positive and finite, got 0/);
  assert.throws(() => splitWithin(2, [1, NaN], anything), /got NaN/);
});

function sizes(ranges: LayerRange[] | null): number[] {
  assert.ok(ranges !== null);
  return ranges.map((range) => range.endLayer - range.firstLayer);
}

function checkCover(ranges: LayerRange[], nLayer: number): void {
  let next = 0;
  for (const range of ranges) {
    assert.equal(range.firstLayer, next);
    assert.ok(range.endLayer > range.firstLayer);
    next = range.endLayer;
  }
  assert.equal(next, nLayer);
}

/** Every way to cut [from, nLayer) into `parts` non-empty ranges. */
function allCuts(nLayer: number, parts: number, from = 0): LayerRange[][] {
  if (parts === 0) return from === nLayer ? [[]] : [];
  const cuts: LayerRange[][] = [];
  for (let end = from + 1; end <= nLayer; end++) {
    for (const rest of allCuts(nLayer, parts - 1, end)) {
      cuts.push([{ firstLayer: from, endLayer: end }, ...rest]);
    }
  }
  return cuts;
}

function sumOf(values: number[], range: LayerRange): number {
  return values.slice(range.firstLayer, range.endLayer).reduce((a, b) => a + b, 0);
}
