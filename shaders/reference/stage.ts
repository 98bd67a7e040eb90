// Double-precision twin of a whole stage: embedding, blocks, final norm and head, with F, B and W apart.
// It knows neither slots nor codecs (peer/engine/cpu.ts does). B must follow F, and W must follow B, on one `saved`.
import {
  EMBEDDING_NAME,
  FINAL_BIAS_NAME,
  FINAL_NORM_NAME,
  findTensor,
  HEAD_NAME,
  headDim,
  isGpt2,
  POSITIONS_NAME,
  stageLayout,
} from "../../peer/model/layout.ts";
import { assert } from "../../peer/wire/errors.ts";
import type { ModelSpec, StageSpec } from "../../peer/wire/run.ts";
import { positionsForward, positionsWeightGrad } from "./bias.ts";
import * as llamaBlock from "./block.ts";
import * as gpt2Block from "./block_gpt2.ts";
import type { BlockParams, BlockPending, BlockSaved, BlockShape, FloatArray } from "./block.ts";
import { embeddingForward, embeddingWeightGrad } from "./embedding.ts";
import { headForward, headInputGrad, headLogitGrad, headWeightGrad, mean } from "./head.ts";
import { normForward, normInputGrad, normWeightGrad } from "./norm.ts";
import type { NormSaved } from "./norm.ts";

/** B sequences of T tokens make R = B T rows; V is the vocabulary. */
export interface StageShape extends BlockShape {
  V: number;
  embed: boolean;
  head: boolean;
  /** Whose blocks and embedding these are; absent = Llama's. */
  gpt2?: boolean;
  /**
   * Rounds activations and their gradients to f32 between layers, as if a stage ended there; then every cut of a model
   * into stages gives the same bits. Absent = false: full double precision, which finite differences need.
   */
  roundLayers?: boolean;
}

/** Views of one flat array in layout order: weights, or gradients of the same shapes. */
export interface StageParams<A extends FloatArray = Float64Array> {
  /** [V, C], and of GPT-2 the learned positions [T, C]; first stage only. */
  embedding?: A;
  positions?: A;
  blocks: BlockParams<A>[];
  /** Final norm [C], of GPT-2 its bias [C], and head [V, C], last stage only. Tied in a single stage, `head` is the same view as `embedding`. */
  norm?: A;
  normBias?: A;
  head?: A;
}

/** The first stage reads `tokens` [R], the others `activation` [R, C]; the last one reads `targets` [R]. */
export interface StageReferenceInput {
  tokens?: Uint32Array;
  activation?: Float64Array;
  targets?: Uint32Array;
}

/** Of the final norm, and the head behind it. */
interface HeadSaved extends NormSaved {
  /** The norm's output, [R, C]. */
  normed: Float64Array;
  /** [R, V] and [R]. */
  logits: Float64Array;
  lse: Float64Array;
  targets: Uint32Array;
}

/** What B and W need of the forward. */
export interface StageSaved {
  tokens?: Uint32Array;
  blocks: BlockSaved[];
  head?: HeadSaved;
}

/** What W needs of B. */
export interface StagePending {
  blocks: BlockPending[];
  /** Gradient of the embedding's output, [R, C]. */
  dEmbedded?: Float64Array;
  /** Gradients of the logits [R, V] and of the final norm's output [R, C]. */
  head?: { dLogits: Float64Array; dNormed: Float64Array };
}

export function stageShape(spec: ModelSpec, stage: StageSpec, batchSize: number): StageShape {
  return {
    B: batchSize,
    T: spec.block_size,
    C: spec.n_embd,
    H: spec.n_head,
    Hk: spec.n_kv_head,
    D: headDim(spec),
    I: spec.n_inner,
    V: spec.vocab_size,
    theta: spec.rope_theta,
    eps: spec.norm_eps,
    embed: stage.embed,
    head: stage.head,
    gpt2: isGpt2(spec),
  };
}

