// The whole program of a stage: tensors, and per slot the operations F, B and W; pure, so memory is known before a
// device exists. Each operation is one pass and, where something leaves the GPU, one readback.
import { paddedBytes, type TensorRef, type TensorRequest } from "../gpu/arena.ts";
import { type OperationPlan, overheadBytes, type ProgramPlan } from "../gpu/program.ts";
import type { CodecId } from "../wire/run.ts";
import type { StageBuild, StageMemory } from "./engine.ts";
import { blockBackward, blockForward, blockGainCopies, blockWeightGrad } from "./wgsl_block.ts";
import { type BoundaryShape, boundaryTensors, decodePlan, encodePlan } from "./wgsl_codec.ts";
import {
  embeddingForward,
  embeddingWeightGrad,
  headBackward,
  headForward,
  headGainCopy,
  headWeightGrad,
} from "./wgsl_ends.ts";
import {
  type AdapterTraits,
  planningOf,
  type SlotName,
  slotTensor,
  type StagePlanning,
  stageTensors,
} from "./wgsl_names.ts";

export interface StageProgram {
  plan: ProgramPlan;
  planning: StagePlanning;
  /** Shapes of the activations and of the gradients that cross the stage's boundaries. */
  forwardShape: BoundaryShape;
  backwardShape: BoundaryShape;
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

export function planStage(build: StageBuild, adapter: AdapterTraits): StageProgram {
  const planning = planningOf(build, adapter);
  const shape = (codec: CodecId): BoundaryShape => ({ codec, rows: planning.R, cols: planning.C });
  const [forwardShape, backwardShape] = [shape(build.codecForward), shape(build.codecBackward)];
  const operations = new Map<string, OperationPlan>();
  const slots = Array.from({ length: build.slots }, (_, slot) => slot);
  for (const slot of [...slots, "eval" as const]) {
    operations.set(forwardName(slot), forwardPlan(planning, slot, forwardShape));
  }
  for (const slot of slots) {
    operations.set(backwardName(slot), backwardPlan(planning, slot, backwardShape));
    operations.set(weightGradName(slot), weightGradPlan(planning, slot));
  }
  const { params, activations, scratch } = stageTensors(planning);
  const boundary = boundaryTensors(
    build.stage.embed && build.stage.head ? [] : [forwardShape, backwardShape],
  );
  const tensors = [...params, ...activations, ...scratch, ...boundary];
  const plan = { label: `stage ${build.stage.index}`, tensors, operations };
  const memory = {
    params: total(params),
    activations: total(activations),
    scratch: total(scratch) + total(boundary) + overheadBytes(plan),
  };
  return { plan, planning, forwardShape, backwardShape, memory };
}

function total(requests: readonly TensorRequest[]): number {
  return requests.reduce((sum, { bytes }) => sum + paddedBytes(bytes), 0);
}

/** Tokens or the decoded activation -> x 0 -> ... -> the loss or the encoded last x. */
function forwardPlan(p: StagePlanning, slot: SlotName, shape: BoundaryShape): OperationPlan {
  const { embed, head } = p.build.stage;
  const first = embed ? [embeddingForward(p, slot)] : decodePlan(shape, slotTensor(slot, "x", 0)).dispatches;
  const blocks = layersOf(p).flatMap((layer) => blockForward(p, slot, layer));
  const last = head
    ? { dispatches: headForward(p, slot), readback: "loss" as TensorRef }
    : encodePlan(shape, slotTensor(slot, "x", p.layers));
  return { dispatches: [...first, ...blocks, ...last.dispatches], readback: last.readback };
}

/** The loss's or the decoded gradient -> dx of the last layer -> ... -> dx 0, encoded unless the model starts here. */
function backwardPlan(p: StagePlanning, slot: number, shape: BoundaryShape): OperationPlan {
  const { embed, head } = p.build.stage;
  const last = head ? headBackward(p, slot) : decodePlan(shape, slotTensor(slot, "dx", p.layers)).dispatches;
  const blocks = layersOf(p).reverse().flatMap((layer) => blockBackward(p, slot, layer));
  const dispatches = [...last, ...blocks];
  if (embed) return { dispatches };
  const first = encodePlan(shape, slotTensor(slot, "dx", 0));
  return { dispatches: [...dispatches, ...first.dispatches], readback: first.readback };
}

function weightGradPlan(p: StagePlanning, slot: number): OperationPlan {
  const { embed, head } = p.build.stage;
  return {
    dispatches: [
      ...(head ? headWeightGrad(p, slot) : []),
      ...layersOf(p).flatMap((layer) => blockWeightGrad(p, slot, layer)),
      ...(embed ? [embeddingWeightGrad(p, slot)] : []),
    ],
    copies: [
      ...(head ? [headGainCopy(p, slot)] : []),
      ...layersOf(p).flatMap((layer) => blockGainCopies(p, slot, layer)),
    ],
    readback: "gradient",
  };
}

function layersOf({ layers }: StagePlanning): number[] {
  return Array.from({ length: layers }, (_, layer) => layer);
}
