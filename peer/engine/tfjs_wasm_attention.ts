// Causal grouped-query attention on the WASM heap, one key head and one block of queries at a time: the scores of a block
// are a plain product and tfjs' softmax, and memory does not grow with T squared. The backward computes the scores again.
import type { HeapMatrix, WasmHeap } from "./tfjs_heap.ts";
import { type MathShape, QUERY_BLOCK } from "../model/tfjs_math.ts";

/** One block of queries of the query heads that share a key head. */
interface Block {
  /** First row of the sequence in qkv. */
  row: number;
  kvHead: number;
  /** Queries from..end of the sequence, which see keys 0..end. */
  from: number;
  end: number;
}

/** Where the values of one head lie in packed rows; `scale` multiplies what is gathered or scattered. */
interface Slice {
  /** Offset of the first value, and from one row to the next. */
  at: number;
  stride: number;
  rows: number;
  scale?: number;
}

/** qkv [R, Q] with rotated heads -> [R, H D]. */
export function attend(heap: WasmHeap, shape: MathShape, qkv: HeapMatrix): HeapMatrix {
  const { R, H, D } = shape;
  const out = heap.empty(R, H * D);
  for (const block of blocksOf(shape)) attendBlock(heap, shape, { ...block, qkv, out });
  return out;
}

function attendBlock(
  heap: WasmHeap,
  shape: MathShape,
  { qkv, out, ...block }: Block & { qkv: HeapMatrix; out: HeapMatrix },
): void {
  const { D } = shape;
  const q = queries(heap, shape, { ...block, qkv });
  const weights = attentionWeights(heap, shape, { ...block, qkv, q });
  heap.free(q);
  const v = heap.empty(block.end, D);
  gather(heap.view(v), heap.view(qkv), D, valuesOf(shape, block));
  const result = heap.matmul(weights, v);
  heap.free(weights, v);
  const to = heap.view(out), from = heap.view(result);
  for (const [g, slice] of outputsOf(shape, block).entries()) scatter(to, from, D, { ...slice, head: g });
  heap.free(result);
}

/** dAttended [R, H D] -> the gradient of the rotated heads, written over qkv. */
export function attendGrad(
  heap: WasmHeap,
  shape: MathShape,
  tensors: { qkv: HeapMatrix; attended: HeapMatrix; dAttended: HeapMatrix },
): void {
  const { T, D } = shape;
  const dK = new Float32Array(T * D), dV = new Float32Array(T * D);
  for (const block of blocksOf(shape)) {
    if (block.from === 0) {
      dK.fill(0);
      dV.fill(0);
    }
    gradOfBlock(heap, shape, { ...block, ...tensors, dK, dV });
    if (block.end < T) continue;
    const to = heap.view(tensors.qkv);
    scatter(to, dK, D, { ...keysOf(shape, block), head: 0 });
    scatter(to, dV, D, { ...valuesOf(shape, block), head: 0 });
  }
}

interface GradBlock extends Block {
  qkv: HeapMatrix;
  attended: HeapMatrix;
  dAttended: HeapMatrix;
  /** [T, D] each; blocks add to them. */
  dK: Float32Array;
  dV: Float32Array;
}

/** dS = P (dP - delta) with dP = dO v^T and delta = rowsum(dO o O), as in shaders/reference/attention.ts. */
function gradOfBlock(heap: WasmHeap, shape: MathShape, block: GradBlock): void {
  const { D } = shape;
  const q = queries(heap, shape, block);
  const weights = attentionWeights(heap, shape, { ...block, q });
  const dOut = heap.empty(q.rows, D);
  gatherHeads(heap.view(dOut), heap.view(block.dAttended), D, outputsOf(shape, block));
  const dScores = scoreGrad(heap, shape, { ...block, weights, dOut });
  accumulate(heap, block.dV, { left: weights, right: dOut });
  heap.free(weights, dOut);
  accumulate(heap, block.dK, { left: dScores, right: q });
  heap.free(q);
  const k = heap.empty(block.end, D);
  gather(heap.view(k), heap.view(block.qkv), D, keysOf(shape, block));
  const dQ = heap.matmul(dScores, k);
  heap.free(dScores, k);
  const to = heap.view(block.qkv), from = heap.view(dQ);
  for (const [g, slice] of queriesOf(shape, block).entries()) scatter(to, from, D, { ...slice, head: g });
  heap.free(dQ);
}

/** [rows, keys]; the gradient of the scaled scores. */
function scoreGrad(
  heap: WasmHeap,
  shape: MathShape,
  { weights, dOut, ...block }: GradBlock & { weights: HeapMatrix; dOut: HeapMatrix },
): HeapMatrix {
  const { D } = shape;
  const vT = heap.empty(D, block.end);
  gatherTransposed(heap.view(vT), heap.view(block.qkv), D, valuesOf(shape, block));
  const dScores = heap.matmul(dOut, vT);
  heap.free(vT);
  const out = heap.view(block.attended), dO = heap.view(dOut);
  const p = heap.view(weights), dP = heap.view(dScores), keys = block.end;
  for (const [g, { at, stride, rows }] of outputsOf(shape, block).entries()) {
    for (let i = 0; i < rows; i++) {
      const row = g * rows + i;
      let delta = 0;
      for (let d = 0; d < D; d++) delta += dO[row * D + d]! * out[at + i * stride + d]!;
      for (let s = row * keys; s < (row + 1) * keys; s++) dP[s] = p[s]! * (dP[s]! - delta);
    }
  }
  return dScores;
}

