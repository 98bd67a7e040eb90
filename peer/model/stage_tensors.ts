// The GPU tensors of one stage by name and size: the single list that the engine allocates from and memory is predicted by.
// Not an allocation (peer/gpu/arena.ts) and not a plan of operations (peer/engine/wgsl_plan.ts). Sizes follow from shapes
// alone, never from an adapter. Legend: R = B T rows, C = n_embd, H / Hk heads of width D, I = n_inner, V = vocab_size.
import type { StageBuild } from "../engine/engine.ts";
import { framePayloadBytes } from "../wire/frame.ts";
import type { CodecId } from "../wire/run.ts";
import { gainBlocks, sharedBlockTensors, slotBlockTensors, weightsInBackward } from "./block_tensors.ts";
import { type ProductShape, slicedElements } from "./product_slices.ts";
import { type AdapterStack, adapterStack } from "./lora_groups.ts";
import { headDim, isGpt2, type StageLayout, stageLayout } from "./layout.ts";

/** Vocabulary entries whose logits exist at one time. A larger tile costs scratch memory, a smaller one more dispatches. */
export const HEAD_TILE = 2048;
/** Bytes of logits at most: what every adapter binds. With very many rows tiles are narrower, rather than the batch refused. */
const LOGITS_BYTES_MAX = 128 << 20;
/** Tiles begin where offsets of a vocabulary's rows are aligned, whatever their width is. */
const HEAD_TILE_UNIT = 64;
/** Offsets of buffer bindings are multiples of this on every device with default limits. */
export const TENSOR_ALIGN_BYTES = 256;
/** Shortest chunk of the two-pass maximum; below it a chunk costs more than the loads it saves. */
const AMAX_CHUNK_MIN = 64;
const WORD_BYTES = 4;
const HALF_BYTES = 2;
/** Factors of the loss scale: none, up, down, and one word that is not used. */
const SCALE_FACTORS = 4;

export interface TensorSize {
  name: string;
  bytes: number;
}

/** Shapes that the tensors of a stage follow from. */
export interface StageDims {
  build: StageBuild;
  /** LayerNorm, GELU and biases; else Llama's block. */
  gpt2: boolean;
  layout: StageLayout;
  R: number;
  T: number;
  C: number;
  H: number;
  Hk: number;
  D: number;
  I: number;
  V: number;
  layers: number;
  /** What alone is trained, if the engine is built with adapters. */
  adapters?: AdapterStack;
}

export function dimsOf(build: StageBuild): StageDims {
  const { spec, stage, batchSize } = build;
  const adapters = adapterStack(build);
  return {
    ...(adapters && { adapters }),
    build,
    gpt2: isGpt2(spec),
    layout: stageLayout(spec, stage),
    R: batchSize * spec.block_size,
    T: spec.block_size,
    C: spec.n_embd,
    H: spec.n_head,
    Hk: spec.n_kv_head,
    D: headDim(spec),
    I: spec.n_inner,
    V: spec.vocab_size,
    layers: stage.endLayer - stage.firstLayer,
  };
}

/** Width of what a product makes of a row on its way to the activation: GPT-2 has no gate. */
export function innerWidth({ gpt2, I }: StageDims): number {
  return gpt2 ? I : 2 * I;
}

/** Numbers that a norm keeps of a row: LayerNorm its mean too. */
export function rowStats({ gpt2 }: StageDims): number {
  return gpt2 ? 2 : 1;
}

/** Parameters of a norm for each column: LayerNorm has a bias. */
export function normRows({ gpt2 }: StageDims): number {
  return gpt2 ? 2 : 1;
}

/** Width of a packed qkv row. */
export function qkvWidth({ H, Hk, D }: StageDims): number {
  return (H + 2 * Hk) * D;
}

/** Where a micro-batch's tensors live: an activation slot, or the scratch slot of evaluations. */
export type SlotName = number | "eval";

