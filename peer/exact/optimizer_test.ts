// AdamW on integer totals against a double-precision reference, clipping, exponents, and independence of the cut.
import assert from "node:assert/strict";
import fc from "fast-check";
import { initParams } from "../model/init.ts";
import { EMBEDDING_NAME, splitLayers, stageLayout } from "../model/layout.ts";
import { addInto, createAccumulator } from "./accumulate.ts";
import { applyTotal, nextExponent, passOver, totalNormSq } from "./optimizer.ts";
import type { ReduceId } from "../wire/run.ts";
import { FINEST_EXPONENT, gridShift, quantise } from "./quantise.ts";
import { blocksOf, cloneState, createState, type StageState, tensorSlice } from "./state.ts";
import { paddingOf, SPEC, testGradient, testState } from "./testing_data.ts";

const CONFIG = { beta1: 0.9, beta2: 0.99, weight_decay: 0.1, grad_clip: 1, reduce: "raw32" as ReduceId };
const RAW = { reduce: "raw32" as const, seed: 0, microBatch: 0 };

function totalOf(state: StageState, grads: Float32Array[], reduce: ReduceId = "raw32"): Int32Array {
  const sum = createAccumulator(state.layout.size).values;
  grads.forEach((grad, microBatch) => {
    const rule = { microBatches: grads.length, reduce, seed: 4, microBatch };
    addInto(sum, quantise(grad, state, rule).values);
  });
  return sum;
}

/** Textbook AdamW in doubles with the library's own power function. */
function referenceSteps(state: StageState, steps: Float32Array[][], lr: number): Float64Array {
  const params = Float64Array.from(state.params);
  const m = new Float64Array(params.length);
  const v = new Float64Array(params.length);
  steps.forEach((grads, t) => {
    const mean = params.map((_, i) => grads.reduce((sum, grad) => sum + grad[i]!, 0) / grads.length);
    const norm = Math.sqrt(mean.reduce((sum, g) => sum + g * g, 0));
    const clip = Math.min(1, CONFIG.grad_clip / norm);
    for (const { offset, size, shape } of state.layout.tensors) {
      for (let i = offset; i < offset + size; i++) {
        const g = mean[i]! * clip;
        m[i] = 0.9 * m[i]! + 0.1 * g;
        v[i] = 0.99 * v[i]! + 0.01 * g * g;
        const update = m[i]! / (1 - 0.9 ** (t + 1)) / (Math.sqrt(v[i]! / (1 - 0.99 ** (t + 1))) + 1e-8);
        params[i] = params[i]! * (1 - (shape.length === 2 ? lr * 0.1 : 0)) - lr * update;
      }
    }
  });
  return params;
}

Deno.test("optimizer: thirty steps agree with AdamW in doubles", () => {
  const state = testState();
  const lr = 0.01;
  const steps = Array.from(
    { length: 30 },
    (_, t) =>
      [0, 1, 2].map((m) => testGradient(state.layout, { seed: 10 * t + m, scale: 0.01 * (t % 5 + 1) })),
  );
  const expected = referenceSteps(state, steps, lr);
  for (const grads of steps) {
    const total = totalOf(state, grads);
    const gradNormSq = totalNormSq(state, total, { microBatches: 3, reduce: "raw32" });
    applyTotal(state, total, { microBatches: 3, lr, gradNormSq, config: CONFIG });
  }
  assert.equal(state.step, 30);
  // Thirty steps of at most lr each; f32 keeps weights near 1 to 6e-8, and 2^-28 steps of gradient shift few updates.
  state.params.forEach((p, i) => assert.ok(Math.abs(p - expected[i]!) < 1e-5, `${i}: ${p} ${expected[i]}`));
});

Deno.test("optimizer: gains do not decay, matrices do, padding stays 0", () => {
  const state = testState();
  const before = cloneState(state);
  const zero = new Int32Array(state.layout.size);
  applyTotal(state, zero, { microBatches: 1, lr: 0.5, gradNormSq: 0, config: CONFIG });
  for (const { offset, size, shape } of state.layout.tensors) {
    for (let i = offset; i < offset + size; i++) {
      const p = before.params[i]!;
      const decayed = Math.fround(p - Math.fround(Math.fround(0.5 * 0.1) * p));
      assert.equal(state.params[i], shape.length === 2 ? decayed : p);
    }
  }
  assert.ok(paddingOf(state.layout).every((i) => state.params[i] === 0 && state.v[i] === 0));
});

