// Double-precision twin of causal grouped-query attention over packed rows; the rotation is already done (rotary.ts).
// Not blockwise: each query row is a plain softmax. The backward recomputes probabilities from lse, as
// FlashAttention-2 does (Dao 2023, arXiv:2307.08691). A sequence of T rows never sees another sequence.

/**
 * R = B * T rows. A row of qkv is H query heads, then Hk key heads, then Hk value heads, each D wide. Query head h
 * reads key/value head floor(h / (H / Hk)). Scores are scaled by 1 / sqrt(D).
 */
export interface AttentionShape {
  B: number;
  T: number;
  H: number;
  Hk: number;
  D: number;
}

export interface AttentionBackwardInput {
  /** Rotated input of the forward, [R, (H + 2 Hk) D]. */
  qkv: Float64Array;
  /** Output of the forward, [R, H D]. */
  out: Float64Array;
  /** Natural log of the sum of exponentials of the scaled scores, [R, H]. */
  lse: Float64Array;
  /** Gradient of the output, [R, H D]. */
  dOut: Float64Array;
}

/** Softmax(q k^T / sqrt(D), causal) v: out is [R, H D], lse is [R, H]. */
export function attentionForward(
  qkv: Float64Array,
  shape: AttentionShape,
): { out: Float64Array; lse: Float64Array } {
  const R = shape.B * shape.T;
  const out = new Float64Array(R * shape.H * shape.D), lse = new Float64Array(R * shape.H);
  const weights = new Float64Array(shape.T);
  eachQuery(shape, (query) => forwardQuery({ qkv, out, lse, weights }, query, shape.D));
  return { out, lse };
}

/** Gradient of the packed, rotated input: [R, (H + 2 Hk) D]. */
export function attentionBackward(input: AttentionBackwardInput, shape: AttentionShape): Float64Array {
  const dQkv = new Float64Array(input.qkv.length);
  eachQuery(shape, (query) => backwardQuery({ ...input, dQkv }, query, shape.D));
  return dQkv;
}

/** Offsets of one query row and head. */
interface Query {
  /** Of the query vector in qkv. */
  q: number;
  /** Of the first key and value of the sequence in qkv; the next ones are `width` further each. */
  k: number;
  v: number;
  width: number;
  /** Keys that this query sees: its own position and all before it. */
  seen: number;
  /** Of the output vector in out. */
  o: number;
  /** Of the row and head in lse. */
  row: number;
}

function eachQuery({ B, T, H, Hk, D }: AttentionShape, visit: (query: Query) => void): void {
  const width = (H + 2 * Hk) * D, group = H / Hk;
  for (let b = 0; b < B; b++) {
    for (let h = 0; h < H; h++) {
      const k = b * T * width + (H + Math.floor(h / group)) * D, v = k + Hk * D;
      for (let t = 0; t < T; t++) {
        const r = b * T + t;
        visit({ q: r * width + h * D, k, v, width, seen: t + 1, o: (r * H + h) * D, row: r * H + h });
      }
    }
  }
}

interface ForwardArrays {
  qkv: Float64Array;
  out: Float64Array;
  lse: Float64Array;
  /** Scratch of T numbers. */
  weights: Float64Array;
}

function forwardQuery({ qkv, out, lse, weights }: ForwardArrays, query: Query, D: number): void {
  const { q, k, v, width, seen, o, row } = query;
  const scale = 1 / Math.sqrt(D);
  let max = -Infinity;
  for (let s = 0; s < seen; s++) {
    let score = 0;
    for (let d = 0; d < D; d++) score += qkv[q + d]! * qkv[k + s * width + d]!;
    weights[s] = score * scale;
    if (weights[s]! > max) max = weights[s]!;
  }
  let sum = 0;
  for (let s = 0; s < seen; s++) sum += weights[s] = Math.exp(weights[s]! - max);
  lse[row] = max + Math.log(sum);
  for (let s = 0; s < seen; s++) {
    const p = weights[s]! / sum;
    for (let d = 0; d < D; d++) out[o + d]! += p * qkv[v + s * width + d]!;
  }
}

/** dS = P (dP - delta) with dP = dOut . v and delta = dOut . out; then dq, dk and dv follow from dS and P. */
function backwardQuery(
  arrays: AttentionBackwardInput & { dQkv: Float64Array },
  { q, k, v, width, seen, o, row }: Query,
  D: number,
): void {
  const { qkv, out, lse, dOut, dQkv } = arrays;
  const scale = 1 / Math.sqrt(D);
  let delta = 0;
  for (let d = 0; d < D; d++) delta += dOut[o + d]! * out[o + d]!;
  for (let s = 0; s < seen; s++) {
    const key = k + s * width, value = v + s * width;
    let score = 0, dP = 0;
    for (let d = 0; d < D; d++) {
      score += qkv[q + d]! * qkv[key + d]!;
      dP += dOut[o + d]! * qkv[value + d]!;
    }
    const p = Math.exp(score * scale - lse[row]!), dScore = p * (dP - delta) * scale;
    for (let d = 0; d < D; d++) {
      dQkv[q + d]! += dScore * qkv[key + d]!;
      dQkv[key + d]! += dScore * qkv[q + d]!;
      dQkv[value + d]! += p * dOut[o + d]!;
    }
  }
}
