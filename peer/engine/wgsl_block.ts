// Dispatch plans of one transformer block: F, B and W, the twin of shaders/reference/block.ts. What F does not keep B makes
// again, by the same dispatches and so with the same bits. B leaves the factors of W's products in place of what it used up.
import { attentionKernels } from "../gpu/kernels/attention.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { blockTensor, qkvGradient, recomputeOf } from "../model/block_tensors.ts";
import { inHalves } from "../model/stage_tensors.ts";
import { attentionBackward, attentionParams, names } from "./wgsl_attention.ts";
import { layerWeights, qkvWidth, type SlotName, type StagePlanning } from "./wgsl_names.ts";
import { gatedGradient, gatedProduct, rotatedHeads } from "./wgsl_fused.ts";
import {
  gainGrad,
  inwardMatmul,
  keptKernel,
  keptMatmul,
  rmsnorm,
  rmsnormBackward,
  weightMatmul,
} from "./wgsl_ops.ts";

/** x -> the next layer's x. */
export function blockForward(p: StagePlanning, slot: SlotName, layer: number): DispatchPlan[] {
  const { R, C, I } = p;
  const t = names(p, slot, layer);
  const { down } = layerWeights(p, "params", layer);
  const out = blockTensor(p, slot)("x", layer + 1);
  return [
    ...attend(p, slot, layer),
    ...gate(p, slot, layer),
    keptMatmul(p, "nt", { M: R, N: C, K: I, a: t("act"), b: down, residual: t("middle"), out }),
  ];
}

/** x -> qkv, attended and lse. */
function attend(p: StagePlanning, slot: SlotName, layer: number): DispatchPlan[] {
  const { D } = p;
  const t = names(p, slot, layer);
  const w = layerWeights(p, "params", layer);
  const { forward: spec, overrides } = attentionKernels(D, p.software, inHalves(p));
  const tensors = { qkv: t("qkv"), out: t("attended"), lse: t("lse") };
  return [
    rmsnorm(p, { x: t("x"), gain: w.attentionNorm, rstd: t("attention rstd"), y: "normed" }),
    ...rotatedHeads(p, { x: "normed", weights: w.qkv, out: t("qkv") }),
    { spec: keptKernel(p, spec), params: attentionParams(p), overrides, tensors },
  ];
}

/** x and attended -> middle, gate up and act. */
function gate(p: StagePlanning, slot: SlotName, layer: number): DispatchPlan[] {
  const { R, C, H, D } = p;
  const t = names(p, slot, layer);
  const w = layerWeights(p, "params", layer);
  return [
    keptMatmul(p, "nt", {
      ...{ M: R, N: C, K: H * D, a: t("attended"), b: w.project },
      ...{ residual: t("x"), out: t("middle") },
    }),
    rmsnorm(p, { x: t("middle"), gain: w.mlpNorm, rstd: t("mlp rstd"), y: "normed" }),
    ...gatedProduct(p, { x: "normed", weights: w.gateUp, gateUp: t("gate up"), act: t("act") }),
  ];
}

/** What B reads and F has not kept. */
export function blockAgain(p: StagePlanning, slot: number, layer: number): DispatchPlan[] {
  const recompute = recomputeOf(p.build);
  if (recompute === "none") return [];
  return [...attend(p, slot, layer), ...(recompute === "block" ? gate(p, slot, layer) : [])];
}

/** The next layer's dx -> dx, keeping the gradients that W multiplies. */
export function blockBackward(p: StagePlanning, slot: number, layer: number): DispatchPlan[] {
  const { R, C, I } = p;
  const t = names(p, slot, layer);
  const w = layerWeights(p, "params", layer);
  const dout = blockTensor(p, slot)("dx", layer + 1);
  return [
    ...gatedGradient(p, { dout, weights: w.down, gateUp: t("gate up"), act: t("act") }),
    inwardMatmul(p, { M: R, N: C, K: 2 * I, a: t("gate up"), b: w.gateUp, out: "dnormed" }),
    rmsnormBackward(p, {
      ...{ dy: "dnormed", x: t("middle"), gain: w.mlpNorm, rstd: t("mlp rstd") },
      ...{ dres: dout, dx: t("dmiddle"), partial: t("mlp partial") },
    }),
    ...attentionBackward(p, { slot, layer, project: w.project }),
    inwardMatmul(p, {
      ...{ M: R, N: C, K: qkvWidth(p), b: w.qkv },
      ...{ a: qkvGradient(p, slot, layer), out: "dnormed" },
    }),
    rmsnormBackward(p, {
      ...{ dy: "dnormed", x: t("x"), gain: w.attentionNorm, rstd: t("attention rstd") },
      ...{ dres: t("dmiddle"), dx: t("dx"), partial: t("attention partial") },
    }),
  ];
}

/** Gradients of the four weight matrices and two gains. B has left the norms' outputs in `x` and `middle`. */
export function blockWeightGrad(p: StagePlanning, slot: number, layer: number): DispatchPlan[] {
  const { R, C, H, D, I } = p;
  const t = names(p, slot, layer);
  const g = layerWeights(p, "gradient", layer);
  const dout = blockTensor(p, slot)("dx", layer + 1);
  const dqkv = qkvGradient(p, slot, layer);
  return [
    ...weightMatmul(p, { M: C, N: I, K: R, a: dout, b: t("act"), out: g.down }),
    ...weightMatmul(p, { M: 2 * I, N: C, K: R, a: t("gate up"), b: t("middle"), out: g.gateUp }),
    ...weightMatmul(p, { M: C, N: H * D, K: R, a: t("dmiddle"), b: t("attended"), out: g.project }),
    ...weightMatmul(p, { M: qkvWidth(p), N: C, K: R, a: dqkv, b: t("x"), out: g.qkv }),
    gainGrad(p, t("attention partial"), g.attentionNorm),
    gainGrad(p, t("mlp partial"), g.mlpNorm),
  ];
}