Deno.test("optimizer: the gradient is scaled to the global norm, not the stage's", () => {
  const grad = testGradient(testState().layout, { seed: 3, scale: 0.01 });
  const run = (gradNormSq: number, grad_clip: number) => {
    const state = testState();
    const config = { ...CONFIG, grad_clip };
    const total = totalOf(state, [grad]);
    return { clip: applyTotal(state, total, { microBatches: 1, lr: 0.1, gradNormSq, config }), m: state.m };
  };
  assert.equal(run(0.25, 1).clip, 1);
  assert.equal(run(16, 0).clip, 1);
  const clipped = run(16, 1);
  assert.equal(clipped.clip, 0.25);
  const { m } = run(0.25, 1);
  assert.ok(m.some((x) => x !== 0));
  clipped.m.forEach((x, i) => assert.equal(x, m[i]! / 4));
  assert.throws(() => run(NaN, 1), /gradient norm NaN/);
});

Deno.test("optimizer: the norm is that of the mean gradient and skips what it is told to", () => {
  const state = testState();
  const grad = testGradient(state.layout, { seed: 4, scale: 0.1 });
  const total = totalOf(state, [grad, grad, grad]);
  const exact = grad.reduce((sum, g) => sum + g * g, 0);
  const norm = totalNormSq(state, total, { microBatches: 3, reduce: "raw32" });
  assert.ok(Math.abs(norm / exact - 1) < 1e-6);
  const { start, end } = tensorSlice(state.layout, EMBEDDING_NAME);
  const skipped = grad.subarray(start, end).reduce((sum, g) => sum + g * g, 0);
  const rest = totalNormSq(state, total, {
    ...{ microBatches: 3, reduce: "raw32" },
    skip: new Set([EMBEDDING_NAME]),
  });
  assert.ok(Math.abs((norm - rest) / skipped - 1) < 1e-6);
});

Deno.test("optimizer: any cut into stages gives the same norm and weights, bit for bit", () => {
  const spec = { ...SPEC, n_layer: 3 };
  const train = (weights: number[], reduce: ReduceId = "raw32") => {
    const config = { ...CONFIG, reduce };
    const states = splitLayers(spec, weights).map((stage) =>
      createState(stageLayout(spec, stage), initParams(spec, stage, 1))
    );
    const norms: number[] = [];
    for (let step = 0; step < 3; step++) {
      const totals = states.map((state) => totalOf(state, namedGradients(state, step), reduce));
      const parts = totals.map((total, i) => totalNormSq(states[i]!, total, { microBatches: 2, reduce }));
      const gradNormSq = parts.reduce((a, b) => a + b, 0);
      norms.push(gradNormSq);
      states.forEach((state, i) =>
        applyTotal(state, totals[i]!, { microBatches: 2, lr: 0.1, gradNormSq, config })
      );
    }
    return { norms, tensors: tensorsOf(states) };
  };
  const whole = train([1]);
  assert.ok(whole.norms.every((norm) => norm > 1));
  assert.deepEqual(train([1, 2]), whole);
  assert.deepEqual(train([1, 1, 1]), whole);
  const int8 = train([1], "int8");
  assert.notDeepEqual(int8, whole);
  assert.deepEqual(train([1, 2], "int8"), int8);
  assert.deepEqual(train([1, 1, 1], "int8"), int8);
});

/** Two gradients that depend on tensor and step only. */
function namedGradients(state: StageState, step: number): Float32Array[] {
  return [0, 1].map((m) => {
    const grad = new Float32Array(state.layout.size);
    for (const { name, shape, offset, size } of state.layout.tensors) {
      const layout = { tensors: [{ name, shape, offset: 0, size }], size };
      grad.set(testGradient(layout, { seed: 100 * step + 10 * m + name.length, scale: 0.2 }), offset);
    }
    return grad;
  });
}

function tensorsOf(states: StageState[]): [string, Float32Array][] {
  const all = states.flatMap(({ layout, params }) =>
    layout.tensors.map((
      { name, offset, size },
    ): [string, Float32Array] => [name, params.slice(offset, offset + size)])
  );
  return all.sort(([a], [b]) => a < b ? -1 : 1);
}

Deno.test("optimizer: exponents jump up with the peak, decay by one, and stay within ±60", () => {
  const next = (exponent: number, peak: number) => nextExponent(exponent, peak, { reduce: "raw32", step: 0 });
  assert.equal(next(0, 1), 3);
  assert.equal(next(0, 1.1), 4);
  assert.equal(next(0, 2 ** -10), -1);
  assert.equal(next(-6, 2 ** -10), -7);
  assert.equal(next(0, 0), -1);
  assert.equal(next(-60, 0), -60);
  assert.equal(next(60, 2 ** 61), 60);
  fc.assert(
    fc.property(fc.integer({ min: -60, max: 60 }), fc.double({ min: 1e-18, max: 1e15 }), (e, peak) => {
      const got = next(e, peak);
      assert.ok(2 ** got >= 8 * peak || got === 60);
      assert.ok(got >= Math.max(e - 1, -60));
    }),
    { seed: 8 },
  );
});

