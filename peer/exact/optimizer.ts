// From a step's integer total to the next state: mean, clip by the global norm, AdamW, next exponents.
// Not a fast path: every f32 operation is rounded by Math.fround and nothing else of Math but sqrt (exact in IEEE) is
// used, so that all holders get the same bits in any engine.
import { assert } from "../wire/errors.ts";
import type { ReduceId, RunConfig } from "../wire/run.ts";
import { ceilLog2, powerOfTwo } from "./power.ts";
import { FINEST_EXPONENT, type Grid, gridShift, HEADROOM_BITS } from "./quantise.ts";
import { blocksOf, type StageState } from "./state.ts";

/** Exponents stay within ±60: larger ones would overflow f32 when squared, smaller ones carry no information. */
export const EXPONENT_LIMIT = 60;
/** Norms are multiples of 2^-30, so that their double sums are exact below 2^23, whatever the cut into stages. */
const NORM_GRID = powerOfTwo(30);
const DEFAULT_EPS = 1e-8;

const fround = Math.fround;

export interface StepOptions {
  /** Micro-batches in the step (N). */
  microBatches: number;
  lr: number;
  /** Sum of totalNormSq over all stages, a tied tensor once. */
  gradNormSq: number;
  config: Pick<RunConfig, "beta1" | "beta2" | "weight_decay" | "grad_clip" | "reduce">;
  /** Added to the root of the second moment; default 1e-8. */
  eps?: number;
  /** Committed steps contained in the exponents that the total was made with; default the state's (delay.ts has others). */
  version?: number;
}

/** What is the same for all values of a step; every field is an f32 value. */
export interface Factors {
  clip: number;
  beta1: number;
  rest1: number;
  beta2: number;
  rest2: number;
  /** lr / (1 - beta1^t): corrects the first moment's bias. */
  rate: number;
  /** 1 / sqrt(1 - beta2^t): corrects the second moment's. */
  rootScale: number;
  decay: number;
  eps: number;
}

/**
 * Squared norm of the step's mean gradient, in doubles, tensor by tensor, each rounded to a multiple of 2^-30.
 * `skip` names tensors counted elsewhere: the tied embedding at one of its two ends.
 */
export function totalNormSq(
  state: Pick<StageState, "layout" | "step" | "exponents">,
  total: Int32Array,
  options: { microBatches: number; reduce: ReduceId; skip?: ReadonlySet<string> },
): number {
  const { microBatches, reduce, skip } = options;
  const grid = { microBatches, reduce, step: state.step };
  const sums = new Map<string, number>();
  for (const { index, start, end, tensor } of blocksOf(state.layout)) {
    if (skip?.has(tensor.name)) continue;
    const unit = meanUnit(state.exponents[index]!, grid);
    let sum = 0;
    for (let i = start; i < end; i++) {
      const g = total[i]! * unit;
      sum += g * g;
    }
    sums.set(tensor.name, (sums.get(tensor.name) ?? 0) + sum);
  }
  let norm = 0;
  for (const sum of sums.values()) norm += onNormGrid(sum);
  return norm;
}

/** A tensor's share of the squared norm as it is added to the others'. */
export function onNormGrid(sum: number): number {
  return Math.round(sum * NORM_GRID) / NORM_GRID;
}

/**
 * Applies one step in place. AdamW (Loshchilov & Hutter 2019) with decoupled decay on matrices only, bias corrections by
 * repeated multiplication. Returns the factor that the gradient was clipped by (1 = not clipped).
 */
export function applyTotal(state: StageState, total: Int32Array, options: StepOptions): number {
  assert(total.length === state.layout.size, `a total of ${total.length} values for ${state.layout.size}`);
  const factors = stepFactors(state.step + 1, options);
  const { microBatches, config: { reduce }, version = state.step } = options;
  const grid = { microBatches, reduce, step: version };
  for (const { index, start, end, tensor } of blocksOf(state.layout)) {
    const exponent = state.exponents[index]!;
    const unit = meanUnit(exponent, grid);
    const decay = tensor.shape.length === 2 ? factors.decay : 0;
    const peak = updateBlock(state, total, { ...factors, start, end, unit, decay });
    state.exponents[index] = nextExponent(exponent, peak * unit, grid);
  }
  state.step++;
  return factors.clip;
}

