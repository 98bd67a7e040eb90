// Dispatch plans of single layers' building blocks, with the stage's shapes filled in.
// It decides no order of operations (wgsl_block.ts, wgsl_ends.ts do) and touches no device.
import type { TensorRef, TensorRequest } from "../gpu/arena.ts";
import { productDispatches, type ProductTensors } from "../gpu/products.ts";
import { narrowSpec, ScaleFactor, unscaleGradientSpec, widenSpec } from "../gpu/kernels/halves.ts";
import type { KernelSpec } from "../gpu/kernel.ts";
import { type MatmulLayout, type MatmulShape, pickMatmul } from "../gpu/kernels/matmul.ts";
import { rmsnormGainGradSpec, rmsnormKernels } from "../gpu/kernels/rmsnorm.ts";
import { biasKernels } from "../gpu/kernels/bias.ts";
import { geluKernels } from "../gpu/kernels/gelu.ts";
import { rotaryKernel } from "../gpu/kernels/rotary.ts";
import { swigluKernels } from "../gpu/kernels/swiglu.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { gainBlocks } from "../model/block_tensors.ts";
import { inHalves } from "../model/stage_tensors.ts";
import { assert } from "../wire/errors.ts";
import type { StagePlanning } from "./wgsl_names.ts";

/** Values of one vector; halves are stored and parameters padded in fours. */
const LANES = 4;
const WORD_BYTES = 4;

/** out [M, N] from a and b, whose shapes follow from the layout. */
export type MatmulPlan = MatmulShape & Omit<ProductTensors, "slices">;

/** The kernel for tensors that are kept from F to W, as this stage keeps them. */
export function keptKernel(p: StagePlanning, spec: KernelSpec): KernelSpec {
  if (!inHalves(p)) return spec;
  assert(spec.halves, `${spec.name} has no form in halves`);
  return spec.halves;
}

/** One dispatch; K is never cut. What the product's tensors are stored in is said by `storage`. */
export function matmul(p: StagePlanning, layout: MatmulLayout, product: MatmulPlan): DispatchPlan {
  const { spec } = pickMatmul(layout, product, p.matmul);
  return productDispatches({ spec, slices: 1 }, product, product)[0]!;
}

/** A product from a kept tensor to a kept one. */
export function keptMatmul(p: StagePlanning, layout: "nn" | "nt", product: MatmulPlan): DispatchPlan {
  return matmul(p, layout, { ...product, storage: inHalves(p) ? "halves" : "floats" });
}

/** The input gradient of a product from a kept gradient, for a norm or attention to read: in f32. */
export function inwardMatmul(p: StagePlanning, product: MatmulPlan): DispatchPlan {
  return matmul(p, "nn", { ...product, storage: inHalves(p) ? "halves_in" : "floats" });
}

/** A weight gradient of a block, aᵀ·b of two kept tensors: in slices of K where that was measured to be quicker, which takes two dispatches. */
export function weightMatmul(p: StagePlanning, product: MatmulPlan): DispatchPlan[] {
  const shape = { ...product, storage: inHalves(p) ? "halves_both" as const : "floats" as const };
  const kernel = pickMatmul("tn", shape, p.matmul);
  return productDispatches(kernel, product, { ...product, slices: "slices" });
}

/** x [R, C] -> y [R, C] and rstd [R]; also makes y again, when rstd is written again with the same bits. */
export function rmsnorm(
  p: StagePlanning,
  tensors: { x: TensorRef; gain: TensorRef; rstd: TensorRef; y: TensorRef },
): DispatchPlan {
  const spec = keptKernel(p, rmsnormKernels(p.C, p.software).forward);
  return { spec, params: { R: p.R, C: p.C, eps: p.eps }, tensors };
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
    spec: keptKernel(p, rmsnormKernels(p.C, p.software).backward),
    params: { R: p.R, C: p.C, residual: t.dres === undefined ? 0 : 1 },
    tensors: { ...t, dres: t.dres ?? t.dy },
  };
}

export function gainGrad(p: StagePlanning, partial: TensorRef, dgain: TensorRef): DispatchPlan {
  return columnSums(p, p.C, { partial, sums: dgain });
}

