// Micro-batch gradients as fixed-point integers, whose sums do not depend on order or on who computed what.
// Not the optimizer. The scale of a block is a pure function of its exponent, the step and N, so all replicas of a step
// share it; random rounding draws its bits from what is rounded, never from who rounds.
import { EMBEDDING_NAME, type TensorLayout } from "../model/layout.ts";
import { nameWord } from "../model/random.ts";
import { assert } from "../wire/errors.ts";
import type { ReduceId } from "../wire/run.ts";
import { mix32 } from "./hash.ts";
import { powerOfTwo } from "./power.ts";
import { blocksOf, type StageState } from "./state.ts";

/** Most micro-batches in a step; beyond it too few bits would remain for one micro-batch's gradient. */
export const MICRO_BATCHES_MAX = 256;
/** A block's exponent lies this much above the last mean gradient's peak: a single micro-batch exceeds the mean. */
export const HEADROOM_BITS = 3;
/**
 * int8: a gradient as large as the last peak becomes about 2^7 with one micro-batch. A bit less doubles the rounding error,
 * a bit more costs about an eighth of the traffic (bench/reduce.ts).
 */
const INT8_PEAK_BITS = 7;
/**
 * int8: the grid of one micro-batch is then 2^-30, below what AdamW's epsilon of 1e-8 lets through. Blocks without
 * gradients (rows of characters that do not occur) would otherwise fall until their next gradient saturates.
 */
export const FINEST_EXPONENT = -20;

/** Adding and subtracting 1.5·2^52 rounds a double below 2^51 to an integer, ties to even, in any IEEE engine. */
const ROUNDER = 6755399441055744;
/** 2^32 divided by the golden ratio, odd: multiples of it spread counters over all words. */
const GOLDEN = 0x9e3779b9 | 0;
/** Sixteen random bits per value leave a bias of 2^-17 of a unit. */
const BITS_SCALE = powerOfTwo(-16);
const HALF_BIT = powerOfTwo(-17);

/** What fixes the grid of a step besides each block's exponent. */
export interface Grid {
  /** Micro-batches in the step (N), over all replicas. */
  microBatches: number;
  reduce: ReduceId;
  /** Committed steps before this one. */
  step: number;
}

export interface QuantiseOptions {
  /** Micro-batches in the step (N), over all replicas. */
  microBatches: number;
  reduce: ReduceId;
  /** Of the run; only int8 uses it. */
  seed: number;
  /** Number of the micro-batch whose gradient this is; only int8 uses it. */
  microBatch: number;
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

/**
 * k of a block: values scale by 2^k. raw32 maps ±2^exponent within ±limit. int8 maps the last peak, 2^(exponent - 3), to
 * 2^7 / sqrt(N): rounding errors of N micro-batches add up to sqrt(N) times one's, so the total's accuracy and size are
 * those of one micro-batch. It has the same limit, so that a gradient far above the last peak costs bytes, not truth.
 * The exponents before the first step know nothing; that step keeps the fine grid.
 */
export function gridShift(exponent: number, { microBatches, reduce, step }: Grid): number {
  const logN = 31 - Math.clz32(microBatches);
  const fine = 31 - Math.clz32(quantumLimit(microBatches)) - exponent;
  if (reduce === "raw32" || step === 0) return fine;
  return INT8_PEAK_BITS + HEADROOM_BITS - exponent - (logN >> 1);
}

/**
 * One micro-batch's gradient on the grid of the state's open step, cut to the limit; padding gives 0. `grad` is the mean
 * over its micro-batch. raw32: q = round-half-even(g·2^k). int8: q = floor(g·2^k + r), r uniform in (0, 1), so that the
 * expectation of q is g·2^k (stochastic rounding, Gupta et al. 2015).
 */
export function quantise(
  grad: Float32Array,
  state: Pick<StageState, "layout" | "step" | "exponents">,
  options: QuantiseOptions,
): Quantised {
  const { layout, exponents, step } = state;
  const values = options.out ?? new Int32Array(layout.size);
  assert(grad.length === layout.size && values.length === layout.size, "gradient and layout differ in size");
  const limit = quantumLimit(options.microBatches);
  const result = { values, saturated: 0, nonFinite: 0 };
  let [of, key]: [TensorLayout | null, number] = [null, 0];
  for (const { index, start, end, tensor } of blocksOf(layout)) {
    const scale = powerOfTwo(gridShift(exponents[index]!, { ...options, step }));
    const rule = { start, end, scale, limit, counts: result };
    if (options.reduce === "raw32") {
      roundBlock(grad, values, rule);
      continue;
    }
    if (tensor !== of) [of, key] = [tensor, roundingKey(tensor, step, options)];
    roundBlockAtRandom(grad, values, { ...rule, key, first: start - tensor.offset });
  }
  return result;
}

/**
 * Equal for every stage that holds the tensor, except that the two ends of a tied embedding draw different bits: with
 * equal ones their errors would add up instead of partly cancelling.
 */
function roundingKey(tensor: TensorLayout, step: number, options: QuantiseOptions): number {
  const headEnd = tensor.name === EMBEDDING_NAME && tensor.offset > 0 ? 1 : 0;
  let key = 0;
  for (const word of [options.seed, step, options.microBatch, nameWord(tensor.name), headEnd]) {
    key = mix32((key + GOLDEN) ^ word) | 0;
  }
  return key;
}

interface BlockRule {
  start: number;
  end: number;
  scale: number;
  limit: number;
  counts: { saturated: number; nonFinite: number };
}

function roundBlock(grad: Float32Array, out: Int32Array, rule: BlockRule): void {
  const { start, end, scale, limit } = rule;
  for (let i = start; i < end; i++) {
    const x = grad[i]! * scale;
    if (x >= -limit && x <= limit) out[i] = (x + ROUNDER) - ROUNDER;
    else out[i] = cut(x, rule);
  }
}

/** `first` is the block's first index within its tensor, even: two values share the halves of one mixed counter. */
function roundBlockAtRandom(
  grad: Float32Array,
  out: Int32Array,
  rule: BlockRule & { key: number; first: number },
): void {
  const { start, end, scale, limit, key, first } = rule;
  let counter = (key + Math.imul(first >>> 1, GOLDEN)) | 0;
  for (let i = start; i < end; i += 2) {
    const bits = mix32(counter);
    counter = (counter + GOLDEN) | 0;
    const x = grad[i]! * scale;
    if (x >= -limit && x <= limit) out[i] = Math.floor(x + ((bits & 0xffff) * BITS_SCALE + HALF_BIT));
    else out[i] = cut(x, rule);
    if (i + 1 === end) return;
    const y = grad[i + 1]! * scale;
    if (y >= -limit && y <= limit) out[i + 1] = Math.floor(y + ((bits >>> 16) * BITS_SCALE + HALF_BIT));
    else out[i + 1] = cut(y, rule);
  }
}

/** What becomes of a value outside ±limit. */
function cut(x: number, { limit, counts }: BlockRule): number {
  if (x - x !== 0) {
    counts.nonFinite++;
    return 0;
  }
  counts.saturated++;
  return x > 0 ? limit : -limit;
}
