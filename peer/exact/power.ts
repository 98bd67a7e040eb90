// Powers of two and their logarithm without Math.pow or Math.log2, which engines may round differently.
// Not a general maths library. Every result is exact.
import { assert } from "../wire/errors.ts";

/** Covers every scale the exact core forms: exponents within ±60 plus 31 bits of fixed point. */
const POWER_MAX = 128;

const POWERS = powerTable();

function powerTable(): Float64Array {
  const table = new Float64Array(2 * POWER_MAX + 1);
  table[POWER_MAX] = 1;
  for (let k = 1; k <= POWER_MAX; k++) {
    table[POWER_MAX + k] = table[POWER_MAX + k - 1]! * 2;
    table[POWER_MAX - k] = table[POWER_MAX - k + 1]! / 2;
  }
  return table;
}

/** 2^k for |k| <= 128. */
export function powerOfTwo(k: number): number {
  const power = POWERS[POWER_MAX + k];
  assert(power !== undefined, `2^${k} is outside the table`);
  return power;
}

/** Smallest integer c with 2^c >= x, for 0 < x < 2^128, at least -128. */
export function ceilLog2(x: number): number {
  assert(x > 0 && x <= powerOfTwo(POWER_MAX), `ceilLog2(${x}) is outside the table`);
  let [low, high] = [-POWER_MAX, POWER_MAX];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (powerOfTwo(middle) >= x) high = middle;
    else low = middle + 1;
  }
  return low;
}
