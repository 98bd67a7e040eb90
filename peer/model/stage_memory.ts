// What one stage takes on a peer, predicted from shapes alone: the engine's buffers and the exact state beside it. The engine
// allocates exactly this (test/kernels/memory_test.ts counts); the coordinator plans with it. Not a measurement, and no
// knowledge of adapters: how parameters are cut to an adapter's limits changes none of these sums.
import type { StageBuild, StageMemory } from "../engine/engine.ts";
import type { ModelSpec, OptimizerId, RecomputeId, RunConfig, StageSpec } from "../wire/run.ts";
import { isDelayed } from "../wire/view.ts";
import { weightsInBackward } from "./block_tensors.ts";
import { cpuMemory } from "./cpu_memory.ts";
import { stageLayout } from "./layout.ts";
import { besideBase } from "./lora.ts";
import { adapterStack } from "./lora_groups.ts";
import { loraMemory } from "./lora_memory.ts";
import { optimizerTensors } from "./optimizer_tensors.ts";
import {
  boundaryBytes,
  type BoundaryShape,
  boundaryShapes,
  dimsOf,
  paddedBytes,
  type StageDims,
  stageTensors,
  TENSOR_ALIGN_BYTES,
  type TensorSize,
} from "./stage_tensors.ts";
import { tfjsMemory } from "./tfjs_memory.ts";

/** Largest staging buffer of a readback; a longer readback goes through several, so that it needs no second copy on the GPU. */
export const STAGING_PIECE_BYTES = 16 << 20;
/** Staging buffers in turn: one is filled, one waits, one is read. */
export const STAGING_PIECES_MAX = 3;
/** Reserved for the parameter blocks of all dispatches, so that memory is known without planning them: 256 different ones. */
export const UNIFORM_BYTES = 256 * TENSOR_ALIGN_BYTES;
const F32_BYTES = 4;

/** Staging buffers for a longest readback of so many bytes. */
export function stagingPieces(readbackBytes: number): { count: number; bytes: number } {
  const whole = Math.ceil(Math.max(readbackBytes, TENSOR_ALIGN_BYTES) / F32_BYTES) * F32_BYTES;
  const bytes = Math.min(whole, STAGING_PIECE_BYTES);
  return { count: Math.min(STAGING_PIECES_MAX, Math.ceil(whole / bytes)), bytes };
}

/** Bytes of the GPU buffers of a stage's engine (peer/engine/wgsl.ts). */
export function wgslMemory(build: StageBuild): StageMemory {
  const dims = dimsOf(build);
  const { activations, scratch } = stageTensors(dims);
  const params = dims.layout.size * F32_BYTES;
  const adapters = (dims.adapters?.floats ?? 0) * F32_BYTES;
  const trains = build.optimizer === "gpu";
  const staging = stagingPieces(longestReadback(dims));
  return {
    // With the optimizer on the GPU, two moments beside the parameters, and the sum beside the gradient.
    params: (trains ? 3 * params : params) + adapters,
    activations: total(activations),
    scratch: (dims.adapters ? adapters : params) +
      (trains ? params + total(optimizerTensors(dims.layout)) : 0) + total(scratch) +
      UNIFORM_BYTES + staging.count * staging.bytes,
  };
}

function total(requests: readonly TensorSize[]): number {
  return requests.reduce((sum, { bytes }) => sum + paddedBytes(bytes), 0);
}

/** The gradient of the weights, or a boundary tensor. */
function longestReadback(dims: StageDims): number {
  const { embed, head } = dims.build.stage;
  const { activationOut, gradientOut } = boundaryShapes(dims);
  const bytes = (shape: BoundaryShape) =>
    shape.codec === "raw32" ? dims.R * dims.C * F32_BYTES : boundaryBytes(shape);
  const leaving = Math.max(head ? 0 : bytes(activationOut), embed ? 0 : bytes(gradientOut));
  return Math.max((dims.adapters?.floats ?? dims.layout.size) * F32_BYTES, leaving);
}

/** How a stage is computed, as far as memory is concerned. */
export type EngineKind = "wgsl" | "tfjs" | "cpu";

/** From what a peer says of its engine, such as "wgsl (dawn)" or "tfjs-wasm"; an unknown one is taken for the first kind. */
export function engineKind(engine: string): EngineKind {
  return (["tfjs", "cpu"] as const).find((kind) => engine.startsWith(kind)) ?? "wgsl";
}

/**
 * An engine in words, in a run with `dtype` f16 also that it keeps f32 all the same: all but the WebGPU kernels do, which agrees
 * within f16's tolerance and takes the memory that f32 takes.
 */