Deno.test("optimizer: a step that is passed over moves the exponents as any step would, and counts, and nothing else", () => {
  for (const reduce of ["raw32", "int8"] as const) {
    const [applied, passed, before] = [testState(), testState(), testState()];
    const config = { ...CONFIG, reduce };
    for (const scale of [0.01, 3, 1e-4]) {
      const grads = [testGradient(applied.layout, { seed: 3, scale })];
      const total = totalOf(applied, grads, reduce);
      applyTotal(applied, total, { microBatches: 1, lr: 0.1, gradNormSq: 1, config });
      passOver(passed, total, { microBatches: 1, config });
      assert.deepEqual([passed.exponents, passed.step], [applied.exponents, applied.step]);
      for (const key of ["params", "m", "v"] as const) assert.deepEqual(passed[key], before[key]);
    }
    assert.notDeepEqual(passed.exponents, before.exponents);
  }
});

Deno.test("optimizer: int8's exponents start at the first peak and end where epsilon makes them pointless", () => {
  const first = (peak: number) => nextExponent(0, peak, { reduce: "int8", step: 0 });
  const later = (exponent: number, peak: number) => nextExponent(exponent, peak, { reduce: "int8", step: 1 });
  assert.equal(first(2 ** -10), -7);
  assert.equal(first(1), 3);
  assert.equal(first(0), FINEST_EXPONENT);
  assert.equal(later(0, 2 ** -10), -1);
  assert.equal(later(-6, 2 ** -5), -2);
  assert.equal(later(0, 0), -1);
  assert.equal(later(FINEST_EXPONENT, 0), FINEST_EXPONENT);
  assert.equal(later(FINEST_EXPONENT, 2 ** -50), FINEST_EXPONENT);
  assert.equal(later(60, 2 ** 61), 60);
});

Deno.test("optimizer: with int8 the mean of a total is the mean gradient, at every step", () => {
  const state = testState();
  for (const scale of [0.01, 0.01, 0.02, 0.001]) {
    const grads = [0, 1, 2, 3].map((seed) => testGradient(state.layout, { seed, scale }));
    const exact = grads.reduce((sum, grad) => sum + grad.reduce((s, g, i) => s + g * grads[0]![i]!, 0), 0) /
      4;
    const { microBatches, reduce } = { microBatches: 4, reduce: "int8" as const };
    const total = totalOf(state, grads, reduce);
    let product = 0;
    for (const { index, start, end } of blocksOf(state.layout)) {
      const unit = 2 ** -gridShift(state.exponents[index]!, { microBatches, reduce, step: state.step });
      for (let i = start; i < end; i++) product += total[i]! * unit / 4 * grads[0]![i]!;
    }
    assert.ok(Math.abs(product / exact - 1) < 0.02, `${product} instead of ${exact}`);
    const gradNormSq = totalNormSq(state, total, { microBatches, reduce });
    const config = { ...CONFIG, grad_clip: 0, reduce };
    const before = state.m.slice();
    applyTotal(state, total, { microBatches, lr: 0, gradNormSq, config });
    const moved = state.m.reduce((sum, m, i) => sum + (m - 0.9 * before[i]!) * 10 * grads[0]![i]!, 0);
    assert.ok(Math.abs(moved / exact - 1) < 0.02, `the moments moved by ${moved} instead of ${exact}`);
  }
});

Deno.test("optimizer: a block that saturated recovers in the next step", () => {
  const state = testState(-20);
  const grad = testGradient(state.layout, { seed: 5, scale: 2 ** -18 });
  const options = { microBatches: 1, lr: 0.1, gradNormSq: 1, config: CONFIG };
  const first = quantise(grad, state, { microBatches: 1, ...RAW });
  assert.ok(first.saturated > 0);
  applyTotal(state, first.values, options);
  assert.equal(quantise(grad, state, { microBatches: 1, ...RAW }).saturated, 0);
});

Deno.test("optimizer: the largest totals at the largest exponent stay finite", () => {
  const state = testState(60);
  const total = new Int32Array(state.layout.size);
  for (const { offset, size } of state.layout.tensors) total.fill(-0x80000000, offset, offset + size);
  const gradNormSq = totalNormSq(state, total, { microBatches: 1, reduce: "raw32" });
  applyTotal(state, total, { microBatches: 1, lr: 0.1, gradNormSq, config: { ...CONFIG, grad_clip: 0 } });
  assert.ok([state.params, state.m, state.v].every((array) => array.every(Number.isFinite)));
});
