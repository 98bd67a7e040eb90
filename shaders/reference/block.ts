// Double-precision twin of one transformer block (Llama: pre-norm, rotary grouped-query attention, SwiGLU, no biases),
// with the backward split in B (input gradient) and W (weight gradient). It only composes the other twins.
// Legend: R = B T rows, C = n_embd, H / Hk heads, D = C / H, I = n_inner.
import { attentionBackward, attentionForward } from "./attention.ts";
import { matmulNN, matmulNT, matmulTN } from "./matmul.ts";
import { residualAdd } from "./residual.ts";
import { rmsnormForward, rmsnormInputGrad, rmsnormWeightGrad } from "./rmsnorm.ts";
import { rotaryBackward, rotaryForward } from "./rotary.ts";
import { swigluBackward, swigluForward } from "./swiglu.ts";

export interface BlockShape {
  B: number;
  T: number;
  C: number;
  H: number;
  Hk: number;
  D: number;
  I: number;
  theta: number;
  eps: number;
}

/** The references compute in double precision; the sampler views the same layout in single precision. */
export type FloatArray = Float64Array | Float32Array;

/** Weights of one block, or gradients of the same shapes; matrices are [out, in]. */
export interface BlockParams<A extends FloatArray = Float64Array> {
  /** input_layernorm, [C]. */
  attentionNorm: A;
  /** q, k and v stacked: [(H + 2 Hk) D, C]. */
  qkv: A;
  /** o_proj, [C, H D]. */
  project: A;
  /** post_attention_layernorm, [C]. */
  mlpNorm: A;
  /** gate and up stacked: [2 I, C]; in GPT-2, which has no gate, [I, C]. */
  gateUp: A;
  /** down_proj, [C, I]. */
  down: A;
  /** Of GPT-2 alone (block_gpt2.ts): what the norm or the matrix of the same name adds to each row. */
  biases?: Record<"attentionNorm" | "qkv" | "project" | "mlpNorm" | "gateUp" | "down", A>;
}

/** What B and W need of the forward. */
export interface BlockSaved {
  /** Block input, and the input of the second norm, [R, C]. */
  x: Float64Array;
  middle: Float64Array;
  /** Reciprocal root mean squares or standard deviations, [R]; LayerNorm's means beside them. */
  attentionRstd: Float64Array;
  mlpRstd: Float64Array;
  attentionMean?: Float64Array;
  mlpMean?: Float64Array;
  /** Norm outputs, [R, C]. */
  attentionIn: Float64Array;
  mlpIn: Float64Array;
  /** Rotated where the model rotates, [R, (H + 2 Hk) D]. */
  qkv: Float64Array;
  /** Attention output [R, H D] and its lse [R, H]. */
  attended: Float64Array;
  lse: Float64Array;
  /** [R, 2 I], in GPT-2 [R, I], and [R, I]. */
  gateUp: Float64Array;
  act: Float64Array;
}

/** What W needs of B: the gradient of every linear's and every norm's output. */
export interface BlockPending {
  dOut: Float64Array;
  dGateUp: Float64Array;
  dMlpIn: Float64Array;
  dMiddle: Float64Array;
  dQkv: Float64Array;
  dAttentionIn: Float64Array;
}

/** F: x [R, C] to out [R, C]. */
export function blockForward(
  p: BlockParams,
  x: Float64Array,
  shape: BlockShape,
): { out: Float64Array; saved: BlockSaved } {
  const { B, T, C, H, Hk, D, I } = shape;
  const M = B * T;
  const first = rmsnormForward(x, p.attentionNorm, shape);
  const qkv = rotaryForward(matmulNT(first.out, p.qkv, { M, N: (H + 2 * Hk) * D, K: C }), shape);
  const attention = attentionForward(qkv, shape);
  const middle = residualAdd(x, matmulNT(attention.out, p.project, { M, N: C, K: H * D }));
  const second = rmsnormForward(middle, p.mlpNorm, shape);
  const gateUp = matmulNT(second.out, p.gateUp, { M, N: 2 * I, K: C });
  const act = swigluForward(gateUp, shape);
  const out = residualAdd(middle, matmulNT(act, p.down, { M, N: C, K: I }));
  const norms = {
    attentionRstd: first.rstd,
    mlpRstd: second.rstd,
    attentionIn: first.out,
    mlpIn: second.out,
  };
  return {
    out,
    saved: { x, middle, ...norms, qkv, attended: attention.out, lse: attention.lse, gateUp, act },
  };
}

/** B: dOut [R, C] to dX [R, C]; `pending` is what W still needs. */
export function blockInputGrad(
  p: BlockParams,
  saved: BlockSaved,
  { dOut, shape }: { dOut: Float64Array; shape: BlockShape },
): { dX: Float64Array; pending: BlockPending } {
  const { B, T, C, H, Hk, D, I } = shape;
  const M = B * T;
  const dAct = matmulNN(dOut, p.down, { M, N: I, K: C });
  const dGateUp = swigluBackward(saved.gateUp, dAct, shape);
  const dMlpIn = matmulNN(dGateUp, p.gateUp, { M, N: C, K: 2 * I });
  const second = { x: saved.middle, rstd: saved.mlpRstd, dOut: dMlpIn };
  const dMiddle = residualAdd(dOut, rmsnormInputGrad(second, p.mlpNorm, shape));
  const dAttended = matmulNN(dMiddle, p.project, { M, N: H * D, K: C });
  const attention = { qkv: saved.qkv, out: saved.attended, lse: saved.lse, dOut: dAttended };
  const dQkv = rotaryBackward(attentionBackward(attention, shape), shape);
  const dAttentionIn = matmulNN(dQkv, p.qkv, { M, N: C, K: (H + 2 * Hk) * D });
  const first = { x: saved.x, rstd: saved.attentionRstd, dOut: dAttentionIn };
  const dX = residualAdd(dMiddle, rmsnormInputGrad(first, p.attentionNorm, shape));
  return { dX, pending: { dOut, dGateUp, dMlpIn, dMiddle, dQkv, dAttentionIn } };
}

/** W: writes the gradient of every weight of the block into `grads` (views of the flat gradient). */
export function blockWeightGrad(
  saved: BlockSaved,
  pending: BlockPending,
  { grads, shape }: { grads: BlockParams; shape: BlockShape },
): void {
  const { B, T, C, H, Hk, D, I } = shape;
  const K = B * T;
  const first = { x: saved.x, rstd: saved.attentionRstd, dOut: pending.dAttentionIn };
  const second = { x: saved.middle, rstd: saved.mlpRstd, dOut: pending.dMlpIn };
  grads.attentionNorm.set(rmsnormWeightGrad(first, shape));
  grads.qkv.set(matmulTN(pending.dQkv, saved.attentionIn, { M: (H + 2 * Hk) * D, N: C, K }));
  grads.project.set(matmulTN(pending.dMiddle, saved.attended, { M: C, N: H * D, K }));
  grads.mlpNorm.set(rmsnormWeightGrad(second, shape));
  grads.gateUp.set(matmulTN(pending.dGateUp, saved.mlpIn, { M: 2 * I, N: C, K }));
  grads.down.set(matmulTN(pending.dOut, saved.act, { M: C, N: I, K }));
}
