// Double-precision twin of a whole stage: embedding, blocks, final norm and head, with F, B and W apart.
// It knows neither slots nor codecs (peer/engine/cpu.ts does). B must follow F, and W must follow B, on one `saved`.
import { EMBEDDING_NAME, findTensor, HEAD_NAME, headDim, stageLayout } from "../../peer/model/layout.ts";
import { assert } from "../../peer/wire/errors.ts";
import type { ModelSpec, StageSpec } from "../../peer/wire/run.ts";
import { blockForward, blockInputGrad, blockWeightGrad } from "./block.ts";
import type { BlockParams, BlockPending, BlockSaved, BlockShape, FloatArray } from "./block.ts";
import { embeddingForward, embeddingWeightGrad } from "./embedding.ts";
import { headForward, headInputGrad, headLogitGrad, headWeightGrad, mean } from "./head.ts";
import { rmsnormForward, rmsnormInputGrad, rmsnormWeightGrad } from "./rmsnorm.ts";

/** B sequences of T tokens make R = B T rows; V is the vocabulary. */
export interface StageShape extends BlockShape {
  V: number;
  embed: boolean;
  head: boolean;
  /**
   * Rounds activations and their gradients to f32 between layers, as if a stage ended there; then every cut of a model
   * into stages gives the same bits. Absent = false: full double precision, which finite differences need.
   */
  roundLayers?: boolean;
}

/** Views of one flat array in layout order: weights, or gradients of the same shapes. */
export interface StageParams<A extends FloatArray = Float64Array> {
  /** [V, C], first stage only. */
  embedding?: A;
  blocks: BlockParams<A>[];
  /** Final norm [C] and head [V, C], last stage only. Tied in a single stage, `head` is the same view as `embedding`. */
  norm?: A;
  head?: A;
}

/** The first stage reads `tokens` [R], the others `activation` [R, C]; the last one reads `targets` [R]. */
export interface StageReferenceInput {
  tokens?: Uint32Array;
  activation?: Float64Array;
  targets?: Uint32Array;
}

interface HeadSaved {
  /** Input of the final norm [R, C], its rstd [R], its output [R, C]. */
  x: Float64Array;
  rstd: Float64Array;
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
    params.blocks.push(viewBlock(`model.layers.${layer}`, view));
  }
  if (stage.embed) params.embedding = view(EMBEDDING_NAME);
  if (stage.head) {
    params.norm = view("model.norm.weight");
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
  }
  assert(x, "a later stage needs an activation");
  for (const block of params.blocks) {
    const step = blockForward(block, x, shape);
    saved.blocks.push(step.saved);
    x = rounded(step.out, shape);
  }
  if (!shape.head) return { output: x, saved };
  const { loss, head } = lastForward(shape, params, { x, targets: input.targets });
  return { loss, saved: { ...saved, head } };
}

function lastForward(
  shape: StageShape,
  { norm, head }: StageParams,
  { x, targets }: { x: Float64Array; targets: Uint32Array | undefined },
): { loss: number; head: HeadSaved } {
  assert(norm && head && targets, "the last stage needs a norm, a head and targets");
  const { out: normed, rstd } = rmsnormForward(x, norm, shape);
  const { losses, lse, logits } = headForward(normed, head, { ...shape, targets });
  return { loss: mean(losses), head: { x, rstd, normed, logits, lse, targets } };
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
    const step = blockInputGrad(params.blocks[i]!, saved.blocks[i]!, { dOut: dX, shape });
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
  const dX = rmsnormInputGrad({ x: saved.x, rstd: saved.rstd, dOut: dNormed }, norm, shape);
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
    blockWeightGrad(saved.blocks[i]!, pending.blocks[i]!, { grads: block, shape });
  });
  if (saved.head && pending.head && grads.norm && grads.head) {
    const { x, rstd, normed } = saved.head, { dLogits, dNormed } = pending.head;
    grads.norm.set(rmsnormWeightGrad({ x, rstd, dOut: dNormed }, shape));
    addTo(grads.head, headWeightGrad(dLogits, normed, shape));
  }
  if (saved.tokens && pending.dEmbedded && grads.embedding) {
    addTo(grads.embedding, embeddingWeightGrad(saved.tokens, pending.dEmbedded, shape));
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
