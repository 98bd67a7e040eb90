// The trained state of one stage and its division into blocks that share a gradient exponent.
// Not arithmetic (quantise.ts, optimizer.ts). All arrays are flat in layout order; padding is 0 and stays 0, so two
// holders of a stage can compare bits.
import { findTensor, type StageLayout, type TensorLayout } from "../model/layout.ts";
import { assert } from "../wire/errors.ts";

/** Values that share one gradient exponent. Smaller follows magnitudes closer, larger costs less memory. */
export const BLOCK_VALUES = 1024;

/** What every holder of a stage must have bit for bit after every commit. */
export interface StageState {
  layout: StageLayout;
  /** Committed steps contained in the state. */
  step: number;
  params: Float32Array;
  /** First and second moments of AdamW. */
  m: Float32Array;
  v: Float32Array;
  /** One per block, tensor by tensor: the next gradient is expected within ±2^exponent. */
  exponents: Int16Array;
  /** With the schedule 2bw: the parameters one step before, and the exponents that came with them (delay.ts). */
  before?: { params: Float32Array; exponents: Int16Array };
}

/** A run of values inside one tensor: [start, end) in floats, `index` into the exponents. */
export interface Block {
  index: number;
  start: number;
  end: number;
  tensor: TensorLayout;
}

/** Number of exponents of a tensor of `size` values. */
export function blockCount(size: number): number {
  return Math.ceil(size / BLOCK_VALUES);
}

/** Number of exponents of a stage. */
export function stageBlockCount(layout: StageLayout): number {
  return layout.tensors.reduce((sum, tensor) => sum + blockCount(tensor.size), 0);
}

/** Visits all blocks in layout order; blocks never cross a tensor's end, so a cut into stages does not move them. */
export function* blocksOf(layout: StageLayout): Generator<Block> {
  let index = 0;
  for (const tensor of layout.tensors) {
    const end = tensor.offset + tensor.size;
    for (let start = tensor.offset; start < end; start += BLOCK_VALUES) {
      yield { index, start, end: Math.min(start + BLOCK_VALUES, end), tensor };
      index++;
    }
  }
}

/** State before the first step: zero moments, exponents 0 (gradients within ±1). Takes `params` over. */
export function createState(layout: StageLayout, params: Float32Array): StageState {
  assert(params.length === layout.size, `${params.length} parameters for a layout of ${layout.size}`);
  return {
    layout,
    step: 0,
    params,
    m: new Float32Array(layout.size),
    v: new Float32Array(layout.size),
    exponents: new Int16Array(stageBlockCount(layout)),
  };
}

/** An independent copy, such as an in-memory snapshot. */
export function cloneState(state: StageState): StageState {
  const { layout, step, params, m, v, exponents, before } = state;
  return {
    ...{ layout, step, params: params.slice(), m: m.slice(), v: v.slice() },
    exponents: exponents.slice(),
    ...(before && { before: { params: before.params.slice(), exponents: before.exponents.slice() } }),
  };
}

/** Where a tensor lies in any flat array of the stage: `array.subarray(start, end)`. */
export function tensorSlice(layout: StageLayout, name: string): { start: number; end: number } {
  const tensor = findTensor(layout, name);
  assert(tensor !== undefined, `the stage has no tensor ${name}`);
  return { start: tensor.offset, end: tensor.offset + tensor.size };
}
