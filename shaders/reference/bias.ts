// Double-precision twins of what GPT-2 adds to rows: a bias to all of them, or the learned vector of each row's position.
// Their gradients are sums over the rows they were added to. Legend: R = B T rows of N values; row r has position r mod T.

/** out[r,n] = x[r,n] + bias[n]; x is [R, N], bias [N]. */
export function biasForward(x: Float64Array, bias: Float64Array): Float64Array {
  const N = bias.length;
  return x.map((value, i) => value + bias[i % N]!);
}

/** dBias[n] = sum over rows of dOut[r,n], in row order. */
export function biasWeightGrad(dOut: Float64Array, N: number): Float64Array {
  const dBias = new Float64Array(N);
  for (let i = 0; i < dOut.length; i++) dBias[i % N]! += dOut[i]!;
  return dBias;
}

/** out[r,c] = x[r,c] + table[r mod T,c]: the table [T, C] is one long bias of each sequence. */
export function positionsForward(x: Float64Array, table: Float64Array): Float64Array {
  return biasForward(x, table);
}

/** dTable[t,c] = sum over sequences of dOut[b T + t,c], in their order; result [T, C]. */
export function positionsWeightGrad(
  dOut: Float64Array,
  { T, C }: { T: number; C: number },
): Float64Array {
  return biasWeightGrad(dOut, T * C);
}
