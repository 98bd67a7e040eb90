// Shapes of a stage and the names and sizes of its GPU tensors; the operations' plans refer to these names.
// Not an allocation (peer/gpu/arena.ts). Legend: R = B T rows, C = n_embd, H / Hk heads of width D, I = n_inner.
import {
  EMBEDDING_NAME,
  findTensor,
  HEAD_NAME,
  headDim,
  type StageLayout,
  stageLayout,
} from "../model/layout.ts";
import type { TensorRequest, TensorSlice } from "../gpu/arena.ts";
import { assert } from "../wire/errors.ts";
import type { StageBuild } from "./engine.ts";

/** Vocabulary entries whose logits exist at one time; a multiple of 64 keeps slices of the head aligned. */
export const HEAD_TILE = 512;
const FLOAT_BYTES = 4;

/** Everything that the plans of one stage need to know. */
export interface StagePlanning {
  build: StageBuild;
  layout: StageLayout;
  R: number;
  T: number;
  C: number;
  H: number;
  Hk: number;
  D: number;
  I: number;
  V: number;
  eps: number;
  layers: number;
  /** Compute on a CPU: kernels avoid what such adapters compile slowly. */
  software: boolean;
  /** Matrix products in the largest tiles (wideTiles in peer/gpu/kernels/matmul.ts). */
  wideTiles: boolean;
}

/** What a plan depends on besides the stage: which kernels suit the adapter. */
export interface AdapterTraits {
  software: boolean;
  /** Default false. */
  wideTiles?: boolean;
}

export function planningOf(build: StageBuild, { software, wideTiles = false }: AdapterTraits): StagePlanning {
  const { spec, stage, batchSize } = build;
  return {
    build,
    layout: stageLayout(spec, stage),
    R: batchSize * spec.block_size,
    T: spec.block_size,
    C: spec.n_embd,
    H: spec.n_head,
    Hk: spec.n_kv_head,
    D: headDim(spec),
    I: spec.n_inner,
    V: spec.vocab_size,
    eps: spec.norm_eps,
    layers: stage.endLayer - stage.firstLayer,
    software,
    wideTiles,
  };
}

/** Width of a packed qkv row. */
export function qkvWidth({ H, Hk, D }: StagePlanning): number {
  return (H + 2 * Hk) * D;
}

/** Where a micro-batch's tensors live: an activation slot, or the scratch slot of evaluations. */
export type SlotName = number | "eval";

/** The evaluation slot keeps nothing, so all its layers share one set of tensors. */
export function slotTensor(slot: SlotName, name: string, layer?: number): string {
  if (slot === "eval") return `eval/${name}`;
  return layer === undefined ? `slot ${slot}/${name}` : `slot ${slot}/${name} ${layer}`;
}

/** Contiguous parameters `first`..`last` inside the tensor `of`, as one matrix. */
export function weightSlice(
  p: StagePlanning,
  of: "params" | "gradient",
  names: { first: string; last?: string },
): TensorSlice {
  const from = findTensor(p.layout, names.first);
  const to = findTensor(p.layout, names.last ?? names.first);
  assert(from && to, `the layout has ${names.first} to ${names.last}`);
  return {
    tensor: of,
    offset: from.offset * FLOAT_BYTES,
    bytes: (to.offset + to.size - from.offset) * FLOAT_BYTES,
  };
}

/** Gain and matrices of one layer, as slices of the parameters or of their gradient. */
export function layerWeights(p: StagePlanning, of: "params" | "gradient", layer: number) {
  const prefix = `model.layers.${p.build.stage.firstLayer + layer}`;
  const slice = (first: string, last = first) =>
    weightSlice(p, of, { first: `${prefix}.${first}.weight`, last: `${prefix}.${last}.weight` });
  return {
    attentionNorm: slice("input_layernorm"),
    qkv: slice("self_attn.q_proj", "self_attn.v_proj"),
    project: slice("self_attn.o_proj"),
    mlpNorm: slice("post_attention_layernorm"),
    gateUp: slice("mlp.gate_proj", "mlp.up_proj"),
    down: slice("mlp.down_proj"),
  };
}

