// Double-precision twins of the three matrix products a linear layer needs: forward, input gradient, weight gradient.
// Not tuned for large shapes: plain loops, four sums at a time. The order of additions is fixed by the shape alone.
// Legend: every result is [M, N]; K is the summed index; all arrays are row-major.

/** Sizes of a product: the result is [M, N] and K is summed over. */
export interface MatmulShape {
  M: number;
  N: number;
  K: number;
}

/** out[m,n] = sum_k a[m,k] * b[n,k]; a is [M, K], b is [N, K]. Linear forward: x [R, in], W [out, in]. */
export function matmulNT(a: Float64Array, b: Float64Array, { M, N, K }: MatmulShape): Float64Array {
  const out = new Float64Array(M * N);
  const N4 = N - (N % 4);
  for (let m = 0; m < M; m++) {
    const row = m * K;
    // Four neighbouring rows of b share each load of a, and their four sums do not wait for one another.
    for (let n = 0; n < N4; n += 4) {
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      const r0 = n * K, r1 = r0 + K, r2 = r1 + K, r3 = r2 + K;
      for (let k = 0; k < K; k++) {
        const value = a[row + k]!;
        s0 += value * b[r0 + k]!;
        s1 += value * b[r1 + k]!;
        s2 += value * b[r2 + k]!;
        s3 += value * b[r3 + k]!;
      }
      const at = m * N + n;
      out[at] = s0;
      out[at + 1] = s1;
      out[at + 2] = s2;
      out[at + 3] = s3;
    }
    for (let n = N4; n < N; n++) {
      let sum = 0;
      for (let k = 0; k < K; k++) sum += a[row + k]! * b[n * K + k]!;
      out[m * N + n] = sum;
    }
  }
  return out;
}

/** out[m,n] = sum_k a[m,k] * b[k,n]; a is [M, K], b is [K, N]. Input gradient: dY [R, out], W [out, in]. */
export function matmulNN(a: Float64Array, b: Float64Array, { M, N, K }: MatmulShape): Float64Array {
  const out = new Float64Array(M * N);
  for (let m = 0; m < M; m++) addRows(out, b, { at: m * N, N, K, a, first: m * K, stride: 1 });
  return out;
}

/** out[m,n] = sum_k a[k,m] * b[k,n]; a is [K, M], b is [K, N]. Weight gradient: dY [R, out], X [R, in]. */
export function matmulTN(a: Float64Array, b: Float64Array, { M, N, K }: MatmulShape): Float64Array {
  const out = new Float64Array(M * N);
  for (let m = 0; m < M; m++) addRows(out, b, { at: m * N, N, K, a, first: m, stride: M });
  return out;
}

interface RowsPlace {
  /** Start of the result row in `out`, and its length. */
  at: number;
  N: number;
  K: number;
  /** Coefficients: a[first + k * stride] multiplies row k of b. */
  a: Float64Array;
  first: number;
  stride: number;
}

/** Adds K scaled rows of b to one row of out, four rows per pass so that out is loaded and stored a quarter as often. */
function addRows(out: Float64Array, b: Float64Array, place: RowsPlace): void {
  const { at, N, K, a, first, stride } = place;
  const K4 = K - (K % 4);
  for (let k = 0; k < K4; k += 4) {
    const c0 = a[first + k * stride]!, c1 = a[first + (k + 1) * stride]!;
    const c2 = a[first + (k + 2) * stride]!, c3 = a[first + (k + 3) * stride]!;
    const r0 = k * N, r1 = r0 + N, r2 = r1 + N, r3 = r2 + N;
    for (let n = 0; n < N; n++) {
      out[at + n]! += c0 * b[r0 + n]! + c1 * b[r1 + n]! + c2 * b[r2 + n]! + c3 * b[r3 + n]!;
    }
  }
  for (let k = K4; k < K; k++) {
    const c = a[first + k * stride]!;
    for (let n = 0; n < N; n++) out[at + n]! += c * b[k * N + n]!;
  }
}
