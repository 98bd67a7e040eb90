// Fixed point: exact rounding, saturation, bounds, and sums that do not depend on order.
import assert from "node:assert/strict";
import fc from "fast-check";
import { accumulate, addInto, createAccumulator } from "./accumulate.ts";
import { ceilLog2, powerOfTwo } from "./power.ts";
import { blockShift, quantise, quantumLimit } from "./quantise.ts";
import { blocksOf, stageBlockCount } from "./state.ts";
import { paddingOf, permutationOf, testGradient, testState } from "./testing_data.ts";

Deno.test("power: powers and their logarithm are exact", () => {
  for (let k = -128; k <= 128; k++) {
    assert.equal(powerOfTwo(k), 2 ** k);
    assert.equal(ceilLog2(2 ** k), k);
    if (k < 128) assert.equal(ceilLog2(2 ** k * 1.0000001), k + 1);
  }
  assert.equal(ceilLog2(1e-300), -128);
  assert.throws(() => powerOfTwo(129), /outside the table/);
  assert.throws(() => ceilLog2(0), /outside the table/);
});

Deno.test("quantise: N micro-batches at the limit fit an int32 twice over", () => {
  for (let n = 1; n <= 256; n++) {
    assert.ok(2 * n * quantumLimit(n) <= 0x7fffffff && 2 * n * (quantumLimit(n) + 1) > 0x7fffffff);
    // ±2^exponent itself does not saturate, and at most one bit is given away.
    assert.ok(2 ** blockShift(0, n) <= quantumLimit(n) && 4 * 2 ** blockShift(0, n) > quantumLimit(n));
  }
  assert.throws(() => quantumLimit(0), /micro-batches/);
  assert.throws(() => quantumLimit(257), /micro-batches/);
});

Deno.test("quantise: ties go to the even integer", () => {
  const state = testState(0);
  const unit = 2 ** -blockShift(0, 1);
  const grad = new Float32Array(state.layout.size);
  const ties = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.75, -0.25];
  ties.forEach((tie, i) => grad[i] = tie * unit);
  const { values } = quantise(grad, state, { microBatches: 1 });
  assert.deepEqual([...values.subarray(0, ties.length)], [0, 2, 2, 0, -2, -2, 1, 0]);
});

Deno.test("quantise: every value is within half a unit, at any exponent and N", () => {
  const inputs = fc.record({
    exponent: fc.integer({ min: -60, max: 60 }),
    microBatches: fc.integer({ min: 1, max: 256 }),
    seed: fc.nat(),
  });
  fc.assert(
    fc.property(inputs, ({ exponent, microBatches, seed }) => {
      const state = testState(exponent);
      const grad = testGradient(state.layout, { seed, scale: 2 ** (exponent - 3) });
      const result = quantise(grad, state, { microBatches });
      assert.deepEqual([result.saturated, result.nonFinite], [0, 0]);
      const unit = 2 ** -blockShift(exponent, microBatches);
      result.values.forEach((q, i) => assert.ok(Math.abs(q * unit - grad[i]!) <= unit / 2));
    }),
    { seed: 5, numRuns: 40 },
  );
});

Deno.test("quantise: too large values saturate, non-finite ones become 0, both are counted", () => {
  const state = testState(-10);
  const grad = new Float32Array(state.layout.size);
  grad.set([1, -1, 3e38, NaN, Infinity, -Infinity, 2 ** -10]);
  const { values, saturated, nonFinite } = quantise(grad, state, { microBatches: 4 });
  const limit = quantumLimit(4);
  assert.deepEqual([...values.subarray(0, 7)], [limit, -limit, limit, 0, 0, 0, 2 ** 27]);
  assert.deepEqual([saturated, nonFinite], [3, 3]);
});

Deno.test("quantise: padding gives 0 and a given array is reused", () => {
  const state = testState();
  const out = new Int32Array(state.layout.size);
  const grad = testGradient(state.layout, { seed: 1, scale: 0.1 });
  assert.equal(quantise(grad, state, { microBatches: 2, out }).values, out);
  const padding = paddingOf(state.layout);
  assert.ok(padding.length > 0 && padding.every((i) => out[i] === 0));
});

Deno.test("quantise: blocks lie within tensors and cover them", () => {
  const { layout } = testState();
  const covered = new Set<number>();
  let count = 0;
  for (const { index, start, end, tensor } of blocksOf(layout)) {
    assert.equal(index, count++);
    assert.ok(start >= tensor.offset && end <= tensor.offset + tensor.size && end - start <= 1024);
    for (let i = start; i < end; i++) covered.add(i);
  }
  assert.equal(count, stageBlockCount(layout));
  assert.equal(covered.size + paddingOf(layout).length, layout.size);
});

Deno.test("quantise: a total does not depend on order or on how micro-batches are grouped", () => {
  const N = 6;
  const state = testState();
  const parts = Array.from({ length: N }, (_, m) => {
    const grad = testGradient(state.layout, { seed: m, scale: 0.3 });
    return quantise(grad, state, { microBatches: N }).values;
  });
  const reference = createAccumulator(state.layout.size);
  parts.forEach((values) => addInto(reference.values, values));
  fc.assert(
    fc.property(permutationOf(N), fc.integer({ min: 0, max: N }), (order, cut) => {
      const sums = [order.slice(0, cut), order.slice(cut)].map((group) => {
        const sum = createAccumulator(state.layout.size);
        for (const m of group) {
          assert.ok(accumulate(sum, { microBatches: [m], values: parts[m]! }, N).ok);
        }
        return sum;
      });
      const total = createAccumulator(state.layout.size);
      for (const sum of sums.reverse()) assert.ok(accumulate(total, sum, N).ok);
      assert.deepEqual(total.values, reference.values);
      assert.deepEqual(total.microBatches, [0, 1, 2, 3, 4, 5]);
    }),
    { seed: 6, numRuns: 30 },
  );
});