/** target [T, D] += left^T right, over the block's keys. */
function accumulate(
  heap: WasmHeap,
  target: Float32Array,
  { left, right }: { left: HeapMatrix; right: HeapMatrix },
): void {
  const turned = heap.transpose(left);
  const part = heap.matmul(turned, right);
  heap.free(turned);
  const values = heap.view(part);
  for (let i = 0; i < values.length; i++) target[i]! += values[i]!;
  heap.free(part);
}

/** Scaled queries of a block, [heads per key head x queries, D]. */
function queries(
  heap: WasmHeap,
  shape: MathShape,
  { qkv, ...block }: Block & { qkv: HeapMatrix },
): HeapMatrix {
  const slices = queriesOf(shape, block);
  const q = heap.empty(slices.length * (block.end - block.from), shape.D);
  gatherHeads(heap.view(q), heap.view(qkv), shape.D, slices);
  return q;
}

/** Softmax of the masked scores, [q.rows, keys]. */
function attentionWeights(
  heap: WasmHeap,
  shape: MathShape,
  { qkv, q, ...block }: Block & { qkv: HeapMatrix; q: HeapMatrix },
): HeapMatrix {
  const { from, end } = block;
  const kT = heap.empty(shape.D, end);
  gatherTransposed(heap.view(kT), heap.view(qkv), shape.D, keysOf(shape, block));
  const scores = heap.matmul(q, kT);
  heap.free(kT);
  const values = heap.view(scores), count = end - from;
  for (let row = 0; row < q.rows; row++) {
    values.fill(-Infinity, row * end + from + row % count + 1, (row + 1) * end);
  }
  const weights = heap.softmax(scores);
  heap.free(scores);
  return weights;
}

function* blocksOf({ B, T, Hk }: MathShape): Generator<Block> {
  for (let b = 0; b < B; b++) {
    for (let kvHead = 0; kvHead < Hk; kvHead++) {
      for (let from = 0; from < T; from += QUERY_BLOCK) {
        yield { row: b * T, kvHead, from, end: Math.min(from + QUERY_BLOCK, T) };
      }
    }
  }
}

/** The queries of every head of the group. Both they and their gradients carry the factor 1 / sqrt(D). */
function queriesOf({ H, Hk, D, Q }: MathShape, { row, kvHead, from, end }: Block): Slice[] {
  const group = H / Hk, scale = 1 / Math.sqrt(D);
  return Array.from({ length: group }, (_, g) => {
    return { at: (row + from) * Q + (kvHead * group + g) * D, stride: Q, rows: end - from, scale };
  });
}

function keysOf({ H, D, Q }: MathShape, { row, kvHead, end }: Block): Slice {
  return { at: row * Q + (H + kvHead) * D, stride: Q, rows: end };
}

function valuesOf({ H, Hk, D, Q }: MathShape, { row, kvHead, end }: Block): Slice {
  return { at: row * Q + (H + Hk + kvHead) * D, stride: Q, rows: end };
}

/** Rows of [R, H D] that belong to the block's queries. */
function outputsOf({ H, Hk, D }: MathShape, { row, kvHead, from, end }: Block): Slice[] {
  const group = H / Hk;
  return Array.from({ length: group }, (_, g) => {
    return { at: ((row + from) * H + kvHead * group + g) * D, stride: H * D, rows: end - from };
  });
}

function gatherHeads(
  to: Float32Array,
  from: Float32Array,
  ...[D, slices]: [number, readonly Slice[]]
): void {
  for (const [g, slice] of slices.entries()) gather(to.subarray(g * slice.rows * D), from, D, slice);
}

/** to [rows, D]. */
function gather(
  to: Float32Array,
  from: Float32Array,
  ...[D, { at, stride, rows, scale = 1 }]: [number, Slice]
): void {
  for (let r = 0; r < rows; r++) {
    for (let d = 0; d < D; d++) to[r * D + d] = from[at + r * stride + d]! * scale;
  }
}

/** to [D, rows]. */
function gatherTransposed(
  to: Float32Array,
  from: Float32Array,
  ...[D, { at, stride, rows }]: [number, Slice]
): void {
  for (let d = 0; d < D; d++) {
    for (let r = 0; r < rows; r++) to[d * rows + r] = from[at + r * stride + d]!;
  }
}

/** The other way round, from rows head * rows.. of [.., D]. */
function scatter(
  to: Float32Array,
  from: Float32Array,
  ...[D, { at, stride, rows, scale = 1, head }]: [number, Slice & { head: number }]
): void {
  const first = head * rows * D;
  for (let r = 0; r < rows; r++) {
    for (let d = 0; d < D; d++) to[at + r * stride + d] = from[first + r * D + d]! * scale;
  }
}
