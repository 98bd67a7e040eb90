// The whole program of a stage: tensors, and per slot the operations F, B and W; pure, so memory is known before a
// device exists. Each operation is one pass and, where something leaves the GPU, one readback.
import type { TensorRef, TensorRequest } from "../gpu/arena.ts";
import type { DispatchPlan, OperationPlan, ProgramPlan } from "../gpu/program.ts";
import { blockTensor, weightsInBackward } from "../model/block_tensors.ts";
import { wgslMemory } from "../model/stage_memory.ts";
import {
  type BoundaryShape,
  type BoundaryShapes,
  boundaryShapes,
  stageTensors,
} from "../model/stage_tensors.ts";
import type { StageBuild, StageMemory } from "./engine.ts";
import { inHalves } from "../model/stage_tensors.ts";
import { adapterGrads, adapterTensors } from "./wgsl_adapters.ts";
import * as llamaBlock from "./wgsl_block.ts";
import * as gpt2Block from "./wgsl_block_gpt2.ts";
import { decodePlan, encodePlan } from "./wgsl_codec.ts";
import {
  embeddingClears,
  embeddingForward,
  embeddingWeightGrad,
  finalGainGrad,
  headBackward,
  headForward,
  headWeightGrad,
} from "./wgsl_ends.ts";
import {
  type AdapterTraits,
  planningOf,
  type SlotName,
  slotTensor,
  type StagePlanning,
} from "./wgsl_names.ts";
import { refuseUnbindable } from "./wgsl_limits.ts";
import { narrow, unscaleGradient, widen } from "./wgsl_ops.ts";
import {
  addGradient,
  addGradientName,
  optimizerOperations,
  optimizerRequests,
} from "./wgsl_optimizer_plan.ts";
import { paramTensors } from "./wgsl_params.ts";

export interface StageProgram {
  plan: ProgramPlan;
  planning: StagePlanning;
  shapes: BoundaryShapes;
  /** Bytes of the GPU buffers that Program.build makes for `plan`. */
  memory: StageMemory;
}

export function forwardName(slot: SlotName): string {
  return `forward ${slot}`;
}

export function backwardName(slot: number): string {
  return `backward ${slot}`;
}

export function weightGradName(slot: number): string {
  return `weight gradient ${slot}`;
}

/** Errors: out-of-memory if the adapter's limits are given and a tensor exceeds them. */
export function planStage(build: StageBuild, adapter: AdapterTraits): StageProgram {
  const planning = planningOf(build, adapter);
  if (adapter.limits) refuseUnbindable(planning, adapter.limits);
  const shapes = boundaryShapes(planning);
  const operations = new Map<string, OperationPlan>();
  const slots = Array.from({ length: build.slots }, (_, slot) => slot);
  for (const slot of [...slots, "eval" as const]) {
    operations.set(forwardName(slot), forwardPlan(planning, slot, shapes));
  }
  for (const slot of slots) {
    operations.set(backwardName(slot), backwardPlan(planning, slot, shapes));
    operations.set(weightGradName(slot), weightGradPlan(planning, slot));
  }
  const optimizer = build.optimizer === "gpu";
  if (optimizer) addOptimizer(planning, operations);
  const { activations, scratch } = stageTensors(planning);
  const params = paramTensors(planning.parts, "params");
  const adapters = planning.adapters ? adapterTensors(planning, "adapters") : [];
  const tensors = [...params, ...adapters, ...gradientTensors(planning), ...activations, ...scratch];
  if (optimizer) tensors.push(...optimizerRequests(planning));
  const plan = { label: `stage ${build.stage.index}`, tensors, operations };
  return { plan, planning, shapes, memory: wgslMemory(build) };
}

function blockOf({ gpt2 }: StagePlanning): typeof llamaBlock {
  return gpt2 ? gpt2Block : llamaBlock;
}

/** What W leaves on the GPU, in the order in which it is read back. */
function gradientTensors(p: StagePlanning): TensorRequest[] {
  return p.adapters ? adapterTensors(p, "adapter gradient") : paramTensors(p.parts, "gradient");
}

function layerWeightGrads(p: StagePlanning, slot: number, layer: number): DispatchPlan[] {
  return p.adapters ? adapterGrads(p, slot, layer) : blockOf(p).blockWeightGrad(p, slot, layer);
}

function addOptimizer(p: StagePlanning, operations: Map<string, OperationPlan>): void {
  for (let slot = 0; slot < p.build.slots; slot++) {
    operations.set(addGradientName(slot), addGradient(p, weightGradPlan(p, slot)));
  }
  for (const [name, operation] of optimizerOperations(p)) operations.set(name, operation);
}

