// What the blocks of both architectures share: their tensors by name, and the dispatches of attention's backward. No weights of its
// own; what must stay true is the order, since B leaves the factors of W's products behind.
import type { TensorRef } from "../gpu/arena.ts";
import { attentionKernels } from "../gpu/kernels/attention.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { type BlockTensor, blockTensor, qkvGradient } from "../model/block_tensors.ts";
import { inHalves } from "../model/stage_tensors.ts";
import type { SlotName, StagePlanning } from "./wgsl_names.ts";
import { inwardMatmul, keptKernel } from "./wgsl_ops.ts";

/** The block's tensors by name. */
export function names(p: StagePlanning, slot: SlotName, layer: number): (name: BlockTensor) => string {
  const tensor = blockTensor(p, slot);
  return (name) => tensor(name, layer);
}

export function attentionParams({ R, T, H, Hk, D }: StagePlanning): DispatchPlan["params"] {
  return { R, T, H, Hk, D };
}

/** dmiddle -> the gradient of qkv before rotation; attended's own is in `dnormed`. */
export function attentionBackward(
  p: StagePlanning,
  { slot, layer, project }: { slot: number; layer: number; project: TensorRef },
): DispatchPlan[] {
  const { R, C, H, D } = p;
  const t = names(p, slot, layer);
  const { queryGrad, keyValueGrad, overrides } = attentionKernels(D, p.software, inHalves(p));
  const params = attentionParams(p);
  const tensors = {
    ...{ qkv: t("qkv"), out: t("attended"), dout: "dnormed", lse: t("lse"), angles: "angles" },
    ...{ delta: "delta", dqkv: qkvGradient(p, slot, layer) },
  };
  return [
    inwardMatmul(p, { M: R, N: H * D, K: C, a: t("dmiddle"), b: project, out: "dnormed" }),
    { spec: keptKernel(p, queryGrad), params, overrides, tensors },
    { spec: keptKernel(p, keyValueGrad), params, overrides, tensors },
  ];
}
