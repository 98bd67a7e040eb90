// Double-precision twin of LayerNorm (Ba, Kiros and Hinton 2016, arXiv:1607.06450) with a learnt gain and bias, as in GPT-2.
// eps stands inside the root. Legend: R rows, C width; mean[r] over x[r, :], rstd[r] = 1 / sqrt(mean_c (x[r,c] - mean[r])^2 + eps),
// h[r,c] = (x[r,c] - mean[r]) rstd[r].

/** What the forward leaves for both gradients: its input [R, C], and mean and rstd of each row [R]. */
export interface LayernormSaved {
  x: Float64Array;
  mean: Float64Array;
  rstd: Float64Array;
}

/** out[r,c] = h[r,c] * gain[c] + bias[c]; x is [R, C], gain and bias [C]. */
export function layernormForward(
  x: Float64Array,
  { gain, bias }: { gain: Float64Array; bias: Float64Array },
  { C, eps }: { C: number; eps: number },
): { out: Float64Array; mean: Float64Array; rstd: Float64Array } {
  const R = x.length / C;
  const out = new Float64Array(R * C), mean = new Float64Array(R), rstd = new Float64Array(R);
  for (let r = 0; r < R; r++) {
    let sum = 0, squares = 0;
    for (let c = 0; c < C; c++) sum += x[r * C + c]!;
    const center = sum / C;
    for (let c = 0; c < C; c++) squares += (x[r * C + c]! - center) * (x[r * C + c]! - center);
    const scale = 1 / Math.sqrt(squares / C + eps);
    mean[r] = center;
    rstd[r] = scale;
    for (let c = 0; c < C; c++) out[r * C + c] = (x[r * C + c]! - center) * scale * gain[c]! + bias[c]!;
  }
  return { out, mean, rstd };
}

/** dX[r,c] = rstd * (g_c - mean_j g_j - h_c mean_j(g_j h_j)) with g = gain dOut, [R, C]. */
export function layernormInputGrad(
  { x, mean, rstd }: LayernormSaved,
  dOut: Float64Array,
  { gain, C }: { gain: Float64Array; C: number },
): Float64Array {
  const dX = new Float64Array(x.length);
  for (let r = 0; r < rstd.length; r++) {
    const center = mean[r]!, scale = rstd[r]!;
    let plain = 0, along = 0;
    for (let c = 0; c < C; c++) {
      const g = gain[c]! * dOut[r * C + c]!;
      plain += g;
      along += g * (x[r * C + c]! - center) * scale;
    }
    for (let c = 0; c < C; c++) {
      const h = (x[r * C + c]! - center) * scale;
      dX[r * C + c] = scale * (gain[c]! * dOut[r * C + c]! - plain / C - h * along / C);
    }
  }
  return dX;
}

/** dGain[c] = sum_r dOut[r,c] h[r,c] and dBias[c] = sum_r dOut[r,c], [C] each. */
export function layernormWeightGrad(
  { x, mean, rstd }: LayernormSaved,
  dOut: Float64Array,
  { C }: { C: number },
): { gain: Float64Array; bias: Float64Array } {
  const gain = new Float64Array(C), bias = new Float64Array(C);
  for (let r = 0; r < rstd.length; r++) {
    for (let c = 0; c < C; c++) {
      gain[c]! += dOut[r * C + c]! * (x[r * C + c]! - mean[r]!) * rstd[r]!;
      bias[c]! += dOut[r * C + c]!;
    }
  }
  return { gain, bias };
}
