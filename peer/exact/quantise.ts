// Micro-batch gradients as fixed-point integers, whose sums do not depend on order or on who computed what.
// Not the optimizer. The scale of a block is a pure function of its exponent and N, so all replicas of a step share it.
import { assert } from "../wire/errors.ts";
import { powerOfTwo } from "./power.ts";
import { blocksOf, type StageState } from "./state.ts";

/** Most micro-batches in a step; beyond it too few bits would remain for one micro-batch's gradient. */
export const MICRO_BATCHES_MAX = 256;

/** Adding and subtracting 1.5·2^52 rounds a double below 2^51 to an integer, ties to even, in any IEEE engine. */
const ROUNDER = 6755399441055744;

export interface QuantiseOptions {
  /** Micro-batches in the step (N), over all replicas. */
  microBatches: number;
  /** Reused result array of layout.size; default: a new one. */
  out?: Int32Array;
}

export interface Quantised {
  values: Int32Array;
  /** Values cut to the limit; they mean that the block's exponent was too small for this step. */
  saturated: number;
  /** NaN or infinite values; they count as 0. */
  nonFinite: number;
}

/**
 * Largest |q| of one micro-batch: floor((2^31 - 1) / 2N). N micro-batches then fit an int32 twice over, which leaves
 * room for adding the totals of the two ends of a tied embedding.
 */
export function quantumLimit(microBatches: number): number {
  const usable = Number.isInteger(microBatches) && microBatches >= 1 && microBatches <= MICRO_BATCHES_MAX;
  assert(usable, `${microBatches} micro-batches; allowed are 1 to ${MICRO_BATCHES_MAX}`);
  return Math.floor(0x7fffffff / (2 * microBatches));
}

/** k of a block: values scale by 2^k, so that ±2^exponent maps within ±limit. */
export function blockShift(exponent: number, microBatches: number): number {
  return 31 - Math.clz32(quantumLimit(microBatches)) - exponent;
}

/** q = round-half-even(g·2^k), saturating at the limit; padding gives 0. `grad` is the mean over its micro-batch. */
export function quantise(grad: Float32Array, state: StageState, options: QuantiseOptions): Quantised {
  const { microBatches } = options;
  const { layout, exponents } = state;
  const values = options.out ?? new Int32Array(layout.size);
  assert(grad.length === layout.size && values.length === layout.size, "gradient and layout differ in size");
  const limit = quantumLimit(microBatches);
  const result = { values, saturated: 0, nonFinite: 0 };
  for (const { index, start, end } of blocksOf(layout)) {
    const scale = powerOfTwo(blockShift(exponents[index]!, microBatches));
    quantiseBlock(grad.subarray(start, end), values.subarray(start, end), { scale, limit, counts: result });
  }
  return result;
}

interface BlockRule {
  scale: number;
  limit: number;
  counts: { saturated: number; nonFinite: number };
}

function quantiseBlock(grad: Float32Array, out: Int32Array, { scale, limit, counts }: BlockRule): void {
  for (let i = 0; i < grad.length; i++) {
    const x = grad[i]! * scale;
    if (x >= -limit && x <= limit) {
      out[i] = (x + ROUNDER) - ROUNDER;
    } else if (x - x !== 0) {
      out[i] = 0;
      counts.nonFinite++;
    } else {
      out[i] = x > 0 ? limit : -limit;
      counts.saturated++;
    }
  }
}
