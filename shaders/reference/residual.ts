// Double-precision twin of the residual addition; its gradient is the identity on both sides, so it has no backward.

/** Element-wise a + b of two arrays of one length, in a new array. */
export function residualAdd(a: Float64Array, b: Float64Array): Float64Array {
  const out = new Float64Array(a.length);
  for (let i = 0; i < out.length; i++) out[i] = a[i]! + b[i]!;
  return out;
}