/** Views into `flat`, which holds the stage's parameters (or gradients) in the order of peer/model/layout.ts. */
export function viewParams<A extends FloatArray>(spec: ModelSpec, stage: StageSpec, flat: A): StageParams<A> {
  const layout = stageLayout(spec, stage);
  assert(flat.length === layout.size, `parameters of ${flat.length} floats, the layout has ${layout.size}`);
  function view(first: string, last = first): A {
    const from = findTensor(layout, first), to = findTensor(layout, last);
    assert(from && to, `the layout has no ${first} or no ${last}`);
    return flat.subarray(from.offset, to.offset + to.size) as A;
  }
  const params: StageParams<A> = { blocks: [] };
  for (let layer = stage.firstLayer; layer < stage.endLayer; layer++) {
    const block = isGpt2(spec) ? viewGpt2Block : viewBlock;
    params.blocks.push(block(`model.layers.${layer}`, view));
  }
  if (stage.embed) params.embedding = view(EMBEDDING_NAME);
  if (stage.embed && isGpt2(spec)) params.positions = view(POSITIONS_NAME);
  if (stage.head) {
    params.norm = view(FINAL_NORM_NAME);
    if (isGpt2(spec)) params.normBias = view(FINAL_BIAS_NAME);
    params.head = view(spec.tie_word_embeddings ? EMBEDDING_NAME : HEAD_NAME);
  }
  return params;
}

function viewBlock<A extends FloatArray>(
  prefix: string,
  view: (first: string, last?: string) => A,
): BlockParams<A> {
  return {
    attentionNorm: view(`${prefix}.input_layernorm.weight`),
    qkv: view(`${prefix}.self_attn.q_proj.weight`, `${prefix}.self_attn.v_proj.weight`),
    project: view(`${prefix}.self_attn.o_proj.weight`),
    mlpNorm: view(`${prefix}.post_attention_layernorm.weight`),
    gateUp: view(`${prefix}.mlp.gate_proj.weight`, `${prefix}.mlp.up_proj.weight`),
    down: view(`${prefix}.mlp.down_proj.weight`),
  };
}

function viewGpt2Block<A extends FloatArray>(
  prefix: string,
  view: (first: string, last?: string) => A,
): BlockParams<A> {
  const of = (kind: "weight" | "bias") => ({
    attentionNorm: view(`${prefix}.input_layernorm.${kind}`),
    qkv: view(`${prefix}.self_attn.q_proj.${kind}`, `${prefix}.self_attn.v_proj.${kind}`),
    project: view(`${prefix}.self_attn.o_proj.${kind}`),
    mlpNorm: view(`${prefix}.post_attention_layernorm.${kind}`),
    gateUp: view(`${prefix}.mlp.up_proj.${kind}`),
    down: view(`${prefix}.mlp.down_proj.${kind}`),
  });
  return { ...of("weight"), biases: of("bias") };
}

function blockOf({ gpt2 = false }: StageShape): typeof llamaBlock {
  return gpt2 ? gpt2Block : llamaBlock;
}

/** F. Output is the [R, C] activation, or in the last stage the mean loss in nats over the R targets. */
export function stageForward(
  shape: StageShape,
  params: StageParams,
  input: StageReferenceInput,
): { output?: Float64Array; loss?: number; saved: StageSaved } {
  const saved: StageSaved = { blocks: [] };
  let x = input.activation;
  if (shape.embed) {
    assert(input.tokens && params.embedding, "the first stage needs tokens and an embedding");
    saved.tokens = input.tokens;
    x = embeddingForward(input.tokens, params.embedding, shape);
    if (params.positions) x = positionsForward(x, params.positions);
  }
  assert(x, "a later stage needs an activation");
  for (const block of params.blocks) {
    const step = blockOf(shape).blockForward(block, x, shape);
    saved.blocks.push(step.saved);
    x = rounded(step.out, shape);
  }
  if (!shape.head) return { output: x, saved };
  const { loss, head } = lastForward(shape, params, { x, targets: input.targets });
  return { loss, saved: { ...saved, head } };
}