export function headName(p: StagePlanning): string {
  return p.build.spec.tie_word_embeddings ? EMBEDDING_NAME : HEAD_NAME;
}

/** Rows [from, from + count) of the [V, C] head or embedding. */
export function vocabularyRows(
  p: StagePlanning,
  whole: TensorSlice,
  rows: { from: number; count: number },
): TensorSlice {
  return {
    tensor: whole.tensor,
    offset: whole.offset + rows.from * p.C * FLOAT_BYTES,
    bytes: rows.count * p.C * FLOAT_BYTES,
  };
}

function request(name: string, elements: number): TensorRequest {
  return { name, bytes: elements * FLOAT_BYTES };
}

/** What F leaves for B and W. With `kept` 1 the layers share tensors (evaluation). */
function forwardTensors(p: StagePlanning, slot: SlotName): TensorRequest[] {
  const { R, C, H, D, I } = p;
  const kept = slot === "eval" ? 1 : p.layers;
  const requests: TensorRequest[] = [];
  for (let layer = 0; layer < kept; layer++) {
    const add = (name: string, elements: number) =>
      requests.push(request(slotTensor(slot, name, layer), elements));
    add("x", R * C);
    add("attention rstd", R);
    add("qkv", R * qkvWidth(p));
    add("attended", R * H * D);
    add("lse", R * H);
    add("middle", R * C);
    add("mlp rstd", R);
    add("gate up", R * 2 * I);
  }
  if (slot !== "eval") requests.push(request(slotTensor(slot, "x", p.layers), R * C));
  if (p.build.stage.embed) requests.push(request(slotTensor(slot, "tokens"), R));
  if (!p.build.stage.head) return requests;
  requests.push(request(slotTensor(slot, "targets"), R));
  requests.push(request(slotTensor(slot, "final rstd"), R), request(slotTensor(slot, "head lse"), R));
  return requests;
}

/** What B leaves for W. */
function backwardTensors(p: StagePlanning, slot: number): TensorRequest[] {
  const { R, C, I } = p;
  const requests: TensorRequest[] = [];
  for (let layer = 0; layer < p.layers; layer++) {
    const add = (name: string, elements: number) =>
      requests.push(request(slotTensor(slot, name, layer), elements));
    add("dx", R * C);
    add("dqkv", R * qkvWidth(p));
    add("dmiddle", R * C);
    add("dgate up", R * 2 * I);
    add("dattention gain", C);
    add("dmlp gain", C);
  }
  requests.push(request(slotTensor(slot, "dx", p.layers), R * C));
  if (p.build.stage.head) requests.push(request(slotTensor(slot, "dfinal gain"), C));
  return requests;
}

function scratchTensors(p: StagePlanning): TensorRequest[] {
  const { R, C, H, D, I, V, T } = p;
  const requests = [
    request("gradient", p.layout.size),
    request("angles", T * D),
    request("normed", R * C),
    request("dnormed", R * C),
    request("act", R * I),
    request("dattended", R * H * D),
    request("delta", R * H),
  ];
  if (!p.build.stage.head) return requests;
  return [
    ...requests,
    request("losses", R),
    request("loss", 1),
    request("dlogits", R * Math.min(V, HEAD_TILE)),
  ];
}

/** All tensors by what they are for, except the boundary's (wgsl_codec.ts). */
export function stageTensors(
  p: StagePlanning,
): { params: TensorRequest[]; activations: TensorRequest[]; scratch: TensorRequest[] } {
  const activations: TensorRequest[] = [];
  for (let slot = 0; slot < p.build.slots; slot++) {
    activations.push(...forwardTensors(p, slot), ...backwardTensors(p, slot));
  }
  return {
    params: [request("params", p.layout.size)],
    activations,
    scratch: [...scratchTensors(p), ...forwardTensors(p, "eval")],
  };
}
