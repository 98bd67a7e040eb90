// The dispatches of one matrix product, in one pass or in slices of K with a second one. Plans only; the engine and the
// autotune both use them, so what is measured is what runs.
import { sliceLength } from "../model/product_slices.ts";
import type { TensorRef } from "./arena.ts";
import type { KernelSpec } from "./kernel.ts";
import { MatmulEpilogue, sumSlicesSpec } from "./kernels/matmul.ts";
import type { MatmulShape } from "./kernels/matmul_family.ts";
import type { DispatchPlan } from "./program.ts";

export interface ProductTensors {
  a: TensorRef;
  b: TensorRef;
  out: TensorRef;
  /** Added to the product. */
  residual?: TensorRef;
  /** Adds to what `out` holds. */
  accumulate?: boolean;
  /** Scratch of slicedElements values; needed for more than one slice. */
  slices?: TensorRef;
}

/** One dispatch, or two if K is cut into `slices`. */
export function productDispatches(
  { spec, slices }: { spec: KernelSpec; slices: number },
  { M, N, K }: MatmulShape,
  tensors: ProductTensors,
): DispatchPlan[] {
  const { a, b, out, residual, slices: parts } = tensors;
  const epilogue = epilogueOf(tensors);
  if (slices === 1 || parts === undefined) {
    const params = { M, N, K, epilogue, sliceK: K };
    return [{ spec, params, tensors: { a, b, out, residual: residual ?? a } }];
  }
  const params = { M, N, K, epilogue: MatmulEpilogue.store, sliceK: sliceLength(K, slices) };
  const sum = { count: M * N, slices: spec.workgroups(params, spec.overrides)[2], epilogue };
  return [
    { spec, params, tensors: { a, b, out: parts, residual: a } },
    { spec: sumSlicesSpec, params: sum, tensors: { parts, residual: residual ?? parts, out } },
  ];
}

function epilogueOf({ residual, accumulate = false }: ProductTensors): number {
  if (residual !== undefined) return MatmulEpilogue.addResidual;
  return accumulate ? MatmulEpilogue.accumulate : MatmulEpilogue.store;
}
