// The delayed rule: every gradient is the older weights', every update the newest weights', and a state is all that it takes to go
// on. Whole runs are compared in test/sim.
import assert from "node:assert/strict";
import { addInto, createAccumulator } from "./accumulate.ts";
import { applyDelayed, basisOf, withDelay } from "./delay.ts";
import { stateHash } from "./hash.ts";
import { applyTotal, totalNormSq } from "./optimizer.ts";
import { quantise } from "./quantise.ts";
import { cloneState, type StageState } from "./state.ts";
import { testState } from "./testing_data.ts";

const CONFIG = { beta1: 0.9, beta2: 0.99, weight_decay: 0.1, grad_clip: 0, reduce: "raw32" as const };
const LR = 0.01;

/** Gradient of a bowl around zero, so that it shows which weights it was made with. */
function gradientAt(params: Float32Array): Float32Array {
  return params.map((value) => value / 8);
}

/** One step by the state alone; the gradient that went in. */
function step(state: StageState, reduce: "raw32" | "int8" = "raw32"): Float32Array {
  const basis = basisOf(state, state.step);
  const grad = gradientAt(basis.params);
  const total = createAccumulator(state.layout.size).values;
  addInto(total, quantise(grad, basis, { microBatches: 1, reduce, seed: 1, microBatch: 0 }).values);
  const gradNormSq = totalNormSq(basis, total, { microBatches: 1, reduce });
  applyDelayed(state, total, { microBatches: 1, lr: LR, gradNormSq, config: { ...CONFIG, reduce } });
  return grad;
}

/** The rule in doubles, from the whole history of weights; padding and vectors as the layout has them. */
function reference(start: StageState, steps: number): Float64Array[] {
  const weights = [Float64Array.from(start.params)];
  const m = new Float64Array(start.params.length);
  const v = new Float64Array(start.params.length);
  for (let k = 0; k < steps; k++) {
    const [older, newest] = [weights[Math.max(0, k - 1)]!, weights[k]!];
    const next = newest.slice();
    for (const { offset, size, shape } of start.layout.tensors) {
      for (let i = offset; i < offset + size; i++) {
        const g = older[i]! / 8;
        m[i] = 0.9 * m[i]! + 0.1 * g;
        v[i] = 0.99 * v[i]! + 0.01 * g * g;
        const direction = m[i]! / (1 - 0.9 ** (k + 1)) / (Math.sqrt(v[i]! / (1 - 0.99 ** (k + 1))) + 1e-8);
        next[i] = newest[i]! * (1 - (shape.length === 2 ? LR * 0.1 : 0)) - LR * direction;
      }
    }
    weights.push(next);
  }
  return weights;
}

Deno.test("delay: ten steps agree with the rule in doubles, each gradient being one step old", () => {
  const state = withDelay(testState(), true);
  const wanted = reference(state, 10);
  for (let k = 0; k < 10; k++) {
    assert.deepEqual(basisOf(state, k + 1).params, state.params, "the next step's weights are the newest");
    step(state);
    assert.equal(state.step, k + 1);
    for (const [values, at] of [[state.params, k + 1], [state.before!.params, k]] as const) {
      const worst = Math.max(...values.map((value, i) => Math.abs(value - wanted[at]![i]!)));
      assert.ok(worst < 2e-6, `after ${k + 1} steps the weights of step ${at} are ${worst} off`);
    }
  }
  const prompt = testState();
  for (let k = 0; k < 10; k++) {
    const total = quantise(gradientAt(prompt.params), prompt, {
      ...{ microBatches: 1, reduce: "raw32", seed: 1, microBatch: 0 },
    }).values;
    applyTotal(prompt, total, { microBatches: 1, lr: LR, gradNormSq: 1, config: CONFIG });
  }
  assert.notDeepEqual(prompt.params, state.params);
});

Deno.test("delay: a total is read on the grid that it was made on, and sets the exponents of the step after the next", () => {
  const state = withDelay(testState(), true);
  // Weights are about 1, so gradients are an eighth: far below the guess of the first exponents.
  for (let k = 0; k < 8; k++) {
    const made = basisOf(state, k).exponents.slice();
    const next = basisOf(state, k + 1).exponents.slice();
    step(state);
    assert.deepEqual(basisOf(state, k + 1).exponents, next, "the open step's grid has moved");
    const peak = basisOf(state, k + 2).exponents;
    assert.ok(peak.every((exponent, i) => exponent >= made[i]! - 1), `step ${k}`);
  }
  assert.ok(state.exponents.every((exponent) => exponent < 3), "exponents never followed the gradients");
});

Deno.test("delay: with int8 both steps that know nothing of their gradients keep the fine grid", () => {
  const state = withDelay(testState(), true);
  assert.deepEqual([0, 1].map((k) => basisOf(state, k).step), [0, 0]);
  const [first, second] = [step(state, "int8"), step(state, "int8")];
  assert.deepEqual(second, first, "the second gradient is not the first weights'");
  const wanted = reference(testState(), 2)[2]!;
  const worst = Math.max(...state.params.map((value, i) => Math.abs(value - wanted[i]!)));
  assert.ok(worst < 1e-4, `${worst} off after two steps`);
  assert.equal(basisOf(state, 2).step, 1);
});

Deno.test("delay: a copy goes on like the state, and the older weights are part of the fingerprint", () => {
  const state = withDelay(testState(), true);
  for (let k = 0; k < 3; k++) step(state);
  const copy = cloneState(state);
  assert.equal(stateHash(copy), stateHash(state));
  step(state);
  assert.notEqual(stateHash(copy), stateHash(state));
  step(copy);
  assert.equal(stateHash(copy), stateHash(state));
  for (
    const spoil of [
      (it: StageState) => it.before!.params[0]! += 1,
      (it: StageState) => it.before!.exponents[0]!++,
    ]
  ) {
    const other = cloneState(state);
    spoil(other);
    assert.notEqual(stateHash(other), stateHash(state));
  }
});

Deno.test("delay: the rule is taken up and dropped between two steps", () => {
  const state = testState();
  const without = stateHash(state);
  assert.equal(basisOf(state, 0), state, "without the rule a step computes with its own state");
  assert.throws(() => basisOf(state, 1), /step 1 on a state of 0/);
  withDelay(state, true);
  assert.deepEqual(state.before, { params: state.params, exponents: state.exponents });
  assert.notEqual(state.before!.params, state.params);
  const { before } = state;
  assert.equal(withDelay(state, true).before, before, "older weights were thrown away");
  assert.throws(() => basisOf(state, 2), /step 2 on a delayed state of 0/);
  assert.equal(stateHash(withDelay(state, false)), without);
});
