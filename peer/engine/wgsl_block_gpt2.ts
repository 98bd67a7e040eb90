// Dispatch plans of one GPT-2 block: F, B and W, the twin of shaders/reference/block_gpt2.ts. The order, the tensors and what is
// made again are those of Llama's block (wgsl_block.ts); the products add the biases, and do GELU with its own.
import { attentionKernels } from "../gpu/kernels/attention.ts";
import { biasKernels } from "../gpu/kernels/bias.ts";
import type { TensorRef } from "../gpu/arena.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { blockTensor, qkvGradient, recomputeOf } from "../model/block_tensors.ts";
import { inHalves } from "../model/stage_tensors.ts";
import { attentionBackward, attentionParams, names } from "./wgsl_attention.ts";
import { qkvWidth, type SlotName, type StagePlanning, weightSlice } from "./wgsl_names.ts";
import { norm, normBackward, normGrad } from "./wgsl_norm.ts";
import { biasedProduct, geluGradient, geluProduct } from "./wgsl_fused.ts";
import { columnSums, inwardMatmul, keptKernel, weightMatmul } from "./wgsl_ops.ts";
import type { ParamSide } from "./wgsl_params.ts";

/** Norms as [2, C] (gain, bias), matrices and their biases of one layer, as slices of the parameters or of their gradient. */
function layerWeights(p: StagePlanning, of: ParamSide, layer: number) {
  const prefix = `model.layers.${p.build.stage.firstLayer + layer}`;
  const slice = (first: string, last = first) =>
    weightSlice(p, of, { first: `${prefix}.${first}`, last: `${prefix}.${last}` });
  const norm = (name: string) => slice(`${name}.weight`, `${name}.bias`);
  const heads = (kind: string) => slice(`self_attn.q_proj.${kind}`, `self_attn.v_proj.${kind}`);
  return {
    attentionNorm: norm("input_layernorm"),
    ...{ qkv: heads("weight"), qkvBias: heads("bias") },
    ...{ project: slice("self_attn.o_proj.weight"), projectBias: slice("self_attn.o_proj.bias") },
    mlpNorm: norm("post_attention_layernorm"),
    ...{ up: slice("mlp.up_proj.weight"), upBias: slice("mlp.up_proj.bias") },
    ...{ down: slice("mlp.down_proj.weight"), downBias: slice("mlp.down_proj.bias") },
  };
}

/** The gradient of a bias from that of the rows, a kept tensor [R, N]. */
function biasGrad(
  p: StagePlanning,
  N: number,
  { dy, gradient }: { dy: TensorRef; gradient: TensorRef },
): DispatchPlan[] {
  const partial = "bias partial";
  return [
    { spec: keptKernel(p, biasKernels(N).partial), params: { R: p.R, N }, tensors: { dy, partial } },
    columnSums(p, N, { partial, sums: gradient }),
  ];
}

/** x -> the next layer's x. */
export function blockForward(p: StagePlanning, slot: SlotName, layer: number): DispatchPlan[] {
  const { R, C, I } = p;
  const t = names(p, slot, layer);
  const { down, downBias } = layerWeights(p, "params", layer);
  return [
    ...attend(p, slot, layer),
    ...widen(p, slot, layer),
    ...biasedProduct(p, { M: R, N: C, K: I }, {
      ...{ x: t("act"), weights: down, bias: downBias, residual: t("middle") },
      out: blockTensor(p, slot)("x", layer + 1),
    }),
  ];
}

/** x -> qkv, attended and lse. */
function attend(p: StagePlanning, slot: SlotName, layer: number): DispatchPlan[] {
  const { R, C, D } = p;
  const t = names(p, slot, layer);
  const w = layerWeights(p, "params", layer);
  const { forward: spec, overrides } = attentionKernels(D, p.software, inHalves(p));
  const tensors = { qkv: t("qkv"), out: t("attended"), lse: t("lse") };
  return [
    norm(p, { x: t("x"), gain: w.attentionNorm, rstd: t("attention rstd"), y: "normed" }),
    ...biasedProduct(p, { M: R, N: qkvWidth(p), K: C }, {
      ...{ x: "normed", weights: w.qkv, bias: w.qkvBias, out: t("qkv") },
    }),
    { spec: keptKernel(p, spec), params: attentionParams(p), overrides, tensors },
  ];
}

