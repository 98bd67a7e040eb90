// Fixed point: exact rounding, saturation, bounds, and sums that do not depend on order.
import assert from "node:assert/strict";
import fc from "fast-check";
import { accumulate, addInto, createAccumulator } from "./accumulate.ts";
import { EMBEDDING_NAME, splitLayers, stageLayout, wholeModel } from "../model/layout.ts";
import type { ModelSpec, StageSpec } from "../wire/run.ts";
import { ceilLog2, powerOfTwo } from "./power.ts";
import { gridShift, quantise, quantumLimit } from "./quantise.ts";
import {
  BLOCK_VALUES,
  blocksOf,
  createState,
  stageBlockCount,
  type StageState,
  tensorSlice,
} from "./state.ts";
import { paddingOf, permutationOf, SPEC, testGradient, testState } from "./testing_data.ts";

/** The fine grid, for N micro-batches. */
function raw(microBatches: number) {
  return { microBatches, reduce: "raw32" as const, seed: 0, microBatch: 0, step: 0 };
}

/** The coarse grid with the random bits of one micro-batch. */
function int8(microBatch: number, microBatches = 4, seed = 1) {
  return { microBatches, reduce: "int8" as const, seed, microBatch };
}

/** A state in the middle of a run: the first step's grid is fine in both modes. */
function laterState(exponent: number, step = 5): StageState {
  const state = testState(exponent);
  state.step = step;
  return state;
}

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
    assert.ok(
      2 ** gridShift(0, raw(n)) <= quantumLimit(n) && 4 * 2 ** gridShift(0, raw(n)) > quantumLimit(n),
    );
  }
  assert.throws(() => quantumLimit(0), /micro-batches/);
  assert.throws(() => quantumLimit(257), /micro-batches/);
});

Deno.test("quantise: ties go to the even integer", () => {
  const state = testState(0);
  const unit = 2 ** -gridShift(0, raw(1));
  const grad = new Float32Array(state.layout.size);
  const ties = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.75, -0.25];
  ties.forEach((tie, i) => grad[i] = tie * unit);
  const { values } = quantise(grad, state, raw(1));
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
      const result = quantise(grad, state, raw(microBatches));
      assert.deepEqual([result.saturated, result.nonFinite], [0, 0]);
      const unit = 2 ** -gridShift(exponent, raw(microBatches));
      result.values.forEach((q, i) => assert.ok(Math.abs(q * unit - grad[i]!) <= unit / 2));
    }),
    { seed: 5, numRuns: 40 },
  );
});

Deno.test("quantise: too large values saturate, non-finite ones become 0, both are counted", () => {
  const state = testState(-10);
  const grad = new Float32Array(state.layout.size);
  grad.set([1, -1, 3e38, NaN, Infinity, -Infinity, 2 ** -10]);
  const { values, saturated, nonFinite } = quantise(grad, state, raw(4));
  const limit = quantumLimit(4);
  assert.deepEqual([...values.subarray(0, 7)], [limit, -limit, limit, 0, 0, 0, 2 ** 27]);
  assert.deepEqual([saturated, nonFinite], [3, 3]);
});