export function engineSaid(engine: string, { dtype }: Pick<StageBuild, "dtype">): string {
  if (dtype !== "f16" || engineKind(engine) === "wgsl") return engine;
  return `${engine}; computes and keeps f32, since only the WebGPU kernels have f16`;
}

const MEMORY: Readonly<Record<EngineKind, (build: StageBuild) => StageMemory>> = {
  wgsl: wgslMemory,
  tfjs: tfjsMemory,
  cpu: cpuStageMemory,
};

/** What an engine of this kind allocates for the stage, all together; of adapters also what stands beside it for them. */
export function engineBytes(kind: EngineKind, build: StageBuild): number {
  const engine = MEMORY[kind](besideBase(build));
  return [engine, loraMemory(build)].reduce((sum, it) => sum + it.params + it.activations + it.scratch, 0);
}

/** What the double-precision engine holds at most (peer/engine/cpu.ts). */
export function cpuStageMemory(build: StageBuild): StageMemory {
  const { R, T, layout, layers, adapters, ...dims } = dimsOf(build);
  const { embed, head } = build.stage;
  const shape = { ...dims, B: R / T, T, embed, head };
  return cpuMemory(shape, { layers, slots: build.slots, floats: layout.size, adapters });
}

/** Weights, two moments, own sum, total and the scratch of quantising: f32 or i32 each. */
export const EXACT_BYTES_PER_PARAM = 24;
/** With the schedule 2bw also: the weights one step before, and the sum of the step after the open one. */
export const DELAYED_BYTES_PER_PARAM = 8;
/** Totals of the newest steps are kept for holders that missed one (`LOG_STEPS` of the peer's core). */
const LOG_STEPS = 8;

/** A packed total's bytes per value: a byte and the bits that adding up micro-batches takes, or integers of 30 bits. */
function loggedBytes({ reduce, gradient_accumulation_steps: n }: RunConfig): number {
  return reduce === "int8" ? 1 + Math.log2(n) / 8 : 4;
}

/** Bytes beside the engine: exact state, sums, log of totals, boundary tensors kept until the commit, gradients read back. */
export function stateBytes(build: StageBuild, config: RunConfig): number {
  const { size } = stageLayout(build.spec, build.stage);
  const { embed, head } = build.stage;
  const { activationOut, gradientOut } = boundaryShapes(dimsOf(build));
  const kept = (head ? 0 : boundaryBytes(activationOut)) + (embed ? 0 : boundaryBytes(gradientOut));
  // Where B makes the weight gradients, each slot's may have to wait here for its W.
  const gradients = weightsInBackward(build) ? build.slots : 1;
  const [delayed, open] = isDelayed(config) ? [DELAYED_BYTES_PER_PARAM, 2] : [0, 1];
  const perParam = EXACT_BYTES_PER_PARAM + delayed + LOG_STEPS * loggedBytes(config);
  // Of adapters once more as the engine gives them, which stacks them.
  const stacked = adapterStack(besideBase(build))?.floats ?? 0;
  const readBack = F32_BYTES * (gradients * size + stacked);
  return Math.ceil(size * perParam) + readBack + open * config.gradient_accumulation_steps * kept;
}

/** Bytes per parameter of a state file at most: weights, two moments and the exponents, and what the schedule 2bw adds. */
export function stateFileBytesPerParam(config: Pick<RunConfig, "schedule">): number {
  return isDelayed(config) ? 18 : 13;
}

/**
 * How a stage is run: slots for micro-batches under way, what B computes again instead of keeping, and whether the engine has
 * room for an optimizer of its own. The exact state is counted too then, since a further holder brings it back.
 */
export interface StageRun {
  slots: number;
  recompute: RecomputeId;
  optimizer?: OptimizerId;
}

/**
 * Bytes that a peer needs to hold a stage. A shadow needs as much: it builds its engine after the first step, so that it
 * can compute at once when it must. With the schedule 2bw each of two open steps has an engine, with its own weights and slots.
 */
export function holderBytes(
  stage: StageSpec,
  run: StageRun,
  of: { spec: ModelSpec; config: RunConfig; kind: EngineKind },
): number {
  const { spec, config, kind } = of;
  const codecs = { codecForward: config.codec_forward, codecBackward: config.codec_backward };
  const { dtype } = config;
  const build: StageBuild = { ...{ spec, stage, batchSize: config.batch_size }, ...run, ...codecs, dtype };
  const engines = isDelayed(config) ? 2 : 1;
  return engines * engineBytes(kind, build) + stateBytes(build, config);
}
