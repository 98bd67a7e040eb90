// Integer sums of quantised gradients, and the check that a total covers every micro-batch exactly once.
// Not transport: where the parts come from does not matter. A part that fails a check changes nothing.
import { assert, refuse, type Result } from "../wire/errors.ts";
import { quantumLimit } from "./quantise.ts";

/** Sum of the quantised gradients of a set of micro-batches. */
export interface Part {
  microBatches: number[];
  values: Int32Array;
}

/** Wrapping integer addition; `checkPart` makes sure beforehand that nothing wraps. */
export function addInto(acc: Int32Array, values: Int32Array): void {
  assert(acc.length === values.length, `adding ${values.length} values to ${acc.length}`);
  for (let i = 0; i < acc.length; i++) acc[i] = acc[i]! + values[i]!;
}

/** An empty sum over `size` values (layout.size). */
export function createAccumulator(size: number): Part {
  return { microBatches: [], values: new Int32Array(size) };
}

/**
 * Adds a part in place, or refuses with bad-message and leaves the sum alone: a micro-batch out of range or already
 * contained, a wrong length, or values that this many micro-batches of a step with N of them cannot reach.
 */
export function accumulate(acc: Part, part: Part, microBatches: number): Result<true> {
  const checked = checkPart(part, { microBatches, size: acc.values.length });
  if (!checked.ok) return checked;
  const double = part.microBatches.find((m) => acc.microBatches.includes(m));
  if (double !== undefined) return refuse("bad-message", `micro-batch ${double} is already in the sum`);
  addInto(acc.values, part.values);
  acc.microBatches = [...acc.microBatches, ...part.microBatches].sort((a, b) => a - b);
  return { ok: true, value: true };
}

/** Bounds of a part from elsewhere: size, micro-batch numbers, and |value| <= count · limit. */
export function checkPart(part: Part, expected: { microBatches: number; size: number }): Result<true> {
  const { microBatches: N, size } = expected;
  if (part.values.length !== size) {
    return refuse("bad-message", `a part of ${part.values.length} values, expected ${size}`);
  }
  const seen = countEach([part.microBatches], N);
  if (!seen.ok) return seen;
  const bound = part.microBatches.length * quantumLimit(N);
  for (const value of part.values) {
    if (value > bound || value < -bound) {
      return refuse("bad-message", `gradient sum ${value} exceeds ${bound}`);
    }
  }
  return { ok: true, value: true };
}

/** Exact cover of {0..N-1}: each micro-batch in exactly one set. Refuses with bad-message and the offender. */
export function exactCover(sets: readonly (readonly number[])[], microBatches: number): Result<true> {
  const seen = countEach(sets, microBatches);
  if (!seen.ok) return seen;
  const missing = seen.value.indexOf(0);
  if (missing >= 0) return refuse("bad-message", `micro-batch ${missing} is missing`);
  return { ok: true, value: true };
}

function countEach(sets: readonly (readonly number[])[], microBatches: number): Result<Uint8Array> {
  const counts = new Uint8Array(microBatches);
  for (const set of sets) {
    for (const m of set) {
      if (!(Number.isInteger(m) && m >= 0 && m < microBatches)) {
        return refuse("bad-message", `micro-batch ${m} is not one of 0..${microBatches - 1}`);
      }
      if (counts[m] !== 0) return refuse("bad-message", `micro-batch ${m} occurs twice`);
      counts[m] = 1;
    }
  }
  return { ok: true, value: counts };
}