/**
 * Passes over a step whose gradient overflowed somewhere, in place: parameters and moments stay, the step is counted, and the
 * exponents follow the total as in any step, or the guess that they begin with would be taken for knowledge.
 */
export function passOver(
  state: StageState,
  total: Int32Array,
  { microBatches, config: { reduce } }: Pick<StepOptions, "microBatches"> & { config: { reduce: ReduceId } },
): void {
  assert(total.length === state.layout.size, `a total of ${total.length} values for ${state.layout.size}`);
  const grid = { microBatches, reduce, step: state.step };
  for (const { index, start, end } of blocksOf(state.layout)) {
    const exponent = state.exponents[index]!;
    let peak = 0;
    for (let i = start; i < end; i++) peak = Math.max(peak, Math.abs(total[i]!));
    state.exponents[index] = nextExponent(exponent, peak * meanUnit(exponent, grid), grid);
  }
  state.step++;
}

/**
 * e' = max(ceil(log2(peak)) + 3, e - 1) within ±60; the peak is the block's largest |mean gradient|. For int8 it does not
 * fall below FINEST_EXPONENT, and the first step, whose own exponents were a guess, sets it without the slow fall.
 */
export function nextExponent(exponent: number, peak: number, grid: Pick<Grid, "reduce" | "step">): number {
  const int8 = grid.reduce === "int8";
  const least = leastExponent(grid.reduce);
  const fallen = int8 && grid.step === 0 ? least : exponent - 1;
  const wanted = peak > 0 ? Math.max(ceilLog2(peak) + HEADROOM_BITS, fallen) : fallen;
  return Math.max(least, Math.min(EXPONENT_LIMIT, wanted));
}

/** Exponents of blocks never fall below this. */
export function leastExponent(reduce: ReduceId): number {
  return reduce === "int8" ? FINEST_EXPONENT : -EXPONENT_LIMIT;
}

/** What a total of 1 means in the mean gradient: 2^-k / N. */
function meanUnit(exponent: number, grid: Grid): number {
  return powerOfTwo(-gridShift(exponent, grid)) / grid.microBatches;
}

/** The factors of the step that makes a state of `step` committed steps. */
export function stepFactors(step: number, options: StepOptions): Factors {
  const { lr, gradNormSq, config } = options;
  assert(gradNormSq >= 0 && gradNormSq < Infinity, `squared gradient norm ${gradNormSq}`);
  const norm = Math.sqrt(gradNormSq);
  const clips = config.grad_clip > 0 && norm > config.grad_clip;
  const beta1 = fround(config.beta1);
  const beta2 = fround(config.beta2);
  return {
    clip: fround(clips ? config.grad_clip / norm : 1),
    beta1,
    rest1: fround(1 - beta1),
    beta2,
    rest2: fround(1 - beta2),
    rate: fround(lr / (1 - integerPower(beta1, step))),
    rootScale: fround(1 / Math.sqrt(1 - integerPower(beta2, step))),
    decay: fround(lr * config.weight_decay),
    eps: fround(options.eps ?? DEFAULT_EPS),
  };
}

/** base^n by n multiplications: Math.pow may differ in the last bit between engines. */
function integerPower(base: number, n: number): number {
  let power = 1;
  for (let i = 0; i < n && power !== 0; i++) power *= base;
  return power;
}

type BlockStep = Factors & { start: number; end: number; unit: number };

/** Returns the largest |total| of the block. `unit` is what 1 means in the mean gradient. */
function updateBlock(state: StageState, total: Int32Array, step: BlockStep): number {
  const { params, m, v } = state;
  const { end, unit, clip, beta1, rest1, beta2, rest2, rate, rootScale, decay, eps } = step;
  let peak = 0;
  for (let i = step.start; i < end; i++) {
    const q = total[i]!;
    if (q > peak) peak = q;
    else if (-q > peak) peak = -q;
    const g = fround(fround(q * unit) * clip);
    const m1 = fround(fround(beta1 * m[i]!) + fround(rest1 * g));
    const v1 = fround(fround(beta2 * v[i]!) + fround(fround(rest2 * g) * g));
    const root = fround(fround(Math.sqrt(v1)) * rootScale);
    const direction = fround(m1 / fround(root + eps));
    const kept = fround(params[i]! - fround(decay * params[i]!));
    m[i] = m1;
    v[i] = v1;
    params[i] = fround(kept - fround(rate * direction));
  }
  return peak;
}
