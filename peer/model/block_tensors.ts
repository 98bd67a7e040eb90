// The GPU tensors of the transformer blocks of a stage: which are kept in a slot and which all layers and slots share, by
// what B computes again. Names and sizes only; peer/model/stage_tensors.ts has the rest of a stage. What must stay true: a
// shared tensor's content never outlives the operation that made it.
import type { StageBuild } from "../engine/engine.ts";
import type { RecomputeId } from "../wire/run.ts";
import type { Adapted } from "./lora_groups.ts";
import {
  innerWidth,
  keptRequest,
  normRows,
  qkvWidth,
  request,
  rowStats,
  sharedTensor,
  type SlotName,
  slotTensor,
  type StageDims,
  type TensorSize,
} from "./stage_tensors.ts";

/** Rows whose part of a gain's gradient one invocation sums; fixed in shaders/lib/rmsnorm_backward.wgsl. */
export const RMSNORM_BLOCK_ROWS = 16;

/** What F makes. In B `x` and `middle` become their norms' outputs, `gate up` its gradient, and `act` is made again. */
const FORWARD = [
  "x",
  "attention rstd",
  "qkv",
  "attended",
  "lse",
  "middle",
  "mlp rstd",
  "gate up",
  "act",
] as const;
/** What B makes. The gradient of a layer's qkv takes the place of the next layer's qkv, which B has done with. */
const BACKWARD = ["dx", "dmiddle", "attention partial", "mlp partial"] as const;

export type BlockTensor = typeof FORWARD[number] | typeof BACKWARD[number];

/**
 * What a slot keeps until its W. With recomputation W's products run in B, where their factors are at hand: kept for a
 * W that comes later, those would outweigh all that recomputing saves.
 */
const KEPT: Record<RecomputeId, readonly BlockTensor[]> = {
  none: [...FORWARD, ...BACKWARD],
  attention: ["x", "middle", "mlp rstd", "gate up"],
  block: ["x"],
};

export function recomputeOf({ recompute = "none" }: StageBuild): RecomputeId {
  return recompute;
}

/** Whether B also makes the weight gradient, so that W only brings it back. */
export function weightsInBackward(build: StageBuild): boolean {
  return recomputeOf(build) !== "none";
}

/** What only the W of a matrix, or of nothing that adapters stand beside, reads after B. */
const FOR_WEIGHTS: readonly (readonly [BlockTensor, matrix: Adapted | null])[] = [
  ...[["act", "down"], ["dx", "down"], ["dmiddle", "project"]] as const,
  ...[["attention partial", null], ["mlp partial", null]] as const,
];

function keptNames({ build, adapters }: StageDims): readonly BlockTensor[] {
  const kept = KEPT[recomputeOf(build)];
  if (adapters === undefined) return kept;
  const unread = FOR_WEIGHTS.filter(([, matrix]) => !adapters.groups.some(({ kind }) => kind === matrix));
  return kept.filter((name) => !unread.some(([tensor]) => tensor === name));
}

/** Layers are counted from the stage's first; `x` and `dx` have one more, the input of what follows and its gradient. */
export function blockTensor(p: StageDims, slot: SlotName): (name: BlockTensor, layer: number) => string {
  return (name, layer) => {
    if (slot !== "eval" && keeps(p, name, layer)) return slotTensor(slot, name, layer);
    return name === "dx" ? sharedTensor(`dx ${layer % 2}`) : sharedTensor(name);
  };
}

/** Where the gradient of a layer's packed qkv goes. */
export function qkvGradient(p: StageDims, slot: number, layer: number): string {
  const kept = recomputeOf(p.build) === "none";
  return kept ? blockTensor(p, slot)("qkv", layer + 1) : sharedTensor("dqkv");
}

/** What leaves the stage is needed no longer than its operation: the last x without a head, the first dx without a table. */
function keeps(p: StageDims, name: BlockTensor, layer: number): boolean {
  const { head } = p.build.stage;
  if (name === "x" && layer === p.layers) return head;
  if (name === "dx" && layer === 0 && !trainsTable(p)) return false;
  return keptNames(p).includes(name);
}

/** Whether the gradient of the first layer's input is one of weights, too. */
function trainsTable({ build, adapters }: StageDims): boolean {
  return build.stage.embed && adapters === undefined;
}

/** Sums of rows stay in f32, whatever the rows are kept in. */
const SUMS: readonly BlockTensor[] = [
  ...["attention rstd", "mlp rstd", "lse"] as const,
  ...["attention partial", "mlp partial"] as const,
];

function sized(p: StageDims, tensor: string, name: BlockTensor): TensorSize {
  return (SUMS.includes(name)
    ? request(tensor, elements(p, name))
    : keptRequest(p, tensor, elements(p, name)));
}

function elements(p: StageDims, name: BlockTensor): number {
  const { R, C, H, D, I } = p;
  switch (name) {
    case "qkv":
      return R * qkvWidth(p);
    case "attended":
      return R * H * D;
    case "lse":
      return R * H;
    case "attention rstd":
    case "mlp rstd":
      return R * rowStats(p);
    case "gate up":
      return R * innerWidth(p);
    case "act":
      return R * I;
    case "attention partial":
    case "mlp partial":
      return gainBlocks(p) * normRows(p) * C;
    default:
      return R * C;
  }
}

/** Partial sums of a gain's gradient. */
export function gainBlocks({ R }: Pick<StageDims, "R">): number {
  return Math.ceil(R / RMSNORM_BLOCK_ROWS);
}

/** Kept in one slot. */
export function slotBlockTensors(p: StageDims, slot: number): TensorSize[] {
  return [...FORWARD, ...BACKWARD].flatMap((name) => {
    const count = p.layers + (name === "x" || name === "dx" || name === "qkv" ? 1 : 0);
    const layers = Array.from({ length: count }, (_, layer) => layer);
    return layers.filter((layer) => keeps(p, name, layer))
      .map((layer) => sized(p, slotTensor(slot, name, layer), name));
  });
}

/** Shared by all layers and slots, and by evaluations. */
export function sharedBlockTensors(p: StageDims): TensorSize[] {
  const forward = FORWARD.map((name) => sized(p, sharedTensor(name), name));
  const dx = [0, 1].map((i) => sized(p, sharedTensor(`dx ${i}`), "dx"));
  const kept = keptNames(p);
  const shared = BACKWARD.filter((name) => name !== "dx" && !kept.includes(name));
  return [
    ...forward,
    ...(kept.includes("dx") ? (trainsTable(p) ? [] : [dx[0]!]) : dx),
    ...shared.map((name) => sized(p, sharedTensor(name), name)),
    ...(recomputeOf(p.build) === "none" ? [] : [sized(p, sharedTensor("dqkv"), "qkv")]),
  ];
}
