// Double-precision twin of one GPT-2 block (Radford et al. 2019: pre-norm with LayerNorm, attention without rotation, GELU, a
// bias with every linear layer), B and W apart. It only composes the other twins; block.ts is Llama's, whose types it shares.
// Legend: R = B T rows, C = n_embd, H heads of width D, I = n_inner.
import { attentionBackward, attentionForward } from "./attention.ts";
import { biasForward, biasWeightGrad } from "./bias.ts";
import type { BlockParams, BlockPending, BlockSaved, BlockShape } from "./block.ts";
import { geluBackward, geluForward } from "./gelu.ts";
import { layernormForward, layernormInputGrad, layernormWeightGrad } from "./layernorm.ts";
import { matmulNN, matmulNT, matmulTN } from "./matmul.ts";
import { residualAdd } from "./residual.ts";
import { assert } from "../../peer/wire/errors.ts";

/** GPT-2's views of a block: `gateUp` is [I, C], the only matrix into the inner layer. */
function biasesOf(p: BlockParams): NonNullable<BlockParams["biases"]> {
  assert(p.biases, "a block of GPT-2 has biases");
  return p.biases;
}

/** F: x [R, C] to out [R, C]. */
export function blockForward(
  p: BlockParams,
  x: Float64Array,
  shape: BlockShape,
): { out: Float64Array; saved: BlockSaved } {
  const { B, T, C, H, D, I } = shape;
  const M = B * T, biases = biasesOf(p);
  const first = layernormForward(x, { gain: p.attentionNorm, bias: biases.attentionNorm }, shape);
  const qkv = biasForward(matmulNT(first.out, p.qkv, { M, N: 3 * H * D, K: C }), biases.qkv);
  const attention = attentionForward(qkv, shape);
  const projected = matmulNT(attention.out, p.project, { M, N: C, K: H * D });
  const middle = residualAdd(x, biasForward(projected, biases.project));
  const second = layernormForward(middle, { gain: p.mlpNorm, bias: biases.mlpNorm }, shape);
  const up = biasForward(matmulNT(second.out, p.gateUp, { M, N: I, K: C }), biases.gateUp);
  const act = geluForward(up);
  const out = residualAdd(middle, biasForward(matmulNT(act, p.down, { M, N: C, K: I }), biases.down));
  const norms = {
    ...{ attentionMean: first.mean, attentionRstd: first.rstd, attentionIn: first.out },
    ...{ mlpMean: second.mean, mlpRstd: second.rstd, mlpIn: second.out },
  };
  const attended = { attended: attention.out, lse: attention.lse };
  return { out, saved: { x, middle, ...norms, qkv, ...attended, gateUp: up, act } };
}

/** B: dOut [R, C] to dX [R, C]; `pending` is what W still needs. */
export function blockInputGrad(
  p: BlockParams,
  saved: BlockSaved,
  { dOut, shape }: { dOut: Float64Array; shape: BlockShape },
): { dX: Float64Array; pending: BlockPending } {
  const { B, T, C, H, D, I } = shape;
  const M = B * T, norms = normsOf(saved);
  const dGateUp = geluBackward(saved.gateUp, matmulNN(dOut, p.down, { M, N: I, K: C }));
  const dMlpIn = matmulNN(dGateUp, p.gateUp, { M, N: C, K: I });
  const dMiddle = residualAdd(dOut, layernormInputGrad(norms.mlp, dMlpIn, { gain: p.mlpNorm, C }));
  const dAttended = matmulNN(dMiddle, p.project, { M, N: H * D, K: C });
  const attention = { qkv: saved.qkv, out: saved.attended, lse: saved.lse, dOut: dAttended };
  const dQkv = attentionBackward(attention, shape);
  const dAttentionIn = matmulNN(dQkv, p.qkv, { M, N: C, K: 3 * H * D });
  const along = layernormInputGrad(norms.attention, dAttentionIn, { gain: p.attentionNorm, C });
  return {
    dX: residualAdd(dMiddle, along),
    pending: { dOut, dGateUp, dMlpIn, dMiddle, dQkv, dAttentionIn },
  };
}

function normsOf({ x, middle, attentionMean, attentionRstd, mlpMean, mlpRstd }: BlockSaved) {
  assert(attentionMean && mlpMean, "a LayerNorm keeps its means");
  return {
    attention: { x, mean: attentionMean, rstd: attentionRstd },
    mlp: { x: middle, mean: mlpMean, rstd: mlpRstd },
  };
}

/** W: writes the gradient of every weight of the block into `grads` (views of the flat gradient). */
export function blockWeightGrad(
  saved: BlockSaved,
  pending: BlockPending,
  { grads, shape }: { grads: BlockParams; shape: BlockShape },
): void {
  const { B, T, C, H, D, I } = shape;
  const K = B * T, norms = normsOf(saved), biases = biasesOf(grads);
  const first = layernormWeightGrad(norms.attention, pending.dAttentionIn, shape);
  const second = layernormWeightGrad(norms.mlp, pending.dMlpIn, shape);
  grads.attentionNorm.set(first.gain);
  biases.attentionNorm.set(first.bias);
  grads.qkv.set(matmulTN(pending.dQkv, saved.attentionIn, { M: 3 * H * D, N: C, K }));
  biases.qkv.set(biasWeightGrad(pending.dQkv, 3 * H * D));
  grads.project.set(matmulTN(pending.dMiddle, saved.attended, { M: C, N: H * D, K }));
  biases.project.set(biasWeightGrad(pending.dMiddle, C));
  grads.mlpNorm.set(second.gain);
  biases.mlpNorm.set(second.bias);
  grads.gateUp.set(matmulTN(pending.dGateUp, saved.mlpIn, { M: I, N: C, K }));
  biases.gateUp.set(biasWeightGrad(pending.dGateUp, I));
  grads.down.set(matmulTN(pending.dOut, saved.act, { M: C, N: I, K }));
  biases.down.set(biasWeightGrad(pending.dOut, C));
}
