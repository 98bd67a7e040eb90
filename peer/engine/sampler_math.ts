// The arithmetic of the sampler: matrix times rows, norm and attention of one head, in f32 with sums in double precision.
// Not kernels of training. A row's result has the same bits whatever rows are computed beside it.

/** Outputs computed side by side: their sums do not wait for one another, and each reads the row once. */
const LANES = 4;

/** Multiply-adds after which a product may be put aside: about a millisecond. */
const PIECE_PRODUCTS = 1 << 20;

/**
 * out = x w^T for w [N, K] and `rows` rows x [rows, K]; each sum goes over k in order, in double precision, and is rounded once.
 * Weights are read once for all rows. It may be put aside after every about PIECE_PRODUCTS multiply-adds.
 */
export function* multiplyInPieces(
  w: Float32Array,
  x: Float32Array,
  rows: number,
): Generator<void, Float32Array, void> {
  const K = x.length / rows, N = w.length / K, out = new Float32Array(rows * N);
  const outputs = Math.max(LANES, Math.floor(PIECE_PRODUCTS / (K * rows * LANES)) * LANES);
  for (let from = 0; from < N; from += outputs) {
    someOutputs({ w, x, out }, rows, { from, to: Math.min(N, from + outputs) });
    yield;
  }
  return out;
}

/** Outputs [from, to) of all rows; `from` is a multiple of LANES. */
function someOutputs({ w, x, out }: Arrays, rows: number, { from, to }: { from: number; to: number }): void {
  const K = x.length / rows, N = w.length / K;
  const whole = to - (to - from) % LANES;
  for (let n = from; n < whole; n += LANES) {
    for (let r = 0; r < rows; r++) fourSums({ w, x, out }, { K, n, xAt: r * K, outAt: r * N + n });
  }
  for (let n = whole; n < to; n++) {
    for (let r = 0; r < rows; r++) {
      let sum = 0;
      for (let k = 0; k < K; k++) sum += w[n * K + k]! * x[r * K + k]!;
      out[r * N + n] = sum;
    }
  }
}

interface Arrays {
  w: Float32Array;
  x: Float32Array;
  out: Float32Array;
}

function fourSums({ w, x, out }: Arrays, at: { K: number; n: number; xAt: number; outAt: number }): void {
  const { K, n, xAt, outAt } = at;
  const w0 = n * K, w1 = w0 + K, w2 = w1 + K, w3 = w2 + K;
  let a = 0, b = 0, c = 0, d = 0;
  for (let k = 0; k < K; k++) {
    const value = x[xAt + k]!;
    a += w[w0 + k]! * value;
    b += w[w1 + k]! * value;
    c += w[w2 + k]! * value;
    d += w[w3 + k]! * value;
  }
  out[outAt] = a;
  out[outAt + 1] = b;
  out[outAt + 2] = c;
  out[outAt + 3] = d;
}

/** RMSNorm of each row of x [rows, C]. */
export function normaliseRows(x: Float32Array, weight: Float32Array, eps: number): Float32Array {
  const C = weight.length, out = new Float32Array(x.length);
  for (let at = 0; at < x.length; at += C) {
    let squares = 0;
    for (let c = 0; c < C; c++) squares += x[at + c]! * x[at + c]!;
    const scale = 1 / Math.sqrt(squares / C + eps);
    for (let c = 0; c < C; c++) out[at + c] = x[at + c]! * scale * weight[c]!;
  }
  return out;
}

/** LayerNorm of each row of x [rows, C]. */
export function layerNormRows(
  x: Float32Array,
  { gain, bias }: { gain: Float32Array; bias: Float32Array },
  eps: number,
): Float32Array {
  const C = gain.length, out = new Float32Array(x.length);
  for (let at = 0; at < x.length; at += C) {
    let sum = 0, squares = 0;
    for (let c = 0; c < C; c++) sum += x[at + c]!;
    const mean = sum / C;
    for (let c = 0; c < C; c++) squares += (x[at + c]! - mean) * (x[at + c]! - mean);
    const scale = 1 / Math.sqrt(squares / C + eps);
    for (let c = 0; c < C; c++) out[at + c] = (x[at + c]! - mean) * scale * gain[c]! + bias[c]!;
  }
  return out;
}

/** GELU (tanh) of every value, in place. */
export function geluInPlace(x: Float32Array): Float32Array {
  for (let i = 0; i < x.length; i++) {
    const z = x[i]!;
    x[i] = 0.5 * z * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (z + 0.044715 * z * z * z)));
  }
  return x;
}

/** Adds one row to all rows of x, in place. */
export function addRowInPlace(x: Float32Array, row: Float32Array): Float32Array {
  for (let i = 0; i < x.length; i++) x[i]! += row[i % row.length]!;
  return x;
}

/** silu(gate) * up for rows of [gate I, up I]; returns [rows, I]. */
export function swigluRows(gateUp: Float32Array, I: number): Float32Array {
  const out = new Float32Array(gateUp.length / 2);
  for (let from = 0, to = 0; from < gateUp.length; from += 2 * I, to += I) {
    for (let i = 0; i < I; i++) {
      const gate = gateUp[from + i]!;
      out[to + i] = gate / (1 + Math.exp(-gate)) * gateUp[from + I + i]!;
    }
  }
  return out;
}

export function addInPlace(target: Float32Array, values: Float32Array): void {
  for (let i = 0; i < target.length; i++) target[i]! += values[i]!;
}

/** Rotated keys, and values, of the window: each [T, Hk D]. */
export interface Cache {
  keys: Float32Array;
  values: Float32Array;
}

export interface HeadPlace {
  /** Of the head's vector in a cached row, and the length of such a row. */
  first: number;
  width: number;
  /** Cached rows that the query sees. */
  rows: number;
  /** At least `rows` values of scratch. */
  scores: Float64Array;
  /** Result, [D]. */
  out: Float32Array;
}

/** softmax(q k / sqrt(D)) v of one query row over the cached rows. */
export function attendHead(query: Float32Array, { keys, values }: Cache, place: HeadPlace): void {
  const { first, width, rows, scores, out } = place;
  const D = query.length, scale = 1 / Math.sqrt(D);
  let max = -Infinity, sum = 0;
  for (let s = 0; s < rows; s++) {
    let score = 0;
    for (let d = 0; d < D; d++) score += query[d]! * keys[s * width + first + d]!;
    scores[s] = score * scale;
    if (scores[s]! > max) max = scores[s]!;
  }
  for (let s = 0; s < rows; s++) sum += scores[s] = Math.exp(scores[s]! - max);
  for (let d = 0; d < D; d++) {
    let value = 0;
    for (let s = 0; s < rows; s++) value += scores[s]! * values[s * width + first + d]!;
    out[d] = value / sum;
  }
}
