// Dispatch plans of single layers' building blocks, with the stage's shapes filled in.
// It decides no order of operations (wgsl_block.ts, wgsl_ends.ts do) and touches no device.
import type { TensorRef } from "../gpu/arena.ts";
import { MatmulEpilogue, type MatmulLayout, type MatmulShape, matmulSpec } from "../gpu/kernels/matmul.ts";
import { rmsnormForwardSpec, rmsnormInputGradSpec, rmsnormWeightGradSpec } from "../gpu/kernels/rmsnorm.ts";
import { rotarySpec } from "../gpu/kernels/rotary.ts";
import { swigluForwardSpec } from "../gpu/kernels/swiglu.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import type { StagePlanning } from "./wgsl_names.ts";

/** out [M, N] from a and b, whose shapes follow from the layout. */
export interface MatmulPlan extends MatmulShape {
  a: TensorRef;
  b: TensorRef;
  out: TensorRef;
  /** Added to the product. */
  residual?: TensorRef;
  /** Adds to what `out` holds. */
  accumulate?: boolean;
}

export function matmul(p: StagePlanning, layout: MatmulLayout, product: MatmulPlan): DispatchPlan {
  const { M, N, K, a, b, out, residual, accumulate = false } = product;
  const { store, addResidual, accumulate: accumulates } = MatmulEpilogue;
  const epilogue = residual !== undefined ? addResidual : accumulate ? accumulates : store;
  return {
    spec: matmulSpec(layout, product, { wide: p.wideTiles }),
    params: { M, N, K, epilogue },
    tensors: { a, b, out, residual: residual ?? a },
  };
}

/** x [R, C] -> y [R, C] and rstd [R]; also recomputes y, when rstd is written again with the same bits. */
export function rmsnorm(
  p: StagePlanning,
  tensors: { x: TensorRef; gain: TensorRef; rstd: TensorRef; y: TensorRef },
): DispatchPlan {
  return { spec: rmsnormForwardSpec, params: { R: p.R, C: p.C, eps: p.eps }, tensors };
}

/** Input gradient and gain gradient of a norm; `dres` is the gradient that went round it. */
export function rmsnormGrads(
  p: StagePlanning,
  t: {
    dy: TensorRef;
    x: TensorRef;
    gain: TensorRef;
    rstd: TensorRef;
    dres?: TensorRef;
    dx: TensorRef;
    dgain: TensorRef;
  },
): DispatchPlan[] {
  const { R, C } = p;
  const { dy, x, gain, rstd, dx, dgain } = t;
  return [
    { spec: rmsnormWeightGradSpec, params: { R, C }, tensors: { dy, x, rstd, dgain } },
    {
      spec: rmsnormInputGradSpec,
      params: { R, C, residual: t.dres === undefined ? 0 : 1 },
      tensors: { dy, x, gain, rstd, dres: t.dres ?? x, dx },
    },
  ];
}

/** Rotates q and k in place, forwards or back. */
export function rotate(p: StagePlanning, qkv: TensorRef, direction: 1 | -1): DispatchPlan {
  const { R, T, H, Hk, D } = p;
  return { spec: rotarySpec, params: { R, T, H, Hk, D, direction }, tensors: { angles: "angles", qkv } };
}

export function swiglu({ R, I }: StagePlanning, gateUp: TensorRef, out: TensorRef): DispatchPlan {
  return { spec: swigluForwardSpec, params: { R, I }, tensors: { gate_up: gateUp, out } };
}
