// Dispatch plans of single layers' building blocks, with the stage's shapes filled in.
// It decides no order of operations (wgsl_block.ts, wgsl_ends.ts do) and touches no device.
import type { TensorRef } from "../gpu/arena.ts";
import { productDispatches, type ProductTensors } from "../gpu/products.ts";
import { type MatmulLayout, type MatmulShape, pickMatmul } from "../gpu/kernels/matmul.ts";
import { rmsnormGainGradSpec, rmsnormKernels } from "../gpu/kernels/rmsnorm.ts";
import { rotaryKernel } from "../gpu/kernels/rotary.ts";
import { swigluKernels } from "../gpu/kernels/swiglu.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { gainBlocks } from "../model/block_tensors.ts";
import type { StagePlanning } from "./wgsl_names.ts";

/** out [M, N] from a and b, whose shapes follow from the layout. */
export type MatmulPlan = MatmulShape & Omit<ProductTensors, "slices">;

/** One dispatch; K is never cut. */
export function matmul(p: StagePlanning, layout: MatmulLayout, product: MatmulPlan): DispatchPlan {
  const { spec } = pickMatmul(layout, product, p.matmul);
  return productDispatches({ spec, slices: 1 }, product, product)[0]!;
}

/** A weight gradient of a block, aᵀ·b: in slices of K where that was measured to be quicker, which takes two dispatches. */
export function weightMatmul(p: StagePlanning, product: MatmulPlan): DispatchPlan[] {
  const kernel = pickMatmul("tn", product, p.matmul);
  return productDispatches(kernel, product, { ...product, slices: "slices" });
}

/** x [R, C] -> y [R, C] and rstd [R]; also makes y again, when rstd is written again with the same bits. */
export function rmsnorm(
  p: StagePlanning,
  tensors: { x: TensorRef; gain: TensorRef; rstd: TensorRef; y: TensorRef },
): DispatchPlan {
  return { spec: rmsnormKernels(p.C, p.software).forward, params: { R: p.R, C: p.C, eps: p.eps }, tensors };
}

/** Input gradient of a norm, and its gain's gradient by blocks of rows; x becomes the norm's output. */
export function rmsnormBackward(
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
  return {
    spec: rmsnormKernels(p.C, p.software).backward,
    params: { R: p.R, C: p.C, residual: t.dres === undefined ? 0 : 1 },
    tensors: { ...t, dres: t.dres ?? t.dy },
  };
}

export function gainGrad(p: StagePlanning, partial: TensorRef, dgain: TensorRef): DispatchPlan {
  const params = { blocks: gainBlocks(p), C: p.C };
  return { spec: rmsnormGainGradSpec, params, tensors: { partial, dgain } };
}

/** Rotates q and k in place, by their position. */
export function rotate({ R, T, H, Hk, D }: StagePlanning, qkv: TensorRef): DispatchPlan {
  const params = { R, T, H, Hk, D, direction: 1 };
  return { spec: rotaryKernel(D), params, tensors: { angles: "angles", qkv } };
}

export function swiglu({ R, I }: StagePlanning, gateUp: TensorRef, out: TensorRef): DispatchPlan {
  return { spec: swigluKernels(I).forward, params: { R, I }, tensors: { gate_up: gateUp, out } };
}

/** In place: `gateUp` becomes its gradient, and `act`, which holds the output's gradient, the output. */
export function swigluBackward({ R, I }: StagePlanning, gateUp: TensorRef, act: TensorRef): DispatchPlan {
  return { spec: swigluKernels(I).backward, params: { R, I }, tensors: { gate_up: gateUp, act } };
}
