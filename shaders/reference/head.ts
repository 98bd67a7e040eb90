// Double-precision twin of the language-model head fused with cross-entropy: logits = x W^T, loss in nats per row.
// The final norm is not part of it. Gradients are of the MEAN loss over the R rows.
// Legend: R rows, C width, V vocabulary; x is [R, C], w is [V, C], targets is [R] with every entry below V.
import { matmulNN, matmulNT, matmulTN } from "./matmul.ts";

export interface HeadShape {
  C: number;
  V: number;
}

export interface HeadOutput {
  /** -log softmax(logits)[target] of each row, [R], in nats. */
  losses: Float64Array;
  /** Log of the sum of exponentials of each row's logits, [R]. */
  lse: Float64Array;
  /** [R, V]. */
  logits: Float64Array;
}

/** Per-row loss, with the lse and logits that the gradient is made from. */
export function headForward(
  x: Float64Array,
  w: Float64Array,
  { targets, C, V }: HeadShape & { targets: Uint32Array },
): HeadOutput {
  const R = targets.length;
  const logits = matmulNT(x, w, { M: R, N: V, K: C });
  const losses = new Float64Array(R), lse = new Float64Array(R);
  for (let r = 0; r < R; r++) {
    lse[r] = logSumExp(logits.subarray(r * V, (r + 1) * V));
    losses[r] = lse[r]! - logits[r * V + targets[r]!]!;
  }
  return { losses, lse, logits };
}

/** dLogits[r,v] = (softmax(logits[r])[v] - (v = target)) / R, [R, V]. */
export function headLogitGrad(
  { logits, lse }: Pick<HeadOutput, "logits" | "lse">,
  targets: Uint32Array,
  { V }: { V: number },
): Float64Array {
  const R = targets.length;
  const dLogits = new Float64Array(R * V);
  for (let r = 0; r < R; r++) {
    for (let v = 0; v < V; v++) dLogits[r * V + v] = Math.exp(logits[r * V + v]! - lse[r]!) / R;
    dLogits[r * V + targets[r]!]! -= 1 / R;
  }
  return dLogits;
}

/** dX = dLogits W, [R, C]. */
export function headInputGrad(dLogits: Float64Array, w: Float64Array, { C, V }: HeadShape): Float64Array {
  return matmulNN(dLogits, w, { M: dLogits.length / V, N: C, K: V });
}

/** dW = dLogits^T x, [V, C]. */
export function headWeightGrad(dLogits: Float64Array, x: Float64Array, { C, V }: HeadShape): Float64Array {
  return matmulTN(dLogits, x, { M: V, N: C, K: dLogits.length / V });
}

/** Both gradients of the mean loss at once, for kernels that fuse them: dX [R, C] and dW [V, C]. */
export function headBackward(
  x: Float64Array,
  w: Float64Array,
  { targets, C, V }: HeadShape & { targets: Uint32Array },
): { dX: Float64Array; dW: Float64Array } {
  const dLogits = headLogitGrad(headForward(x, w, { targets, C, V }), targets, { V });
  return { dX: headInputGrad(dLogits, w, { C, V }), dW: headWeightGrad(dLogits, x, { C, V }) };
}

/** Arithmetic mean; 0 for no rows. */
export function mean(values: Float64Array): number {
  let sum = 0;
  for (const value of values) sum += value;
  return values.length === 0 ? 0 : sum / values.length;
}

function logSumExp(row: Float64Array): number {
  let max = -Infinity, sum = 0;
  for (const value of row) if (value > max) max = value;
  for (const value of row) sum += Math.exp(value - max);
  return max + Math.log(sum);
}
