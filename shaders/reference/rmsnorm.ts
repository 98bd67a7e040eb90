// Double-precision twin of RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) with a learnt scale and no bias.
// eps stands inside the root, as in Llama. Legend: R rows, C width; rstd[r] = 1 / sqrt(mean_c x[r,c]^2 + eps).

export interface RmsnormShape {
  C: number;
  eps: number;
}

export interface RmsnormBackwardInput {
  /** Input of the forward, [R, C]. */
  x: Float64Array;
  /** Reciprocal root mean square of each row, [R], from the forward. */
  rstd: Float64Array;
  /** Gradient of the output, [R, C]. */
  dOut: Float64Array;
}

/** out[r,c] = x[r,c] * rstd[r] * weight[c]; x is [R, C], weight [C]; returns out [R, C] and rstd [R]. */
export function rmsnormForward(
  x: Float64Array,
  weight: Float64Array,
  { C, eps }: RmsnormShape,
): { out: Float64Array; rstd: Float64Array } {
  const R = x.length / C;
  const out = new Float64Array(R * C), rstd = new Float64Array(R);
  for (let r = 0; r < R; r++) {
    let squares = 0;
    for (let c = 0; c < C; c++) squares += x[r * C + c]! * x[r * C + c]!;
    const scale = 1 / Math.sqrt(squares / C + eps);
    rstd[r] = scale;
    for (let c = 0; c < C; c++) out[r * C + c] = x[r * C + c]! * scale * weight[c]!;
  }
  return { out, rstd };
}

/** dX[r,c] = rstd * (w_c dOut_c - x_c rstd^2 mean_j(w_j dOut_j x_j)), [R, C]. */
export function rmsnormInputGrad(
  { x, rstd, dOut }: RmsnormBackwardInput,
  weight: Float64Array,
  { C }: { C: number },
): Float64Array {
  const dX = new Float64Array(x.length);
  for (let r = 0; r < rstd.length; r++) {
    let along = 0;
    for (let c = 0; c < C; c++) along += weight[c]! * dOut[r * C + c]! * x[r * C + c]!;
    const scale = rstd[r]!, pull = along * scale * scale / C;
    for (let c = 0; c < C; c++) {
      dX[r * C + c] = scale * (weight[c]! * dOut[r * C + c]! - x[r * C + c]! * pull);
    }
  }
  return dX;
}

/** dWeight[c] = sum_r dOut[r,c] * x[r,c] * rstd[r], [C]. */
export function rmsnormWeightGrad(
  { x, rstd, dOut }: RmsnormBackwardInput,
  { C }: { C: number },
): Float64Array {
  const dWeight = new Float64Array(C);
  for (let r = 0; r < rstd.length; r++) {
    for (let c = 0; c < C; c++) dWeight[c]! += dOut[r * C + c]! * x[r * C + c]! * rstd[r]!;
  }
  return dWeight;
}
