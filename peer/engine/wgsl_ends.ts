// Dispatch plans of a model's two ends: the embedding, and final norm with vocabulary head.
// Logits exist for one tile of the vocabulary at a time; B and W make them again instead of keeping [R, V].
import { positionsAddSpec, positionsGradSpec } from "../gpu/kernels/bias.ts";
import { embeddingForwardSpec, embeddingWeightGradSpec } from "../gpu/kernels/embedding.ts";
import { headLogitGradSpec, headLossGroupSpec, headLossSpec, sumRowsSpec } from "../gpu/kernels/head.ts";
import type { TensorRef } from "../gpu/arena.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { EMBEDDING_NAME, POSITIONS_NAME } from "../model/layout.ts";
import { blockTensor, weightsInBackward } from "../model/block_tensors.ts";
import { distinctTokensMax, inHalves, keepsFinalPartial } from "../model/stage_tensors.ts";
import {
  headName,
  type SlotName,
  slotTensor,
  type StagePlanning,
  vocabularyParts,
  type VocabularyRows,
  vocabularyTiles,
  weightSlice,
} from "./wgsl_names.ts";
import { finalNormSlice, norm, normBackward, normGrad } from "./wgsl_norm.ts";
import { keptKernel, matmul, narrow, widen } from "./wgsl_ops.ts";

/** Each part of the table fills the rows whose token lies in it; GPT-2 then adds each row's position. */
export function embeddingForward(p: StagePlanning, slot: SlotName): DispatchPlan[] {
  const x = blockTensor(p, slot)("x", 0);
  const halves = inHalves(p);
  const parts = vocabularyParts(p, "params", EMBEDDING_NAME).map(({ from, count, slice }) => ({
    spec: embeddingForwardSpec,
    params: { R: p.R, C: p.C, vocabOffset: from, count },
    tensors: { tokens: slotTensor(slot, "tokens"), table: slice, out: halves ? "dnormed" : x },
  }));
  const positions = addPositions(p, halves ? "dnormed" : x);
  return [
    ...[...parts, ...positions],
    ...(halves ? [narrow(p, { from: "dnormed", to: x, gradient: false })] : []),
  ];
}

/** In f32, also for a stage in halves. */
function addPositions(p: StagePlanning, x: TensorRef): DispatchPlan[] {
  const { R, T, C } = p;
  if (!p.gpt2) return [];
  const table = weightSlice(p, "params", { first: POSITIONS_NAME });
  return [{ spec: positionsAddSpec, params: { R, T, C }, tensors: { table, x } }];
}

function positionsGrad(p: StagePlanning, dout: TensorRef): DispatchPlan[] {
  const { R, T, C } = p;
  if (!p.gpt2) return [];
  const dtable = weightSlice(p, "gradient", { first: POSITIONS_NAME });
  return [{ spec: positionsGradSpec, params: { R, T, C }, tensors: { dout, dtable } }];
}

/** Where the head shares the table its gradient covers every row; else only the rows of tokens that occur are written. */
export function embeddingClears(p: StagePlanning): TensorRef[] {
  if (p.build.stage.head && headName(p) === EMBEDDING_NAME) return [];
  return vocabularyParts(p, "gradient", EMBEDDING_NAME).map(({ slice }) => slice);
}

/** Adds to what the head's gradient, or clearing, has left in the table's gradient. */
export function embeddingWeightGrad(p: StagePlanning, slot: number): DispatchPlan[] {
  const E = distinctTokensMax(p);
  const dx = blockTensor(p, slot)("dx", 0);
  const halves = inHalves(p);
  const parts = vocabularyParts(p, "gradient", EMBEDDING_NAME).map(({ from, count, slice }) => ({
    spec: embeddingWeightGradSpec,
    params: { R: p.R, C: p.C, E, vocabOffset: from, count },
    tensors: { lookup: slotTensor(slot, "lookup"), dout: halves ? "dnormed" : dx, dtable: slice },
  }));
  const overflow = slotTensor(slot, "overflow");
  return [
    ...(halves ? [widen(p, { from: dx, to: "dnormed", overflow })] : []),
    ...[...parts, ...positionsGrad(p, halves ? "dnormed" : dx)],
  ];
}

/** What the head multiplies: in f32, also where activations are kept in halves. */
function finalNormed(p: StagePlanning): TensorRef {
  return inHalves(p) ? "final normed" : "normed";
}

/** Final norm of the last x into what the head multiplies. */
function finalNorm(p: StagePlanning, slot: SlotName): DispatchPlan[] {
  const normed = norm(p, {
    x: blockTensor(p, slot)("x", p.layers),
    gain: finalNormSlice(p, "params"),
    rstd: slotTensor(slot, "final rstd"),
    y: "normed",
  });
  return [normed, ...widenFinal(p, slot, "normed")];
}