/** A tensor whose content no operation leaves to another. */
export function sharedTensor(name: string): string {
  return `shared/${name}`;
}

/** The evaluation slot keeps nothing, so all its layers share one set of tensors. */
export function slotTensor(slot: SlotName, name: string, layer?: number): string {
  if (slot === "eval") return sharedTensor(name);
  return layer === undefined ? `slot ${slot}/${name}` : `slot ${slot}/${name} ${layer}`;
}

/** Bytes that a tensor takes in an arena. */
export function paddedBytes(bytes: number): number {
  return Math.ceil(Math.max(bytes, TENSOR_ALIGN_BYTES) / TENSOR_ALIGN_BYTES) * TENSOR_ALIGN_BYTES;
}

export function request(name: string, elements: number): TensorSize {
  return { name, bytes: elements * WORD_BYTES };
}

/** Whether what is kept from F to W is in halves. */
export function inHalves({ build }: Pick<StageDims, "build">): boolean {
  return build.dtype === "f16";
}

/** A tensor that is kept from F to W, or has the form of one. */
export function keptRequest(p: StageDims, name: string, elements: number): TensorSize {
  return { name, bytes: elements * (inHalves(p) ? HALF_BYTES : WORD_BYTES) };
}

/** What F leaves at the model's two ends, and whether a gradient in halves overflowed. */
function endTensors(p: StageDims, slot: SlotName): TensorSize[] {
  const { R } = p;
  const { embed, head } = p.build.stage;
  const of = (name: string, elements: number) => request(slotTensor(slot, name), elements);
  return [
    ...(embed ? [of("tokens", R)] : []),
    ...(embed && slot !== "eval" && !p.adapters ? [of("lookup", lookupWords(p))] : []),
    ...(head ? [of("targets", R), of("final rstd", R * rowStats(p)), of("head lse", R)] : []),
    ...(head && slot !== "eval" && keepsFinalPartial(p) ? [finalPartial(p, slot)] : []),
    ...(inHalves(p) ? [of("overflow", 1)] : []),
  ];
}

/** Whether W reads what B leaves of the final norm's gradient. */
export function keepsFinalPartial({ build, adapters }: Pick<StageDims, "build" | "adapters">): boolean {
  return !weightsInBackward(build) && adapters === undefined;
}

/** The final norm's gradient by blocks of rows, which B leaves for W. */
function finalPartial(p: StageDims, slot: SlotName): TensorSize {
  return request(slotTensor(slot, "final partial"), gainBlocks(p) * normRows(p) * p.C);
}

/** Distinct tokens that a micro-batch can have at most. */
export function distinctTokensMax({ R, V }: Pick<StageDims, "R" | "V">): number {
  return Math.min(R, V);
}

/** Rows by token, the distinct tokens, and where each one's rows begin and the last one's end. */
export function lookupWords(p: Pick<StageDims, "R" | "V">): number {
  return p.R + 2 * distinctTokensMax(p) + 1;
}

/** Weight gradients of a block, [out, in] summed over the rows, or those of its adapters. */
function blockWeightProducts(p: StageDims): ProductShape[] {
  const { R, C, H, D, I } = p;
  if (p.adapters) {
    return p.adapters.groups.flatMap((
      { ranks: M, rows, cols },
    ) => [{ M, N: rows, K: R }, { M, N: cols, K: R }]);
  }
  return [[C, I], [innerWidth(p), C], [C, H * D], [qkvWidth(p), C]].map(([M = 0, N = 0]) => ({ M, N, K: R }));
}

/** Vocabulary entries whose logits exist at one time, for so many rows. */
export function headTile({ R }: Pick<StageDims, "R">): number {
  const fitting = Math.floor(LOGITS_BYTES_MAX / WORD_BYTES / R / HEAD_TILE_UNIT) * HEAD_TILE_UNIT;
  return Math.max(HEAD_TILE_UNIT, Math.min(HEAD_TILE, fitting));
}

