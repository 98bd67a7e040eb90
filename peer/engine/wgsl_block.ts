// Dispatch plans of one transformer block: F, B and W, the twin of shaders/reference/block.ts.
// Norm outputs and the SwiGLU's output are recomputed in W rather than kept: they cost one pass, not a matmul.
import { attentionDeltaSpec, attentionKernels } from "../gpu/kernels/attention.ts";
import { swigluBackwardSpec } from "../gpu/kernels/swiglu.ts";
import type { TensorRef } from "../gpu/arena.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { layerWeights, qkvWidth, type SlotName, slotTensor, type StagePlanning } from "./wgsl_names.ts";
import { matmul, rmsnorm, rmsnormGrads, rotate, swiglu } from "./wgsl_ops.ts";

/** The block's kept tensors by name, in one slot. */
function names(slot: SlotName, layer: number): (name: string) => string {
  return (name) => slotTensor(slot, name, layer);
}

function attentionParams({ R, T, H, Hk, D }: StagePlanning): DispatchPlan["params"] {
  return { R, T, H, Hk, D };
}

/** x -> the next layer's x. */
export function blockForward(p: StagePlanning, slot: SlotName, layer: number): DispatchPlan[] {
  const { R, C, H, D, I } = p;
  const t = names(slot, layer);
  const w = layerWeights(p, "params", layer);
  const attention = attentionKernels(D, p.software);
  const [x, qkv, attended, middle] = [t("x"), t("qkv"), t("attended"), t("middle")];
  return [
    rmsnorm(p, { x, gain: w.attentionNorm, rstd: t("attention rstd"), y: "normed" }),
    matmul(p, "nt", { M: R, N: qkvWidth(p), K: C, a: "normed", b: w.qkv, out: qkv }),
    rotate(p, qkv, 1),
    {
      spec: attention.forward,
      params: attentionParams(p),
      overrides: attention.overrides,
      tensors: { qkv, out: attended, lse: t("lse") },
    },
    matmul(p, "nt", { M: R, N: C, K: H * D, a: attended, b: w.project, residual: x, out: middle }),
    rmsnorm(p, { x: middle, gain: w.mlpNorm, rstd: t("mlp rstd"), y: "normed" }),
    matmul(p, "nt", { M: R, N: 2 * I, K: C, a: "normed", b: w.gateUp, out: t("gate up") }),
    swiglu(p, t("gate up"), "act"),
    matmul(p, "nt", {
      M: R,
      N: C,
      K: I,
      a: "act",
      b: w.down,
      residual: middle,
      out: slotTensor(slot, "x", layer + 1),
    }),
  ];
}

/** The next layer's dx -> dx, keeping the gradients that W multiplies. */
export function blockBackward(p: StagePlanning, slot: number, layer: number): DispatchPlan[] {
  const { R, C, I } = p;
  const t = names(slot, layer);
  const w = layerWeights(p, "params", layer);
  const dout = slotTensor(slot, "dx", layer + 1);
  return [
    matmul(p, "nn", { M: R, N: I, K: C, a: dout, b: w.down, out: "act" }),
    {
      spec: swigluBackwardSpec,
      params: { R, I },
      tensors: { gate_up: t("gate up"), dout: "act", dgate_up: t("dgate up") },
    },
    matmul(p, "nn", { M: R, N: C, K: 2 * I, a: t("dgate up"), b: w.gateUp, out: "dnormed" }),
    ...rmsnormGrads(p, {
      ...{ dy: "dnormed", x: t("middle"), gain: w.mlpNorm, rstd: t("mlp rstd") },
      ...{ dres: dout, dx: t("dmiddle"), dgain: t("dmlp gain") },
    }),
    ...attentionBackward(p, t, w.project),
    matmul(p, "nn", { M: R, N: C, K: qkvWidth(p), a: t("dqkv"), b: w.qkv, out: "dnormed" }),
    ...rmsnormGrads(p, {
      ...{ dy: "dnormed", x: t("x"), gain: w.attentionNorm, rstd: t("attention rstd") },
      ...{ dres: t("dmiddle"), dx: t("dx"), dgain: t("dattention gain") },
    }),
  ];
}

/** dmiddle -> dqkv before rotary. */
function attentionBackward(
  p: StagePlanning,
  t: (name: string) => string,
  project: TensorRef,
): DispatchPlan[] {
  const { R, C, H, D } = p;
  const grads = { qkv: t("qkv"), dout: "dattended", lse: t("lse"), delta: "delta", dqkv: t("dqkv") };
  const params = attentionParams(p);
  const { queryGrad, keyValueGrad, overrides } = attentionKernels(D, p.software);
  return [
    matmul(p, "nn", { M: R, N: H * D, K: C, a: t("dmiddle"), b: project, out: "dattended" }),
    {
      spec: attentionDeltaSpec,
      params: { R, H, D },
      tensors: { dout: "dattended", out: t("attended"), delta: "delta" },
    },
    { spec: queryGrad, params, overrides, tensors: grads },
    { spec: keyValueGrad, params, overrides, tensors: grads },
    rotate(p, t("dqkv"), -1),
  ];
}

/** Gradients of the four weight matrices; the gains' were made in B and are copied (blockGainCopies). */
export function blockWeightGrad(p: StagePlanning, slot: number, layer: number): DispatchPlan[] {
  const { R, C, H, D, I } = p;
  const t = names(slot, layer);
  const w = layerWeights(p, "params", layer);
  const g = layerWeights(p, "gradient", layer);
  const dout = slotTensor(slot, "dx", layer + 1);
  return [
    swiglu(p, t("gate up"), "act"),
    matmul(p, "tn", { M: C, N: I, K: R, a: dout, b: "act", out: g.down }),
    rmsnorm(p, { x: t("middle"), gain: w.mlpNorm, rstd: t("mlp rstd"), y: "normed" }),
    matmul(p, "tn", { M: 2 * I, N: C, K: R, a: t("dgate up"), b: "normed", out: g.gateUp }),
    matmul(p, "tn", { M: C, N: H * D, K: R, a: t("dmiddle"), b: t("attended"), out: g.project }),
    rmsnorm(p, { x: t("x"), gain: w.attentionNorm, rstd: t("attention rstd"), y: "normed" }),
    matmul(p, "tn", { M: qkvWidth(p), N: C, K: R, a: t("dqkv"), b: "normed", out: g.qkv }),
  ];
}

export function blockGainCopies(
  p: StagePlanning,
  slot: number,
  layer: number,
): { from: string; to: TensorRef }[] {
  const g = layerWeights(p, "gradient", layer);
  const t = names(slot, layer);
  return [
    { from: t("dattention gain"), to: g.attentionNorm },
    { from: t("dmlp gain"), to: g.mlpNorm },
  ];
}
