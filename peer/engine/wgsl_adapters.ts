// Dispatch plans of W where only adapters are trained: four thin products for each group of matrices that has some, and nothing for
// what is frozen. The twin of shaders/reference/adapters.ts; what is stacked where is peer/model/lora_groups.ts.
import type { TensorRef, TensorRequest } from "../gpu/arena.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { blockTensor, qkvGradient } from "../model/block_tensors.ts";
import type { Adapted, AdapterGroup, AdapterStack } from "../model/lora_groups.ts";
import { names } from "./wgsl_attention.ts";
import type { StagePlanning } from "./wgsl_names.ts";
import { keptMatmul, weightMatmul } from "./wgsl_ops.ts";

const WORD_BYTES = 4;

/** One layer's A and B as stacked, or their gradients in the same places. */
export type AdapterSide = "adapters" | "adapter gradient";

export function adapterTensor(side: AdapterSide, layer: number): string {
  return `${side} ${layer}`;
}

/** One tensor a layer, so that each is bound by any adapter. */
export function adapterTensors(p: StagePlanning, side: AdapterSide): TensorRequest[] {
  const bytes = (p.adapters?.layerFloats ?? 0) * WORD_BYTES;
  return Array.from({ length: p.layers }, (_, layer) => ({ name: adapterTensor(side, layer), bytes }));
}

/** Gradients of all adapters of a layer. B has left the norms' outputs in `x` and `middle`. */
export function adapterGrads(p: StagePlanning, slot: number, layer: number): DispatchPlan[] {
  const stack = p.adapters!;
  return stack.groups.filter((group) => group.layer === layer).flatMap((group) => {
    const { kind, ranks, rows, cols } = group;
    const { dy, x } = factorsOf(p, slot, { kind, layer });
    const [weights, gradient] = [slices(stack, group, "adapters"), slices(stack, group, "adapter gradient")];
    const outer = "adapter outer", inner = "adapter inner";
    return [
      keptMatmul(p, "nt", { M: p.R, N: ranks, K: rows, a: dy, b: weights.b, out: outer }),
      keptMatmul(p, "nt", { M: p.R, N: ranks, K: cols, a: x, b: weights.a, out: inner }),
      ...weightMatmul(p, { M: ranks, N: cols, K: p.R, a: outer, b: x, out: gradient.a }),
      ...weightMatmul(p, { M: ranks, N: rows, K: p.R, a: inner, b: dy, out: gradient.b }),
    ];
  });
}

/** The gradient of a matrix' rows and what it multiplied, whose product W makes where the matrix is trained. */
function factorsOf(
  p: StagePlanning,
  slot: number,
  { kind, layer }: { kind: Adapted; layer: number },
): { dy: TensorRef; x: TensorRef } {
  const t = names(p, slot, layer);
  switch (kind) {
    case "qkv":
      return { dy: qkvGradient(p, slot, layer), x: t("x") };
    case "project":
      return { dy: t("dmiddle"), x: t("attended") };
    case "gateUp":
      return { dy: t("gate up"), x: t("middle") };
    case "down":
      return { dy: blockTensor(p, slot)("dx", layer + 1), x: t("act") };
  }
}

function slices({ layerFloats }: AdapterStack, group: AdapterGroup, side: AdapterSide) {
  const { layer, ranks, rows, cols, aAt, bAt } = group;
  const of = (at: number, floats: number): TensorRef => ({
    tensor: adapterTensor(side, layer),
    offset: (at - layer * layerFloats) * WORD_BYTES,
    bytes: floats * WORD_BYTES,
  });
  return { a: of(aAt, ranks * cols), b: of(bAt, ranks * rows) };
}
