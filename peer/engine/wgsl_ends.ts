// Dispatch plans of a model's two ends: the embedding, and final norm with vocabulary head.
// Logits exist for HEAD_TILE vocabulary entries at a time; B and W recompute them instead of keeping [R, V].
import { embeddingForwardSpec, embeddingWeightGradSpec } from "../gpu/kernels/embedding.ts";
import { headLogitGradSpec, headLossSpec, sumRowsSpec } from "../gpu/kernels/head.ts";
import type { DispatchPlan } from "../gpu/program.ts";
import { EMBEDDING_NAME } from "../model/layout.ts";
import {
  HEAD_TILE,
  headName,
  type SlotName,
  slotTensor,
  type StagePlanning,
  vocabularyRows,
  weightSlice,
} from "./wgsl_names.ts";
import { matmul, rmsnorm, rmsnormGrads } from "./wgsl_ops.ts";

const FINAL_NORM = "model.norm.weight";

export function embeddingForward(p: StagePlanning, slot: SlotName): DispatchPlan {
  return {
    spec: embeddingForwardSpec,
    params: { R: p.R, C: p.C },
    tensors: {
      tokens: slotTensor(slot, "tokens"),
      table: weightSlice(p, "params", { first: EMBEDDING_NAME }),
      out: slotTensor(slot, "x", 0),
    },
  };
}

/** Adds to the head's gradient where both are one tensor, which therefore must be there already. */
export function embeddingWeightGrad(p: StagePlanning, slot: number): DispatchPlan {
  const shared = p.build.stage.head && headName(p) === EMBEDDING_NAME;
  return {
    spec: embeddingWeightGradSpec,
    params: { R: p.R, C: p.C, V: p.V, accumulate: shared ? 1 : 0 },
    tensors: {
      tokens: slotTensor(slot, "tokens"),
      dout: slotTensor(slot, "dx", 0),
      dtable: weightSlice(p, "gradient", { first: EMBEDDING_NAME }),
    },
  };
}

/** Final norm of the last x into `normed`. */
function finalNorm(p: StagePlanning, slot: SlotName): DispatchPlan {
  return rmsnorm(p, {
    x: slotTensor(slot, "x", p.layers),
    gain: weightSlice(p, "params", { first: FINAL_NORM }),
    rstd: slotTensor(slot, "final rstd"),
    y: "normed",
  });
}

/** The last x -> `loss` [1]. */
export function headForward(p: StagePlanning, slot: SlotName): DispatchPlan[] {
  const { R, C, V } = p;
  return [
    finalNorm(p, slot),
    {
      spec: headLossSpec,
      params: { R, C, V },
      tensors: {
        x: "normed",
        weight: weightSlice(p, "params", { first: headName(p) }),
        targets: slotTensor(slot, "targets"),
        loss: "losses",
        lse: slotTensor(slot, "head lse"),
      },
    },
    { spec: sumRowsSpec, params: { R }, tensors: { values: "losses", mean: "loss" } },
  ];
}

/** `normed` -> `dlogits` for one tile of the vocabulary. */
function logitGrad(p: StagePlanning, slot: number, rows: { from: number; count: number }): DispatchPlan {
  return {
    spec: headLogitGradSpec,
    params: { R: p.R, C: p.C, vocabOffset: rows.from, tile: rows.count },
    tensors: {
      x: "normed",
      weight: weightSlice(p, "params", { first: headName(p) }),
      targets: slotTensor(slot, "targets"),
      lse: slotTensor(slot, "head lse"),
      dlogits: "dlogits",
    },
  };
}

function tiles({ V }: StagePlanning): { from: number; count: number }[] {
  return Array.from({ length: Math.ceil(V / HEAD_TILE) }, (_, i) => {
    const from = i * HEAD_TILE;
    return { from, count: Math.min(HEAD_TILE, V - from) };
  });
}

/** Loss -> dx of the last layer's output. */
export function headBackward(p: StagePlanning, slot: number): DispatchPlan[] {
  const { R, C } = p;
  const head = weightSlice(p, "params", { first: headName(p) });
  return [
    finalNorm(p, slot),
    ...tiles(p).flatMap((rows) => [
      logitGrad(p, slot, rows),
      matmul(p, "nn", {
        M: R,
        N: C,
        K: rows.count,
        a: "dlogits",
        b: vocabularyRows(p, head, rows),
        out: "dnormed",
        accumulate: rows.from > 0,
      }),
    ]),
    ...rmsnormGrads(p, {
      dy: "dnormed",
      x: slotTensor(slot, "x", p.layers),
      gain: weightSlice(p, "params", { first: FINAL_NORM }),
      rstd: slotTensor(slot, "final rstd"),
      dx: slotTensor(slot, "dx", p.layers),
      dgain: slotTensor(slot, "dfinal gain"),
    }),
  ];
}

export function headWeightGrad(p: StagePlanning, slot: number): DispatchPlan[] {
  const gradient = weightSlice(p, "gradient", { first: headName(p) });
  return [
    finalNorm(p, slot),
    ...tiles(p).flatMap((rows) => [
      logitGrad(p, slot, rows),
      matmul(p, "tn", {
        M: rows.count,
        N: p.C,
        K: p.R,
        a: "dlogits",
        b: "normed",
        out: vocabularyRows(p, gradient, rows),
      }),
    ]),
  ];
}

export function headGainCopy(p: StagePlanning, slot: number) {
  return { from: slotTensor(slot, "dfinal gain"), to: weightSlice(p, "gradient", { first: FINAL_NORM }) };
}
