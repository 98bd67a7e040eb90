// The operations of the GPU's optimizer: sum a gradient, facts of the sum, one step, the state back. Plans only, over however
// many parts the parameters are cut into; what calls them is wgsl_optimizer.ts. What must stay true: the parts of an array
// are taken in order, and nothing of a gradient's size is read back.
import {
  adamwSpec,
  gradientAccumulateSpec,
  gradientExponentsSpec,
  gradientNormsSpec,
  gradientStatsSpec,
} from "../gpu/kernels/optimizer.ts";
import type { DispatchPlan, OperationPlan } from "../gpu/program.ts";
import type { TensorRequest } from "../gpu/arena.ts";
import { type Block, blocksOf, stageBlockCount } from "../exact/state.ts";
import { GROUP_ALIGNMENT } from "../model/layout.ts";
import {
  COUNTER_COUNT,
  normChunks,
  NORMS_AT,
  OPTIMIZER_SIDES,
  optimizerTensors,
} from "../model/optimizer_tensors.ts";
import type { StagePlanning } from "./wgsl_names.ts";
import { type ParamPart, type ParamSide, paramTensors, partName } from "./wgsl_params.ts";

const VECTOR = 4;
const WORD_BYTES = 4;
const COUNTERS = { tensor: "facts", offset: 0, bytes: COUNTER_COUNT * WORD_BYTES };
/** What is read back of a state. One operation each, so that staging needs no more than for a gradient. */
const STATE_SIDES = ["params", "m", "v"] as const;
export type StateSide = typeof STATE_SIDES[number];

export const CLEAR_SUM = "clear sum";
export const NORM = "norm";
export const STEP = "step";
export const PASS_OVER = "pass over";
export const READ_EXPONENTS = "read exponents";

export function addGradientName(slot: number): string {
  return `add gradient ${slot}`;
}

export function readName(side: StateSide): string {
  return `read ${side}`;
}

/** What the stage's arena holds beside the tensors of F, B and W. */
export function optimizerRequests(p: StagePlanning): TensorRequest[] {
  return [...OPTIMIZER_SIDES.flatMap((side) => paramTensors(p.parts, side)), ...optimizerTensors(p.layout)];
}

/** W, with its gradient added to the sum instead of read back. */
export function addGradient(p: StagePlanning, { clears = [], dispatches }: OperationPlan): OperationPlan {
  const accumulate = p.parts.map((part): DispatchPlan => ({
    spec: gradientAccumulateSpec,
    params: { count: part.size / VECTOR },
    tensors: { gradient: partName("gradient", part), sum: partName("sum", part), counters: COUNTERS },
  }));
  return { clears, dispatches: [...dispatches, ...accumulate] };
}

/** Everything else by name. */
export function optimizerOperations(p: StagePlanning): Map<string, OperationPlan> {
  const all = (side: ParamSide) => p.parts.map((part) => partName(side, part));
  return new Map<string, OperationPlan>([
    [CLEAR_SUM, { clears: [...all("sum"), COUNTERS], dispatches: [] }],
    [NORM, { dispatches: normDispatches(p), readback: "facts" }],
    [STEP, { dispatches: [exponentsDispatch(p), ...stepDispatches(p)] }],
    [PASS_OVER, { dispatches: [exponentsDispatch(p)] }],
    [READ_EXPONENTS, { dispatches: [], readback: "exponents" }],
    ...STATE_SIDES.map((side): [string, OperationPlan] => [
      readName(side),
      { dispatches: [], readback: all(side) },
    ]),
  ]);
}

function normDispatches(p: StagePlanning): DispatchPlan[] {
  const blocks = [...blocksOf(p.layout)];
  const stats = p.parts.map((part): DispatchPlan => ({
    spec: gradientStatsSpec,
    params: { ...blocksIn(blocks, part), partBegin: part.offset, partEnd: part.offset + part.size },
    tensors: {
      ...{ blocks: "blocks", factors: "factors", sum: partName("sum", part) },
      ...{ squares: "squares", peaks: "peaks" },
    },
  }));
  const count = normChunks(p.layout).length;
  const norms = { tensor: "facts", offset: NORMS_AT * WORD_BYTES, bytes: count * WORD_BYTES };
  const tensors = { chunks: "chunks", squares: "squares", norms };
  return [...stats, { spec: gradientNormsSpec, params: { count }, tensors }];
}

/** Blocks with values in the part; the first may begin, and the last end, outside it. */
function blocksIn(blocks: readonly Block[], { offset, size }: ParamPart) {
  const inside = blocks.filter(({ start, end }) => start < offset + size && end > offset);
  return { firstBlock: inside[0]?.index ?? 0, blocks: inside.length };
}

function stepDispatches(p: StagePlanning): DispatchPlan[] {
  return p.parts.map((part): DispatchPlan => ({
    spec: adamwSpec,
    params: { count: part.size / VECTOR, granule: part.offset / GROUP_ALIGNMENT },
    tensors: {
      ...{ factors: "factors", decays: "decays", sum: partName("sum", part) },
      ...{ weights: partName("params", part), m: partName("m", part), v: partName("v", part) },
    },
  }));
}

function exponentsDispatch(p: StagePlanning): DispatchPlan {
  const tensors = { factors: "factors", peaks: "peaks", exponents: "exponents" };
  return { spec: gradientExponentsSpec, params: { count: stageBlockCount(p.layout) }, tensors };
}
