// The norm of a model, whichever it is: LayerNorm where there is a bias (GPT-2), RMSNorm where there is none (Llama).
// Nothing but that choice, for the stage's final norm.
import { layernormForward, layernormInputGrad, layernormWeightGrad } from "./layernorm.ts";
import { rmsnormForward, rmsnormInputGrad, rmsnormWeightGrad } from "./rmsnorm.ts";

/** [C] each. */
export interface NormParams {
  gain: Float64Array;
  bias?: Float64Array | undefined;
}

export interface NormSaved {
  /** Input [R, C]. */
  x: Float64Array;
  /** [R]; the mean only of LayerNorm. */
  rstd: Float64Array;
  mean?: Float64Array;
}

export function normForward(
  x: Float64Array,
  { gain, bias }: NormParams,
  shape: { C: number; eps: number },
): { out: Float64Array; saved: NormSaved } {
  if (bias === undefined) {
    const { out, rstd } = rmsnormForward(x, gain, shape);
    return { out, saved: { x, rstd } };
  }
  const { out, mean, rstd } = layernormForward(x, { gain, bias }, shape);
  return { out, saved: { x, mean, rstd } };
}

/** dX [R, C] from dOut [R, C]. */
export function normInputGrad(
  { x, rstd, mean }: NormSaved,
  dOut: Float64Array,
  { gain, C }: { gain: Float64Array; C: number },
): Float64Array {
  if (mean === undefined) return rmsnormInputGrad({ x, rstd, dOut }, gain, { C });
  return layernormInputGrad({ x, mean, rstd }, dOut, { gain, C });
}

/** Writes the gradient of gain and bias into `grads`. */
export function normWeightGrad(
  { x, rstd, mean }: NormSaved,
  dOut: Float64Array,
  { grads, C }: { grads: NormParams; C: number },
): void {
  if (mean === undefined) {
    grads.gain.set(rmsnormWeightGrad({ x, rstd, dOut }, { C }));
    return;
  }
  const { gain, bias } = layernormWeightGrad({ x, mean, rstd }, dOut, { C });
  grads.gain.set(gain);
  grads.bias?.set(bias);
}