/** A group's rows times its A and the gradients of its rows times its B, [R, ranks] each, which W's other two products read. */
function adapterTensors(p: StageDims): TensorSize[] {
  if (!p.adapters) return [];
  const ranks = Math.max(...p.adapters.groups.map((group) => group.ranks));
  return ["adapter inner", "adapter outer"].map((name) => keptRequest(p, name, p.R * ranks));
}

function scratchTensors(p: StageDims): TensorSize[] {
  const { R, C, H, D, V, T } = p;
  const requests = [
    request("angles", T * D),
    keptRequest(p, "normed", R * C),
    request("dnormed", R * C),
    request("delta", R * H),
    request("slices", slicedElements(blockWeightProducts(p))),
    ...adapterTensors(p),
    ...(p.gpt2 && !p.adapters
      ? [request("bias partial", gainBlocks(p) * Math.max(C, qkvWidth(p), p.I))]
      : []),
    ...(inHalves(p) ? [request("scales", SCALE_FACTORS)] : []),
  ];
  if (!p.build.stage.head) return requests;
  return [
    ...requests,
    request("losses", R),
    request("loss", 1),
    request("logits", R * Math.min(V, headTile(p))),
    ...(inHalves(p) ? [request("final normed", R * C)] : []),
    ...(keepsFinalPartial(p) ? [] : [finalPartial(p, "eval")]),
  ];
}

/** A [rows, cols] tensor in one codec, as it crosses one of a stage's boundaries. */
export interface BoundaryShape {
  codec: CodecId;
  rows: number;
  cols: number;
}

/** Exponent word and payload; raw32 has no exponent and is the tensor itself. */
export function boundaryBytes({ codec, rows, cols }: BoundaryShape): number {
  return WORD_BYTES + framePayloadBytes(codec, rows, cols);
}

/** Chunk length for n values that balances both passes of the maximum; ceil(n / chunk) maxima are needed. */
export function amaxChunk(n: number): number {
  return Math.max(AMAX_CHUNK_MIN, Math.ceil(Math.sqrt(n)));
}

/** What encoding and decoding need beside the tensor: the words, and the maxima of the exponent's first pass. */
function boundaryTensors(p: StageDims): TensorSize[] {
  const { embed, head } = p.build.stage;
  if (embed && head) return [];
  const n = p.R * p.C;
  return [
    { name: "encoded", bytes: Math.max(...Object.values(boundaryShapes(p)).map(boundaryBytes)) },
    request("maxima", Math.ceil(n / amaxChunk(n))),
  ];
}

/** What crosses a stage's boundaries; the ends of the model have only half of them. */
export interface BoundaryShapes {
  activationIn: BoundaryShape;
  activationOut: BoundaryShape;
  gradientIn: BoundaryShape;
  gradientOut: BoundaryShape;
}

export function boundaryShapes({ build, R, C }: Pick<StageDims, "build" | "R" | "C">): BoundaryShapes {
  const shape = (codec: CodecId): BoundaryShape => ({ codec, rows: R, cols: C });
  const after = { forward: build.codecForward, backward: build.codecBackward };
  const { codecsBefore: before = after } = build;
  return {
    ...{ activationIn: shape(before.forward), activationOut: shape(after.forward) },
    ...{ gradientIn: shape(after.backward), gradientOut: shape(before.backward) },
  };
}

/** All tensors but the parameters and their gradient, which are cut to what an adapter binds (peer/engine/wgsl_params.ts). */
export function stageTensors(p: StageDims): { activations: TensorSize[]; scratch: TensorSize[] } {
  const activations: TensorSize[] = [];
  for (let slot = 0; slot < p.build.slots; slot++) {
    activations.push(...slotBlockTensors(p, slot), ...endTensors(p, slot));
  }
  return {
    activations,
    scratch: [
      ...scratchTensors(p),
      ...sharedBlockTensors(p),
      ...endTensors(p, "eval"),
      ...boundaryTensors(p),
    ],
  };
}
