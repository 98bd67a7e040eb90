// The vocabulary head with cross-entropy on the WASM heap, one tile of the vocabulary at a time, without one-hot labels.
// Per logit it costs tfjs' softmax and one multiplication: a tile's log-sum-exp is read off its largest probability.
import { addTo, type HeapMatrix, type WasmHeap } from "./tfjs_heap.ts";
import { type HeadKept, headTiles, type MathShape, type RowRange } from "../model/tfjs_math.ts";

interface Head {
  /** [R, C] and [V, C]. */
  x: HeapMatrix;
  table: HeapMatrix;
  targets: Uint32Array;
}

/** [1, 1] loss, mean over the R rows. */
export function headLoss(
  heap: WasmHeap,
  shape: MathShape,
  { keep, ...head }: Head & { keep: boolean },
): { loss: HeapMatrix; kept: HeadKept<HeapMatrix> } {
  const { R } = shape;
  const tiles = headTiles(shape);
  const [lse, loss] = [heap.empty(1, R), heap.empty(1, 1)];
  const total = new Float64Array(R).fill(-Infinity), wanted = new Float64Array(R);
  let dLogits: HeapMatrix | undefined;
  for (const rows of tiles) {
    const { logits, probabilities } = tileOf(heap, head, rows);
    const values = heap.view(logits), p = heap.view(probabilities);
    for (let r = 0; r < R; r++) {
      total[r] = logAddExp(total[r]!, rowLse(values, p, r * rows.count, rows.count));
      const target = head.targets[r]! - rows.from;
      if (target >= 0 && target < rows.count) wanted[r] = values[r * rows.count + target]!;
    }
    heap.free(logits);
    if (keep && tiles.length === 1) dLogits = probabilities;
    else heap.free(probabilities);
  }
  heap.view(lse).set(total);
  heap.view(loss)[0] = total.reduce((sum, value, r) => sum + value - wanted[r]!, 0) / R;
  if (!dLogits) return { loss, kept: { lse } };
  const p = heap.view(dLogits);
  for (let i = 0; i < p.length; i++) p[i]! /= R;
  subtractTargets(p, head.targets, tiles[0]!);
  return { loss, kept: { lse, dLogits } };
}

/** dLogits W, [R, C]. */
export function headInputGrad(
  heap: WasmHeap,
  shape: MathShape,
  { kept, ...head }: Head & { kept: HeadKept<HeapMatrix> },
): HeapMatrix {
  let sum: HeapMatrix | undefined;
  for (const rows of headTiles(shape)) {
    const dLogits = kept.dLogits ?? logitGrad(heap, { ...head, kept, rows });
    const weights = tileRows(heap, head.table, rows);
    const part = heap.matmul(dLogits, weights);
    heap.free(weights, ...kept.dLogits ? [] : [dLogits]);
    if (!sum) sum = part;
    else {
      addTo(heap.view(sum), heap.view(part));
      heap.free(part);
    }
  }
  return sum!;
}

/** (softmax - onehot) / R of one tile, [R, tile], made again from the kept log-sum-exp. */
export function logitGrad(
  heap: WasmHeap,
  { kept, rows, ...head }: Head & { kept: HeadKept<HeapMatrix>; rows: RowRange },
): HeapMatrix {
  const { logits, probabilities } = tileOf(heap, head, rows);
  const values = heap.view(logits), p = heap.view(probabilities), lse = heap.view(kept.lse);
  const { count } = rows, R = lse.length;
  for (let r = 0; r < R; r++) {
    const factor = Math.exp(rowLse(values, p, r * count, count) - lse[r]!) / R;
    for (let i = r * count; i < (r + 1) * count; i++) p[i]! *= factor;
  }
  subtractTargets(p, head.targets, rows);
  heap.free(logits);
  return probabilities;
}

/** Logits of one tile of the vocabulary and their softmax within the tile, [R, tile] each. */
function tileOf(
  heap: WasmHeap,
  { x, table }: Head,
  rows: RowRange,
): { logits: HeapMatrix; probabilities: HeapMatrix } {
  const plain = tileRows(heap, table, rows);
  const turned = heap.transpose(plain);
  heap.free(plain);
  const logits = heap.matmul(x, turned);
  heap.free(turned);
  return { logits, probabilities: heap.softmax(logits) };
}

function tileRows(heap: WasmHeap, table: HeapMatrix, { from, count }: RowRange): HeapMatrix {
  const C = table.cols;
  const out = heap.empty(count, C);
  heap.view(out).set(heap.view(table).subarray(from * C, (from + count) * C));
  return out;
}

/** The largest logit's probability is exp(largest - lse). */
function rowLse(logits: Float32Array, p: Float32Array, ...[at, count]: [number, number]): number {
  let best = at;
  for (let i = at + 1; i < at + count; i++) if (logits[i]! > logits[best]!) best = i;
  return logits[best]! - Math.log(p[best]!);
}

function logAddExp(a: number, b: number): number {
  const most = Math.max(a, b);
  return most + Math.log(Math.exp(a - most) + Math.exp(b - most));
}

function subtractTargets(dLogits: Float32Array, targets: Uint32Array, { from, count }: RowRange): void {
  for (let r = 0; r < targets.length; r++) {
    const target = targets[r]! - from;
    if (target >= 0 && target < count) dLogits[r * count + target]! -= 1 / targets.length;
  }
}
