// The contract of whatever computes one stage instance. Shapes are fixed at build; a step allocates nothing.
// Implementations: wgsl.ts (GPU kernels) and cpu.ts (double-precision twins). Neither knows peers, links or steps.
import type { StepOptions } from "../exact/optimizer.ts";
import type { StageState } from "../exact/state.ts";
import type { BoundarySums } from "./boundary_times.ts";
import type {
  BoundaryCodecs,
  CodecId,
  DtypeId,
  Encoded,
  LoraSpec,
  ModelSpec,
  OptimizerId,
  RecomputeId,
  StageSpec,
} from "../wire/run.ts";

/** What a stage is built from. B = batchSize sequences of T = spec.block_size tokens form one micro-batch. */
export interface StageBuild {
  spec: ModelSpec;
  stage: StageSpec;
  batchSize: number;
  /** Activation slots: micro-batches whose forward is done and whose weight gradient is not. */
  slots: number;
  /** Of the boundary after the stage: activations that leave and gradients that come in; of both boundaries without the next. */
  codecForward: CodecId;
  codecBackward: CodecId;
  /** Of the boundary before the stage: activations that come in and gradients that leave. */
  codecsBefore?: BoundaryCodecs;
  /** What B computes again instead of keeping it in the slot. Default none. */
  recompute?: RecomputeId;
  /** How activations are kept, where the engine can; others keep f32, which agrees within f16's tolerance. Default f32. */
  dtype?: DtypeId;
  /** gpu: with room for the state on the device, if the engine can. Default exact. */
  optimizer?: OptimizerId;
  /** Only these adapters are trained, `spec` is their base's, and W gives no other gradient. Default: all of `spec` is trained. */
  adapters?: LoraSpec;
}

/** Tokens and targets are [B*T] row-major; the first stage reads tokens, the last stage reads targets. */
export interface StageInput {
  tokens?: Uint32Array;
  targets?: Uint32Array;
  /** Output of the previous stage, [B*T, C]. */
  activation?: Encoded;
}

export interface StageOutput {
  /** For the next stage, [B*T, C]; absent in the last stage. */
  activation?: Encoded;
  /** Mean cross-entropy in nats over the B*T targets; present in the last stage. */
  loss?: number;
}

export interface StageMemory {
  params: number;
  activations: number;
  scratch: number;
}

/** What is told of a step's gradient. */
export interface GradientFacts {
  /** Squared norm of the mean over the step's micro-batches. */
  gradNormSq: number;
  /** Values cut to a limit, and values that were not finite and count as 0. */
  saturated: number;
  nonFinite: number;
}

/** A state without its layout and step, which its holder knows. */
export type StateValues = Pick<StageState, "params" | "m" | "v" | "exponents">;

/**
 * The optimizer on the device: sum of gradients, moments and step live where F, B and W run. Equal to peer/exact within
 * f32's rounding; only for a stage that nobody else holds.
 */
export interface StageOptimizer {
  /** Uploads a whole state and frees every slot; from here on the engine trains it until load() of the engine. */
  load(state: StateValues): Promise<void>;
  /** The sum becomes zero. */
  begin(): Promise<void>;
  /** W: adds the slot's weight gradient to the sum; frees the slot. */
  addGradient(slot: number): Promise<void>;
  facts(microBatches: number): Promise<GradientFacts>;
  /** One step with the sum that facts() was asked of last, on a state of `step` committed steps. */
  apply(step: number, options: StepOptions): Promise<void>;
  /** Passes over the step instead: only the exponents follow its sum (passOver of peer/exact/optimizer.ts). */
  passOver(step: number, options: StepOptions): Promise<void>;
  /** The state as it is now. */
  read(): Promise<StateValues>;
}

export interface StageEngine {
  /** What a person reads: implementation and adapter, such as "wgsl on llvmpipe (dawn)". */
  readonly name: string;
  /** Uploads the stage's flat f32 parameters (order and offsets: peer/model/layout.ts) and frees every slot. */
  load(params: Float32Array): Promise<void>;
  /**
   * Of engines that were built with adapters: their values, flat f32 in the adapters' own layout, after each load() of the merged
   * weights. W then gives their gradients, in that layout. An engine without it gives the gradient of the whole matrices.
   */
  loadAdapters?(adapters: Float32Array): Promise<void>;
  /** F: keeps what B and W need in `slot`. Saves nothing if `slot` is null (evaluation). */
  forward(slot: number | null, input: StageInput): Promise<StageOutput>;
  /** B: input gradient of the micro-batch in `slot`; null comes in at the last stage and goes out at the first. */
  backward(slot: number, gradient: Encoded | null): Promise<Encoded | null>;
  /** W: flat f32 weight gradient (layout order, mean over this micro-batch's tokens); frees `slot`. */
  weightGrad(slot: number): Promise<Float32Array>;
  /**
   * Present in engines that keep gradients in halves: B scales its gradient by 2^exponent before it keeps any of it, B and W
   * give theirs without it. Holds from the next B on, until it is said anew; no micro-batch may be between its B and its W. A
   * slot of which anything was beyond a half's range gives a weight gradient with at least one value that is not finite.
   */
  scaleLoss?(exponent: number): void;
  /** Present in engines that can, if they were built with optimizer gpu. */
  readonly optimizer?: StageOptimizer;
  /** What F and B have spent on boundary tensors so far, as a part of their times; absent in engines that cannot tell. */
  readonly boundary?: BoundarySums;
  /** Bytes, predicted from the shapes; equals what was allocated. */
  memory(): StageMemory;
  destroy(): void;
}