function lastForward(
  shape: StageShape,
  { norm, normBias, head }: StageParams,
  { x, targets }: { x: Float64Array; targets: Uint32Array | undefined },
): { loss: number; head: HeadSaved } {
  assert(norm && head && targets, "the last stage needs a norm, a head and targets");
  const { out: normed, saved } = normForward(x, { gain: norm, bias: normBias }, shape);
  const { losses, lse, logits } = headForward(normed, head, { ...shape, targets });
  return { loss: mean(losses), head: { ...saved, normed, logits, lse, targets } };
}

/** B. `dOutput` [R, C] is absent in the last stage, `dInput` [R, C] in the first. */
export function stageInputGrad(
  shape: StageShape,
  params: StageParams,
  { saved, dOutput }: { saved: StageSaved; dOutput?: Float64Array },
): { dInput?: Float64Array; pending: StagePending } {
  const pending: StagePending = { blocks: [] };
  let dX = dOutput;
  if (saved.head) ({ dX, head: pending.head } = lastInputGrad(shape, params, saved.head));
  assert(dX, "a stage without the head needs the gradient of its output");
  for (let i = params.blocks.length - 1; i >= 0; i--) {
    const step = blockOf(shape).blockInputGrad(params.blocks[i]!, saved.blocks[i]!, { dOut: dX, shape });
    pending.blocks[i] = step.pending;
    dX = rounded(step.dX, shape);
  }
  if (!shape.embed) return { dInput: dX, pending };
  return { pending: { ...pending, dEmbedded: dX } };
}

function lastInputGrad(
  shape: StageShape,
  { norm, head }: StageParams,
  saved: HeadSaved,
): { dX: Float64Array; head: { dLogits: Float64Array; dNormed: Float64Array } } {
  assert(norm && head, "the last stage needs a norm and a head");
  const dLogits = headLogitGrad(saved, saved.targets, shape);
  const dNormed = headInputGrad(dLogits, head, shape);
  const dX = normInputGrad(saved, dNormed, { gain: norm, C: shape.C });
  return { dX, head: { dLogits, dNormed } };
}

/**
 * W: writes every weight's gradient into `grads`, views of an array that holds zeros. A tensor that is embedding and
 * head at once (tied, single stage) gets the sum of both.
 */
export function stageWeightGrad(
  shape: StageShape,
  grads: StageParams,
  { saved, pending }: { saved: StageSaved; pending: StagePending },
): void {
  grads.blocks.forEach((block, i) => {
    blockOf(shape).blockWeightGrad(saved.blocks[i]!, pending.blocks[i]!, { grads: block, shape });
  });
  if (saved.head && pending.head && grads.norm && grads.head) {
    const { dLogits, dNormed } = pending.head;
    const norm = { gain: grads.norm, bias: grads.normBias };
    normWeightGrad(saved.head, dNormed, { grads: norm, C: shape.C });
    addTo(grads.head, headWeightGrad(dLogits, saved.head.normed, shape));
  }
  if (saved.tokens && pending.dEmbedded && grads.embedding) {
    addTo(grads.embedding, embeddingWeightGrad(saved.tokens, pending.dEmbedded, shape));
    grads.positions?.set(positionsWeightGrad(pending.dEmbedded, shape));
  }
}

/** In place: only for arrays that this file just made. */
function rounded(values: Float64Array, { roundLayers = false }: StageShape): Float64Array {
  if (roundLayers) { for (let i = 0; i < values.length; i++) values[i] = Math.fround(values[i]!); }
  return values;
}

function addTo(target: Float64Array, values: Float64Array): void {
  for (let i = 0; i < target.length; i++) target[i]! += values[i]!;
}