/** x and attended -> middle, the inner layer without its bias, and act. */
function widen(p: StagePlanning, slot: SlotName, layer: number): DispatchPlan[] {
  const { R, C, H, D } = p;
  const t = names(p, slot, layer);
  const w = layerWeights(p, "params", layer);
  return [
    ...biasedProduct(p, { M: R, N: C, K: H * D }, {
      ...{ x: t("attended"), weights: w.project, bias: w.projectBias },
      ...{ residual: t("x"), out: t("middle") },
    }),
    norm(p, { x: t("middle"), gain: w.mlpNorm, rstd: t("mlp rstd"), y: "normed" }),
    ...geluProduct(p, { x: "normed", weights: w.up, bias: w.upBias, up: t("gate up"), act: t("act") }),
  ];
}

/** What B reads and F has not kept. */
export function blockAgain(p: StagePlanning, slot: number, layer: number): DispatchPlan[] {
  const recompute = recomputeOf(p.build);
  if (recompute === "none") return [];
  return [...attend(p, slot, layer), ...(recompute === "block" ? widen(p, slot, layer) : [])];
}

/** The next layer's dx -> dx, keeping the gradients that W multiplies and adds up. */
export function blockBackward(p: StagePlanning, slot: number, layer: number): DispatchPlan[] {
  const { R, C, I } = p;
  const t = names(p, slot, layer);
  const w = layerWeights(p, "params", layer);
  const dout = blockTensor(p, slot)("dx", layer + 1);
  return [
    ...geluGradient(p, { dout, weights: w.down, bias: w.upBias, up: t("gate up"), act: t("act") }),
    inwardMatmul(p, { M: R, N: C, K: I, a: t("gate up"), b: w.up, out: "dnormed" }),
    normBackward(p, {
      ...{ dy: "dnormed", x: t("middle"), gain: w.mlpNorm, rstd: t("mlp rstd") },
      ...{ dres: dout, dx: t("dmiddle"), partial: t("mlp partial") },
    }),
    // The table of angles turns nothing (wgsl.ts).
    ...attentionBackward(p, { slot, layer, project: w.project }),
    inwardMatmul(p, {
      ...{ M: R, N: C, K: qkvWidth(p), b: w.qkv },
      ...{ a: qkvGradient(p, slot, layer), out: "dnormed" },
    }),
    normBackward(p, {
      ...{ dy: "dnormed", x: t("x"), gain: w.attentionNorm, rstd: t("attention rstd") },
      ...{ dres: t("dmiddle"), dx: t("dx"), partial: t("attention partial") },
    }),
  ];
}

/** Gradients of four matrices with their biases and of two norms. B has left the norms' outputs in `x` and `middle`. */
export function blockWeightGrad(p: StagePlanning, slot: number, layer: number): DispatchPlan[] {
  const { R, C, H, D, I } = p;
  const t = names(p, slot, layer);
  const g = layerWeights(p, "gradient", layer);
  const dout = blockTensor(p, slot)("dx", layer + 1);
  const dqkv = qkvGradient(p, slot, layer);
  return [
    ...weightMatmul(p, { M: C, N: I, K: R, a: dout, b: t("act"), out: g.down }),
    ...biasGrad(p, C, { dy: dout, gradient: g.downBias }),
    ...weightMatmul(p, { M: I, N: C, K: R, a: t("gate up"), b: t("middle"), out: g.up }),
    ...biasGrad(p, I, { dy: t("gate up"), gradient: g.upBias }),
    ...weightMatmul(p, { M: C, N: H * D, K: R, a: t("dmiddle"), b: t("attended"), out: g.project }),
    ...biasGrad(p, C, { dy: t("dmiddle"), gradient: g.projectBias }),
    ...weightMatmul(p, { M: qkvWidth(p), N: C, K: R, a: dqkv, b: t("x"), out: g.qkv }),
    ...biasGrad(p, qkvWidth(p), { dy: dqkv, gradient: g.qkvBias }),
    normGrad(p, t("attention partial"), g.attentionNorm),
    normGrad(p, t("mlp partial"), g.mlpNorm),
  ];
}
