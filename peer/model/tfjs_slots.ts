// What a slot of a stage on tfjs holds between F, B and W. Not the order in which it is made and freed (tfjs_stage.ts).
import type { HeadKept } from "./tfjs_math.ts";

/** What a block keeps beside its input; B adds the last five, and its gradients take the place of `qkv` and `gateUp`. */
export interface BlockKept<X> {
  attentionRstd: X;
  qkv: X;
  attended: X;
  middle: X;
  mlpRstd: X;
  gateUp: X;
  act?: X;
  dOut?: X;
  dMiddle?: X;
  dAttentionGain?: X;
  dMlpGain?: X;
}

export interface BlockSlot<X> {
  x: X;
  /** Absent between F and B if they are computed again. */
  kept?: BlockKept<X>;
}

/** Of the last stage: the last block's output, and what the head keeps. */
export interface HeadSlot<X> {
  x: X;
  rstd: X;
  kept: HeadKept<X>;
  targets: Uint32Array;
  /** After B. */
  dGain?: X;
}

export interface StageSlot<X> {
  blocks: BlockSlot<X>[];
  tokens?: Uint32Array;
  head?: HeadSlot<X>;
  /** Gradient of the embedding's output, after B. */
  dEmbedded?: X;
}

/** All that the head keeps. */
export function headMatrices<X>({ x, rstd, kept, dGain }: HeadSlot<X>): X[] {
  return [x, rstd, kept.lse, kept.dLogits, dGain].filter((matrix): matrix is X => matrix !== undefined);
}
