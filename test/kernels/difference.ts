// Finite-difference check of a GPU forward against a gradient: a few directional derivatives instead of one
// difference per element, because each evaluation is a round trip to the adapter.
import assert from "node:assert/strict";
import { testValues } from "./support.ts";

/** Step of the central difference: f32 noise (about 1e-7 / step) and truncation (step^2) both stay below 1e-4. */
const STEP = 1e-2;
/** Relative to |gradient| |direction|; covers noise and truncation with room for the curvature of softmax. */
const TOLERANCE = 2e-3;
const DIRECTIONS = 3;

/** Asserts that `gradient` is the gradient of `loss` at `x` along fixed pseudo-random directions. */
export async function checkDirections(
  loss: (x: Float32Array) => Promise<number>,
  x: Float32Array,
  gradient: ArrayLike<number>,
): Promise<void> {
  assert.equal(gradient.length, x.length, "gradient and input differ in length");
  for (let seed = 0; seed < DIRECTIONS; seed++) {
    const direction = testValues(x.length, 900 + seed);
    const above = await loss(x.map((value, i) => value + STEP * direction[i]!));
    const below = await loss(x.map((value, i) => value - STEP * direction[i]!));
    const measured = (above - below) / (2 * STEP);
    const expected = weighted(gradient, direction);
    const size = Math.sqrt(weighted(gradient, gradient) * weighted(direction, direction));
    const error = Math.abs(measured - expected) / size;
    assert.ok(error <= TOLERANCE, `direction ${seed}: ${measured} measured, ${expected} computed`);
  }
}

/** Sum of products in double precision: turns a tensor into a scalar loss whose gradient is `weights`. */
export function weighted(values: ArrayLike<number>, weights: ArrayLike<number>): number {
  let sum = 0;
  for (let i = 0; i < weights.length; i++) sum += values[i]! * weights[i]!;
  return sum;
}
