// What a GPT-2 has besides on tfjs' WASM heap, as loops over views of it: LayerNorm, GELU, sums over rows. Formulas are those of
// shaders/reference/{layernorm,gelu,bias}.ts. Legend: stats is [2, R], the means and below them 1/deviation; affine is [2, C].

/** Writes `stats` of x [R, C]. */
export function rowStats(stats: Float32Array, x: Float32Array, eps: number): void {
  const R = stats.length / 2, C = x.length / R;
  for (let r = 0; r < R; r++) {
    let sum = 0, squares = 0;
    for (let i = r * C; i < (r + 1) * C; i++) sum += x[i]!;
    const mean = sum / C;
    for (let i = r * C; i < (r + 1) * C; i++) squares += (x[i]! - mean) * (x[i]! - mean);
    stats[r] = mean;
    stats[R + r] = 1 / Math.sqrt(squares / C + eps);
  }
}

interface NormViews {
  affine: Float32Array;
  stats: Float32Array;
}

/** y = (x - mean) rstd gain + bias. */
export function normaliseRows(y: Float32Array, x: Float32Array, { affine, stats }: NormViews): void {
  const C = affine.length / 2, R = stats.length / 2;
  for (let r = 0; r < R; r++) {
    const mean = stats[r]!, scale = stats[R + r]!, at = r * C;
    for (let c = 0; c < C; c++) y[at + c] = (x[at + c]! - mean) * scale * affine[c]! + affine[C + c]!;
  }
}

/** dy becomes dx, dAffine [2, C] is written. */
export function layernormGradInPlace(
  dy: Float32Array,
  dAffine: Float32Array,
  { x, affine, stats }: NormViews & { x: Float32Array },
): void {
  const C = affine.length / 2, R = stats.length / 2;
  const sums = new Float64Array(2 * C);
  for (let r = 0; r < R; r++) {
    const mean = stats[r]!, scale = stats[R + r]!, at = r * C;
    let plain = 0, along = 0;
    for (let c = 0; c < C; c++) {
      const up = dy[at + c]!, h = (x[at + c]! - mean) * scale;
      plain += affine[c]! * up;
      along += affine[c]! * up * h;
      sums[c]! += up * h;
      sums[C + c]! += up;
    }
    for (let c = 0; c < C; c++) {
      const h = (x[at + c]! - mean) * scale;
      dy[at + c] = scale * (affine[c]! * dy[at + c]! - plain / C - h * along / C);
    }
  }
  dAffine.set(sums);
}

/** target [R, N] += row [N], over and over; also the positions [T, C], which are one long row of each sequence. */
export function addOver(target: Float32Array, row: Float32Array): void {
  for (let at = 0; at < target.length; at += row.length) {
    for (let i = 0; i < row.length; i++) target[at + i]! += row[i]!;
  }
}

/** Its gradient: out [N] = the sum over all that addOver added it to, in their order. */
export function sumOver(out: Float32Array, dOut: Float32Array): void {
  const sums = new Float64Array(out.length);
  for (let at = 0; at < dOut.length; at += out.length) {
    for (let i = 0; i < out.length; i++) sums[i]! += dOut[at + i]!;
  }
  out.set(sums);
}

const SLOPE = Math.sqrt(2 / Math.PI);
const CUBIC = 0.044715;

export function gelu(act: Float32Array, up: Float32Array): void {
  for (let i = 0; i < up.length; i++) {
    const z = up[i]!;
    act[i] = 0.5 * z * (1 + Math.tanh(SLOPE * (z + CUBIC * z * z * z)));
  }
}

/** up becomes its gradient and dAct becomes the forward's act. */
export function geluGradInPlace(up: Float32Array, dAct: Float32Array): void {
  for (let i = 0; i < up.length; i++) {
    const z = up[i]!, t = Math.tanh(SLOPE * (z + CUBIC * z * z * z));
    const slope = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * SLOPE * (1 + 3 * CUBIC * z * z);
    up[i] = dAct[i]! * slope;
    dAct[i] = 0.5 * z * (1 + t);
  }
}
