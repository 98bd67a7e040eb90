// Dispatch plans of a model's norms, whichever they are: LayerNorm of a GPT-2, RMSNorm of a Llama. Both keep numbers per row in
// the tensor called rstd, and sum the gradients of their parameters by the same blocks of rows.
import type { TensorRef } from "../gpu/arena.ts";
import { layernormKernels } from "../gpu/kernels/layernorm.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { FINAL_BIAS_NAME, FINAL_NORM_NAME } from "../model/layout.ts";
import { type StagePlanning, weightSlice } from "./wgsl_names.ts";
import type { ParamSide } from "./wgsl_params.ts";
import { columnSums, gainGrad, keptKernel, rmsnorm, rmsnormBackward } from "./wgsl_ops.ts";

/** x [R, C] -> y [R, C]; also makes y again, when rstd is written again with the same bits. `gain` has GPT-2's bias behind it. */
export function norm(
  p: StagePlanning,
  t: { x: TensorRef; gain: TensorRef; rstd: TensorRef; y: TensorRef },
): DispatchPlan {
  if (!p.gpt2) return rmsnorm(p, t);
  const { R, C, eps } = p;
  const spec = keptKernel(p, layernormKernels(C, p.software).forward);
  return { spec, params: { R, C, eps }, tensors: { x: t.x, affine: t.gain, y: t.y, stats: t.rstd } };
}

/** Input gradient of a norm, and that of its parameters by blocks of rows; x becomes the norm's output. */
export function normBackward(
  p: StagePlanning,
  t: {
    dy: TensorRef;
    x: TensorRef;
    gain: TensorRef;
    rstd: TensorRef;
    /** The gradient that went round the norm. */
    dres?: TensorRef;
    dx: TensorRef;
    partial: TensorRef;
  },
): DispatchPlan {
  if (!p.gpt2) return rmsnormBackward(p, t);
  const { gain, rstd, dres = t.dy, ...same } = t;
  return {
    spec: keptKernel(p, layernormKernels(p.C, p.software).backward),
    params: { R: p.R, C: p.C, residual: t.dres === undefined ? 0 : 1 },
    tensors: { ...same, affine: gain, stats: rstd, dres },
  };
}

/** What normBackward left by blocks -> the gradient of the norm's parameters. */
export function normGrad(p: StagePlanning, partial: TensorRef, gradient: TensorRef): DispatchPlan {
  return p.gpt2 ? columnSums(p, 2 * p.C, { partial, sums: gradient }) : gainGrad(p, partial, gradient);
}

/** The final norm's parameters, or their gradient. */
export function finalNormSlice(p: StagePlanning, of: ParamSide): TensorRef {
  return weightSlice(p, of, { first: FINAL_NORM_NAME, last: p.gpt2 ? FINAL_BIAS_NAME : FINAL_NORM_NAME });
}