Deno.test("quantise: padding gives 0 and a given array is reused", () => {
  const state = testState();
  const out = new Int32Array(state.layout.size);
  const grad = testGradient(state.layout, { seed: 1, scale: 0.1 });
  assert.equal(quantise(grad, state, { ...raw(2), out }).values, out);
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

for (const reduce of ["raw32", "int8"] as const) {
  Deno.test(`quantise: a total does not depend on order or on grouping, ${reduce}`, () => {
    const N = 6;
    const state = laterState(0);
    const parts = Array.from({ length: N }, (_, m) => {
      const grad = testGradient(state.layout, { seed: m, scale: 0.3 });
      return quantise(grad, state, { microBatches: N, reduce, seed: 3, microBatch: m }).values;
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
}

Deno.test("int8: the last peak becomes 2^7 over the root of N, and the first step's grid is the fine one", () => {
  for (const [N, bits] of [[1, 7], [2, 7], [3, 7], [4, 6], [15, 6], [16, 5], [64, 4], [256, 3]] as const) {
    for (const exponent of [-20, 0, 60]) {
      const later = { microBatches: N, reduce: "int8" as const, step: 1 };
      assert.equal(gridShift(exponent, later), bits + 3 - exponent, `${N} micro-batches`);
      assert.equal(gridShift(exponent, { ...later, step: 0 }), gridShift(exponent, raw(N)));
    }
  }
});

Deno.test("int8: every value becomes one of its two neighbours, and whole ones themselves", () => {
  const inputs = fc.record({
    exponent: fc.integer({ min: -20, max: 60 }),
    microBatches: fc.integer({ min: 1, max: 256 }),
    seed: fc.nat(),
  });
  fc.assert(
    fc.property(inputs, ({ exponent, microBatches, seed }) => {
      const state = laterState(exponent, 1 + seed % 1000);
      const unit = 2 ** -gridShift(exponent, { microBatches, reduce: "int8", step: state.step });
      const grad = testGradient(state.layout, { seed, scale: 20 * unit });
      for (let i = 0; i < grad.length; i += 3) grad[i] = Math.round(grad[i]! / unit) * unit;
      const { values, saturated } = quantise(grad, state, int8(seed % microBatches, microBatches, seed));
      assert.equal(saturated, 0);
      values.forEach((q, i) => {
        const x = grad[i]! / unit;
        assert.ok(q === Math.floor(x) || q === Math.ceil(x), `${x} became ${q}`);
      });
    }),
    { seed: 9, numRuns: 40 },
  );
});

Deno.test("int8: the expectation of a rounded value is the value itself", () => {
  const state = laterState(0);
  const used = state.layout.size - paddingOf(state.layout).length;
  const unit = 2 ** -gridShift(0, { ...int8(0, 1), step: 5 });
  for (const x of [0.001, 0.25, 0.5, 0.75, 0.93, -0.07, -0.5, -3.3]) {
    const grad = new Float32Array(state.layout.size).fill(x * unit);
    let sum = 0;
    for (let seed = 0; seed < 64; seed++) {
      const { values } = quantise(grad, state, int8(0, 1, seed));
      for (const { start, end } of blocksOf(state.layout)) sum += total(values.subarray(start, end));
    }
    const part = x - Math.floor(x);
    // Five standard deviations of the mean, and the half of the last random bit.
    const bound = 5 * Math.sqrt(part * (1 - part) / (64 * used)) + 2 ** -17;
    assert.ok(Math.abs(sum / (64 * used) - x) < bound, `${x} became ${sum / (64 * used)} on average`);
  }
});

Deno.test("int8: closer to a whole number than the random bits can tell, a value becomes that number", () => {
  const state = laterState(0);
  const unit = 2 ** -gridShift(0, { ...int8(0, 1), step: 5 });
  for (
    const [x, whole] of [[-(2 ** -18), 0], [2 ** -18, 0], [1 - 2 ** -18, 1], [-1 + 2 ** -18, -1]] as const
  ) {
    const grad = new Float32Array(state.layout.size).fill(x * unit);
    for (let seed = 0; seed < 64; seed++) {
      const { values } = quantise(grad, state, int8(0, 1, seed));
      for (const { start, end } of blocksOf(state.layout)) {
        assert.ok(values.subarray(start, end).every((q) => q === whole), `${x} with seed ${seed}`);
      }
    }
  }
});

function total(values: Int32Array): number {
  return values.reduce((sum, value) => sum + value, 0);
}

Deno.test("int8: equal values of other tensors, micro-batches, steps and seeds draw other bits", () => {
  const half = (state: StageState, microBatch: number, seed: number) => {
    const unit = 2 ** -gridShift(0, { ...int8(0), step: state.step });
    const grad = new Float32Array(state.layout.size).fill(unit / 2);
    return quantise(grad, state, int8(microBatch, 4, seed)).values;
  };
  const { start, end } = tensorSlice(laterState(0).layout, "model.layers.0.mlp.up_proj.weight");
  const gate = tensorSlice(laterState(0).layout, "model.layers.0.mlp.gate_proj.weight");
  const values = half(laterState(0), 1, 1);
  const drawn = values.slice(start, end);
  assert.deepEqual(half(laterState(0), 1, 1).slice(start, end), drawn, "the same key gives the same bits");
  const table = tensorSlice(laterState(0).layout, EMBEDDING_NAME);
  const pairs: [string, Int32Array, Int32Array][] = [
    ["micro-batch", drawn, half(laterState(0), 2, 1).slice(start, end)],
    ["step", drawn, half(laterState(0, 6), 1, 1).slice(start, end)],
    ["seed", drawn, half(laterState(0), 1, 2).slice(start, end)],
    ["tensor", drawn, values.slice(gate.start, gate.end)],
    ["next value", drawn, values.slice(start + 1, end)],
    ["value after next", drawn, values.slice(start + 2, end)],
    ["next block", values.slice(table.start), values.slice(table.start + BLOCK_VALUES, table.end)],
  ];
  for (const [name, one, other] of pairs) {
    assert.ok(other.length > 300);
    const same = other.filter((q, i) => q === one[i]).length;
    // Independent bits agree in half of the places; five standard deviations of that.
    const bound = 2.5 * Math.sqrt(other.length);
    assert.ok(Math.abs(same - other.length / 2) < bound, `${name}: ${same} of ${other.length} agree`);
  }
});

Deno.test("int8: the ends of a tied embedding draw different bits, any stage's copy of a layer the same", () => {
  const spec = { ...SPEC, n_layer: 2, tie_word_embeddings: true };
  const [first, last] = splitLayers(spec, [1, 1]).map((stage) => halves(spec, stage));
  const whole = halves(spec, wholeModel(spec));
  const of = (held: Map<string, Int32Array>, name: string) => held.get(name)!;
  assert.ok(sameValues(of(first!, EMBEDDING_NAME), of(whole, EMBEDDING_NAME)));
  assert.ok(!sameValues(of(last!, EMBEDDING_NAME), of(whole, EMBEDDING_NAME)));
  const shared = [...last!].filter(([name]) => name !== EMBEDDING_NAME);
  assert.ok(shared.length > 8);
  for (const [name, values] of shared) assert.ok(sameValues(values, of(whole, name)), name);
});

/** Unlike deepEqual, it does not spend minutes on describing how two long arrays differ. */
function sameValues(a: Int32Array, b: Int32Array): boolean {
  return a.length === b.length && a.every((value, i) => value === b[i]);
}

/** By tensor, what gradients of half a unit become. */
function halves(spec: ModelSpec, stage: StageSpec): Map<string, Int32Array> {
  const layout = stageLayout(spec, stage);
  const state = createState(layout, new Float32Array(layout.size));
  state.step = 1;
  const grad = new Float32Array(layout.size).fill(2 ** -gridShift(0, { ...int8(0), step: 1 }) / 2);
  const { values } = quantise(grad, state, int8(0));
  return new Map(layout.tensors.map(({ name, offset, size }) => [name, values.slice(offset, offset + size)]));
}

Deno.test("int8: far above the last peak nothing is cut, beyond the limit it is, non-finite counts as 0", () => {
  const state = laterState(-20);
  const grad = new Float32Array(state.layout.size);
  grad.set([2 ** -4, -(2 ** -4), 3e38, -3e38, NaN, Infinity, -Infinity]);
  const { values, saturated, nonFinite } = quantise(grad, state, int8(0));
  const limit = quantumLimit(4);
  assert.deepEqual([...values.subarray(0, 8)], [2 ** 25, -(2 ** 25), limit, -limit, 0, 0, 0, 0]);
  assert.deepEqual([saturated, nonFinite], [2, 3]);
});

Deno.test("int8: zeros and padding stay 0 and a given array is reused", () => {
  const state = laterState(0);
  const out = new Int32Array(state.layout.size).fill(7);
  for (const { start, end } of blocksOf(state.layout)) out.fill(5, start, end);
  for (const i of paddingOf(state.layout)) out[i] = 0;
  const grad = new Float32Array(state.layout.size);
  assert.equal(quantise(grad, state, { ...int8(0), out }).values, out);
  assert.ok(out.every((q) => q === 0));
});