function widenFinal(p: StagePlanning, slot: SlotName, from: TensorRef): DispatchPlan[] {
  if (!inHalves(p)) return [];
  return [widen(p, { from, to: finalNormed(p), overflow: slotTensor(slot, "overflow") })];
}

/** The final norm's output -> `logits` [R, count] of one tile of the vocabulary. */
function logits(p: StagePlanning, { count, slice }: VocabularyRows, normed: TensorRef): DispatchPlan {
  return matmul(p, "nt", { M: p.R, N: count, K: p.C, a: normed, b: slice, out: "logits" });
}

/** The last x -> `loss` [1]. */
export function headForward(p: StagePlanning, slot: SlotName): DispatchPlan[] {
  const { R, V } = p;
  const spec = p.software ? headLossSpec : headLossGroupSpec;
  const fold = ({ from, count }: VocabularyRows): DispatchPlan => ({
    spec,
    params: {
      ...{ R, tile: count, vocabOffset: from },
      ...{ begins: from === 0 ? 1 : 0, ends: from + count === V ? 1 : 0 },
    },
    tensors: {
      ...{ logits: "logits", targets: slotTensor(slot, "targets") },
      ...{ loss: "losses", lse: slotTensor(slot, "head lse") },
    },
  });
  return [
    ...finalNorm(p, slot),
    ...vocabularyTiles(p, "params", headName(p)).flatMap((rows) => [
      logits(p, rows, finalNormed(p)),
      fold(rows),
    ]),
    { spec: sumRowsSpec, params: { R }, tensors: { values: "losses", mean: "loss" } },
  ];
}

/** The final norm's output -> the gradient of the loss with respect to one tile's logits, in `logits`. */
function logitGrad(
  p: StagePlanning,
  slot: number,
  { rows, normed }: { rows: VocabularyRows; normed: TensorRef },
): DispatchPlan[] {
  return [
    logits(p, rows, normed),
    {
      spec: keptKernel(p, headLogitGradSpec),
      params: { R: p.R, tile: rows.count, vocabOffset: rows.from },
      tensors: {
        targets: slotTensor(slot, "targets"),
        lse: slotTensor(slot, "head lse"),
        logits: "logits",
        ...(inHalves(p) ? { scales: "scales" } : {}),
      },
    },
  ];
}

/** Loss -> dx of the last layer's output; with recomputation the head's gradient too, from the same logits. */
export function headBackward(p: StagePlanning, slot: number): DispatchPlan[] {
  const { R, C } = p;
  const t = blockTensor(p, slot);
  const tiles = vocabularyTiles(p, "params", headName(p));
  // Beside adapters the head is frozen.
  const gradients = weightsInBackward(p.build) && !p.adapters
    ? vocabularyTiles(p, "gradient", headName(p))
    : [];
  const normed = finalNormed(p);
  return [
    ...finalNorm(p, slot),
    ...tiles.flatMap((rows, i) => [
      ...logitGrad(p, slot, { rows, normed }),
      matmul(p, "nn", {
        ...{ M: R, N: C, K: rows.count, a: "logits", b: rows.slice, out: "dnormed" },
        accumulate: rows.from > 0,
      }),
      ...(gradients[i] ? [headTileGrad(p, gradients[i], normed)] : []),
    ]),
    normBackward(p, {
      ...{ dy: "dnormed", x: t("x", p.layers), gain: finalNormSlice(p, "params") },
      ...{ rstd: slotTensor(slot, "final rstd"), dx: t("dx", p.layers), partial: finalPartial(p, slot) },
    }),
  ];
}

function finalPartial(p: StagePlanning, slot: number): string {
  return slotTensor(keepsFinalPartial(p) ? slot : "eval", "final partial");
}

/** The gradient of one tile's logits, in `logits`, -> that of its rows of the head. */
function headTileGrad(p: StagePlanning, rows: VocabularyRows, normed: TensorRef): DispatchPlan {
  return matmul(p, "tn", { M: rows.count, N: p.C, K: p.R, a: "logits", b: normed, out: rows.slice });
}

/** The head's gradient, tile by tile. B has left the final norm's output in the place of the last x. */
export function headWeightGrad(p: StagePlanning, slot: number): DispatchPlan[] {
  const gradients = vocabularyTiles(p, "gradient", headName(p));
  const kept = blockTensor(p, slot)("x", p.layers);
  const normed = inHalves(p) ? finalNormed(p) : kept;
  const tiles = vocabularyTiles(p, "params", headName(p)).flatMap((rows, i) => [
    ...logitGrad(p, slot, { rows, normed }),
    headTileGrad(p, gradients[i]!, normed),
  ]);
  return [...widenFinal(p, slot, kept), ...tiles];
}

export function finalGainGrad(p: StagePlanning, slot: number): DispatchPlan {
  return normGrad(p, finalPartial(p, slot), finalNormSlice(p, "gradient"));
}