/** The second pass of sums over rows: partial [blocks, N] -> sums [N]. */
export function columnSums(
  p: StagePlanning,
  N: number,
  { partial, sums }: { partial: TensorRef; sums: TensorRef },
): DispatchPlan {
  const params = { blocks: gainBlocks(p), C: N };
  return { spec: rmsnormGainGradSpec, params, tensors: { partial, dgain: sums } };
}

/** Rotates q and k in place, by their position. */
export function rotate(p: StagePlanning, qkv: TensorRef): DispatchPlan {
  const { R, T, H, Hk, D } = p;
  const params = { R, T, H, Hk, D, direction: 1 };
  return { spec: keptKernel(p, rotaryKernel(D)), params, tensors: { angles: "angles", qkv } };
}

export function swiglu(p: StagePlanning, gateUp: TensorRef, out: TensorRef): DispatchPlan {
  const { R, I } = p;
  const spec = keptKernel(p, swigluKernels(I).forward);
  return { spec, params: { R, I }, tensors: { gate_up: gateUp, out } };
}

/** In place: `gateUp` becomes its gradient, and `act`, which holds the output's gradient, the output. */
export function swigluBackward(p: StagePlanning, gateUp: TensorRef, act: TensorRef): DispatchPlan {
  const { R, I } = p;
  const spec = keptKernel(p, swigluKernels(I).backward);
  return { spec, params: { R, I }, tensors: { gate_up: gateUp, act } };
}

/** The kept tensor x [R, N] += bias [N]. */
export function addBias(p: StagePlanning, N: number, t: { x: TensorRef; bias: TensorRef }): DispatchPlan {
  return { spec: keptKernel(p, biasKernels(N).add), params: { R: p.R, N }, tensors: t };
}

export function gelu(
  p: StagePlanning,
  tensors: { up: TensorRef; bias: TensorRef; out: TensorRef },
): DispatchPlan {
  const { R, I } = p;
  return { spec: keptKernel(p, geluKernels(I).forward), params: { R, I }, tensors };
}

/** In place: `up` becomes its gradient, and `act`, which holds the output's gradient, the output. */
export function geluBackward(
  p: StagePlanning,
  tensors: { bias: TensorRef; up: TensorRef; act: TensorRef },
): DispatchPlan {
  const { R, I } = p;
  return { spec: keptKernel(p, geluKernels(I).backward), params: { R, I }, tensors };
}

/** The [R, C] values in `from`, f32, become kept ones, times the loss scale for a gradient. Only for a stage in halves. */
export function narrow(
  p: StagePlanning,
  t: { from: TensorRef; to: TensorRef; gradient: boolean },
): DispatchPlan {
  const params = { count: p.R * p.C / LANES, factor: t.gradient ? ScaleFactor.up : ScaleFactor.none };
  return { spec: narrowSpec, params, tensors: { values: t.from, scales: "scales", halves: t.to } };
}

/** The kept [R, C] values in `from` in f32; of a gradient that leaves the stage sane ones, without the loss scale. */
export function widen(
  p: StagePlanning,
  t: { from: TensorRef; to: TensorRef; overflow: TensorRef; leaves?: boolean },
): DispatchPlan {
  const { leaves = false } = t;
  const factor = leaves ? ScaleFactor.down : ScaleFactor.none;
  const params = { count: p.R * p.C / LANES, factor, guard: leaves ? 1 : 0 };
  const tensors = { halves: t.from, scales: "scales", values: t.to, overflow: t.overflow };
  return { spec: widenSpec, params, tensors };
}

/** Takes the loss scale out of the whole weight gradient, whose tensors these are; nothing for a stage in f32. */
export function unscaleGradient(
  p: StagePlanning,
  gradients: readonly TensorRequest[],
  overflow: TensorRef,
): DispatchPlan[] {
  if (!inHalves(p)) return [];
  return gradients.map(({ name: gradient, bytes }, i) => ({
    spec: unscaleGradientSpec,
    params: { count: bytes / WORD_BYTES / LANES, factor: ScaleFactor.down, first: i === 0 ? 1 : 0 },
    tensors: { scales: "scales", overflow, gradient },
  }));
}
