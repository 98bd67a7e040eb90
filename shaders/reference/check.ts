// Tools for checking gradients and kernels against references: seeded inputs, central differences, an error measure.
// For tests only; nothing that trains imports it. Equal seeds always give equal arrays.
import { randomStream } from "../../peer/model/random.ts";
import { assert } from "../../peer/wire/errors.ts";

/** Step of the central difference: its truncation (h^2) and rounding (1e-16 / h) errors both stay near 1e-11. */
const DIFFERENCE_STEP = 1e-5;

/** Largest relative L2 error of an analytic gradient: what the step above allows, with room for sums of products. */
export const GRADIENT_TOLERANCE = 1e-7;

/** `length` numbers, uniform in [-scale, scale); `seed` selects the sequence. */
export function randomArray(seed: number, length: number, scale = 1): Float64Array {
  const next = generator(seed);
  return Float64Array.from({ length }, () => (next() * 2 - 1) * scale);
}

/** `length` tokens below V. */
export function randomTokens(seed: number, length: number, V: number): Uint32Array {
  const next = generator(seed);
  return Uint32Array.from({ length }, () => Math.floor(next() * V));
}

/** Gradient of the scalar f at x by central differences; f must read `x` itself, which is restored afterwards. */
export function numericGradient(f: () => number, x: Float64Array): Float64Array {
  return x.map((value, i) => {
    x[i] = value + DIFFERENCE_STEP;
    const above = f();
    x[i] = value - DIFFERENCE_STEP;
    const below = f();
    x[i] = value;
    return (above - below) / (2 * DIFFERENCE_STEP);
  });
}

/** |actual - expected| / |expected| in the L2 norm; NaN anywhere gives NaN, which fails every comparison. */
export function relativeError(actual: ArrayLike<number>, expected: ArrayLike<number>): number {
  assert(actual.length === expected.length, `lengths ${actual.length} and ${expected.length} differ`);
  let error = 0, norm = 0;
  for (let i = 0; i < expected.length; i++) {
    error += (actual[i]! - expected[i]!) ** 2;
    norm += expected[i]! ** 2;
  }
  return Math.sqrt(error) / Math.max(Math.sqrt(norm), Number.MIN_VALUE);
}

/** Throws unless `analytic` is the gradient of f at x to GRADIENT_TOLERANCE. */
export function checkGradient(f: () => number, x: Float64Array, analytic: Float64Array): void {
  const numeric = numericGradient(f, x);
  // A gradient that is zero (one key only, say) has no relative error; its absolute error stands for it.
  const size = Math.max(norm(numeric), 1e-3);
  const error = norm(analytic.map((value, i) => value - numeric[i]!)) / size;
  assert(error <= GRADIENT_TOLERANCE, `gradient off by ${error}, more than ${GRADIENT_TOLERANCE}`);
}

/** sum_i a_i b_i: turns an array-valued function into a scalar one with a known gradient. */
export function inner(a: Float64Array, b: Float64Array): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

function norm(values: Float64Array): number {
  return Math.sqrt(inner(values, values));
}

/** Uniform in [0, 1). */
function generator(seed: number): () => number {
  const next = randomStream([seed]);
  return () => next() / 2 ** 32;
}
