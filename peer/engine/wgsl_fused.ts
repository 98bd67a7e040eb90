// Dispatch plans of products with what follows them: one dispatch where a kernel of the family does both, else two. Which it
// is follows from shapes and the adapter's choice alone, so a stage that makes something again makes the same bits.
import type { TensorRef } from "../gpu/arena.ts";
import { pickFused } from "../gpu/kernels/matmul.ts";
import type { MatmulFusion } from "../gpu/kernels/matmul_fused.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { inHalves } from "../model/stage_tensors.ts";
import { qkvWidth, type StagePlanning } from "./wgsl_names.ts";
import { addBias, gelu, geluBackward, keptMatmul, rotate, swiglu, swigluBackward } from "./wgsl_ops.ts";

/** Heads whose halves are pairs of columns; others are rotated by a kernel of their own. */
const ROTARY_UNIT = 4;

interface Fused {
  params: Readonly<Record<string, number>>;
  tensors: Readonly<Record<string, TensorRef>>;
}

/** The product with its end in one dispatch; undefined where no kernel does that, or it is not to be used here. */
function fused(
  p: StagePlanning,
  fusion: MatmulFusion,
  { params, tensors }: Fused,
): DispatchPlan[] | undefined {
  const { M = 0, N = 0, K = 0 } = params;
  const spec = pickFused(fusion, { M, N, K, storage: inHalves(p) ? "halves" : "floats" }, p.matmul);
  return spec && [{ spec, params, tensors }];
}

/** x [R, C] · qkvᵀ -> out [R, (H + 2 Hk) D], queries and keys rotated by their position. */
export function rotatedHeads(
  p: StagePlanning,
  t: { x: TensorRef; weights: TensorRef; out: TensorRef },
): DispatchPlan[] {
  const { R, T, C, H, Hk, D } = p;
  const shape = { M: R, N: qkvWidth(p), K: C };
  const one = D % ROTARY_UNIT === 0
    ? fused(p, "rotary", {
      params: { ...shape, T, D, turned: (H + Hk) * D },
      tensors: { a: t.x, b: t.weights, angles: "angles", out: t.out },
    })
    : undefined;
  return one ?? [keptMatmul(p, "nt", { ...shape, a: t.x, b: t.weights, out: t.out }), rotate(p, t.out)];
}

/** x [R, C] · gateUpᵀ -> gateUp [R, 2 I], which B needs, and act [R, I]. */
export function gatedProduct(
  p: StagePlanning,
  t: { x: TensorRef; weights: TensorRef; gateUp: TensorRef; act: TensorRef },
): DispatchPlan[] {
  const shape = { M: p.R, N: 2 * p.I, K: p.C };
  return fused(p, "swiglu", {
    ...{ params: shape, tensors: { a: t.x, b: t.weights, gate_up: t.gateUp, act: t.act } },
  }) ?? [
    keptMatmul(p, "nt", { ...shape, a: t.x, b: t.weights, out: t.gateUp }),
    swiglu(p, t.gateUp, t.act),
  ];
}

/** dout [R, C] · down -> the gradient of gateUp in its place, and in act what F had there. */
export function gatedGradient(
  p: StagePlanning,
  t: { dout: TensorRef; weights: TensorRef; gateUp: TensorRef; act: TensorRef },
): DispatchPlan[] {
  const shape = { M: p.R, N: p.I, K: p.C };
  return fused(p, "swiglu_backward", {
    ...{ params: shape, tensors: { a: t.dout, b: t.weights, gate_up: t.gateUp, act: t.act } },
  }) ?? [
    keptMatmul(p, "nn", { ...shape, a: t.dout, b: t.weights, out: t.act }),
    swigluBackward(p, t.gateUp, t.act),
  ];
}

/** x [M, K] · weightsᵀ + bias -> out [M, N], with the residual added where there is one. */
export function biasedProduct(
  p: StagePlanning,
  shape: { M: number; N: number; K: number },
  t: { x: TensorRef; weights: TensorRef; bias: TensorRef; residual?: TensorRef; out: TensorRef },
): DispatchPlan[] {
  const { x: a, weights: b, bias, out } = t;
  return fused(p, "bias", {
    params: { ...shape, residual: t.residual === undefined ? 0 : 1 },
    tensors: { a, b, bias, residual: t.residual ?? a, out },
  }) ?? [
    keptMatmul(p, "nt", { ...shape, a, b, ...(t.residual && { residual: t.residual }), out }),
    addBias(p, shape.N, { x: out, bias }),
  ];
}

/** x [R, C] · upᵀ -> up [R, I] without its bias, which B needs, and act [R, I] = gelu(up + bias). */
export function geluProduct(
  p: StagePlanning,
  t: { x: TensorRef; weights: TensorRef; bias: TensorRef; up: TensorRef; act: TensorRef },
): DispatchPlan[] {
  const shape = { M: p.R, N: p.I, K: p.C };
  const { x: a, weights: b, bias, up, act } = t;
  return fused(p, "gelu", { params: shape, tensors: { a, b, bias, up, act } }) ?? [
    keptMatmul(p, "nt", { ...shape, a, b, out: up }),
    gelu(p, { up, bias, out: act }),
  ];
}

/** dout [R, C] · down -> the gradient of up in its place, and in act what F had there. */
export function geluGradient(
  p: StagePlanning,
  t: { dout: TensorRef; weights: TensorRef; bias: TensorRef; up: TensorRef; act: TensorRef },
): DispatchPlan[] {
  const shape = { M: p.R, N: p.I, K: p.C };
  const { dout: a, weights: b, bias, up, act } = t;
  return fused(p, "gelu_backward", { params: shape, tensors: { a, b, bias, up, act } }) ?? [
    keptMatmul(p, "nn", { ...shape, a, b, out: act }),
    geluBackward(p, { bias, up, act }),
  ];
}
