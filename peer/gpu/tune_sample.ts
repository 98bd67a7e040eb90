// Operands of the autotune's checks: arbitrary, but the same on every machine and in every run. Not random.

/** Values in [-1, 1), the same each time. */
export function sample(length: number, seed: number): Float32Array<ArrayBuffer> {
  let state = seed;
  return Float32Array.from({ length }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state >>> 8) / 2 ** 23 - 1;
  });
}
