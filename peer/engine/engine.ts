// The contract of whatever computes one stage instance. Shapes are fixed at build; a step allocates nothing.
// Implementations: wgsl.ts (GPU kernels) and cpu.ts (double-precision twins). Neither knows peers, links or steps.
import type { CodecId, Encoded, ModelSpec, StageSpec } from "../wire/run.ts";

/** What a stage is built from. B = batchSize sequences of T = spec.block_size tokens form one micro-batch. */
export interface StageBuild {
  spec: ModelSpec;
  stage: StageSpec;
  batchSize: number;
  /** Activation slots: micro-batches whose forward is done and whose weight gradient is not. */
  slots: number;
  codecForward: CodecId;
  codecBackward: CodecId;
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

export interface StageEngine {
  /** What a person reads: implementation and adapter, such as "wgsl on llvmpipe (dawn)". */
  readonly name: string;
  /** Uploads the stage's flat f32 parameters (order and offsets: peer/model/layout.ts) and frees every slot. */
  load(params: Float32Array): Promise<void>;
  /** F: keeps what B and W need in `slot`. Saves nothing if `slot` is null (evaluation). */
  forward(slot: number | null, input: StageInput): Promise<StageOutput>;
  /** B: input gradient of the micro-batch in `slot`; null comes in at the last stage and goes out at the first. */
  backward(slot: number, gradient: Encoded | null): Promise<Encoded | null>;
  /** W: flat f32 weight gradient (layout order, mean over this micro-batch's tokens); frees `slot`. */
  weightGrad(slot: number): Promise<Float32Array>;
  /** Bytes, predicted from the shapes; equals what was allocated. */
  memory(): StageMemory;
  destroy(): void;
}