/** Tokens or the decoded activation -> x 0 -> ... -> the loss or the encoded last x. */
function forwardPlan(p: StagePlanning, slot: SlotName, shapes: BoundaryShapes): OperationPlan {
  const { embed, head } = p.build.stage;
  const t = blockTensor(p, slot);
  const first = embed
    ? embeddingForward(p, slot)
    : enter(p, shapes.activationIn, { to: t("x", 0), gradient: false });
  const blocks = layersOf(p).flatMap((layer) => blockOf(p).blockForward(p, slot, layer));
  const last = head
    ? { dispatches: headForward(p, slot), readback: "loss" }
    : leave(p, shapes.activationOut, { from: t("x", p.layers), slot, gradient: false });
  const dispatches = [...first, ...blocks, ...last.dispatches];
  return { dispatches, tail: head ? 0 : last.dispatches.length, readback: [last.readback] };
}

/**
 * The loss's or the decoded gradient -> dx of the last layer -> ... -> dx 0, encoded unless the model starts here. With
 * recomputation each layer's weights get their gradient here, while their factors exist.
 */
function backwardPlan(p: StagePlanning, slot: number, shapes: BoundaryShapes): OperationPlan {
  const { embed, head } = p.build.stage;
  const t = blockTensor(p, slot);
  const weights = weightsInBackward(p.build);
  const last = head
    ? headBackward(p, slot)
    : enter(p, shapes.gradientIn, { to: t("dx", p.layers), gradient: true });
  const { blockAgain, blockBackward } = blockOf(p);
  const blocks = layersOf(p).reverse().flatMap((layer) => [
    ...blockAgain(p, slot, layer),
    ...blockBackward(p, slot, layer),
    ...(weights ? layerWeightGrads(p, slot, layer) : []),
  ]);
  const ends = weights ? endWeightGrads(p, slot) : { clears: [], dispatches: [] };
  const first = embed ? undefined : leave(p, shapes.gradientOut, { from: t("dx", 0), slot, gradient: true });
  const overflow = slotTensor(slot, "overflow");
  const unscaled = weights ? unscaleGradient(p, gradientTensors(p), overflow) : [];
  const after = [...(first?.dispatches ?? []), ...unscaled];
  return {
    clears: [...ends.clears, ...(inHalves(p) ? [overflow] : [])],
    dispatches: [
      ...[...last, ...blocks, ...ends.dispatches],
      ...after,
    ],
    // What is recomputed in halves is scaled back after the widening has told of an overflow.
    ...(first ? { tail: after.length, readback: [first.readback] } : {}),
  };
}

/** The tensor that a boundary's codec works on: f32 also where the stage keeps halves. */
export function boundaryTensor(p: StagePlanning, kept: string): string {
  return inHalves(p) ? "dnormed" : kept;
}

/** What came from another stage, decoded -> the kept tensor `to`. */
function enter(
  p: StagePlanning,
  shape: BoundaryShape,
  { to, gradient }: { to: string; gradient: boolean },
): DispatchPlan[] {
  const from = boundaryTensor(p, to);
  const { dispatches } = decodePlan(shape, from);
  return inHalves(p) ? [...dispatches, narrow(p, { from, to, gradient })] : dispatches;
}

/** The kept tensor `from` -> what goes to another stage. */
function leave(
  p: StagePlanning,
  shape: BoundaryShape,
  { from, slot, gradient }: { from: string; slot: SlotName; gradient: boolean },
): { dispatches: DispatchPlan[]; readback: TensorRef } {
  const to = boundaryTensor(p, from);
  const encode = encodePlan(shape, to);
  if (!inHalves(p)) return encode;
  const first = widen(p, { from, to, overflow: slotTensor(slot, "overflow"), leaves: gradient });
  return { ...encode, dispatches: [first, ...encode.dispatches] };
}

/** The final gain's and the table's gradient, which need all of B; nothing beside adapters. */
function endWeightGrads(p: StagePlanning, slot: number) {
  const { embed, head } = p.build.stage;
  if (p.adapters) return { clears: [], dispatches: [] };
  return {
    clears: embed ? embeddingClears(p) : [],
    dispatches: [
      ...(head ? [finalGainGrad(p, slot)] : []),
      ...(embed ? embeddingWeightGrad(p, slot) : []),
    ],
  };
}

function weightGradPlan(p: StagePlanning, slot: number): OperationPlan {
  const gradients = gradientTensors(p), readback = gradients.map(({ name }) => name);
  if (weightsInBackward(p.build)) return { dispatches: [], readback };
  const { clears, dispatches } = endWeightGrads(p, slot);
  return {
    clears,
    dispatches: [
      ...(p.build.stage.head && !p.adapters ? headWeightGrad(p, slot) : []),
      ...layersOf(p).flatMap((layer) => layerWeightGrads(p, slot, layer)),
      ...dispatches,
      ...unscaleGradient(p, gradients, slotTensor(slot, "overflow")),
    ],
    readback,
  };
}

function layersOf({ layers }: StagePlanning): number[] {
  return Array.from({ length: layers }, (_, layer) => layer);
}
