// Cuts the layers into contiguous stages whose slowest is as fast as can be, with memory as a limit. Pure; which peers form
// a stage is planner_search.ts's and planner_exact.ts's business.
import { ShoalError } from "../../peer/wire/errors.ts";

/** Layers beyond this are a mistake in the model description, and the search is quadratic in them. */
export const LAYERS_MAX = 1024;
/** Improvements smaller than this are rounding noise. */
const EPSILON = 1e-12;

/** Layers [firstLayer, endLayer). */
export interface LayerRange {
  firstLayer: number;
  endLayer: number;
}

/**
 * Contiguous split of layers of equal cost over `throughput.length` stages, at least one layer each, that minimises the
 * slowest stage's layers / throughput, and among those prefers even times. Null if no split fits.
 * @param throughput layers per second of each stage (of all its replicas together), any common unit, positive
 * @param fits whether stage s may hold layers [firstLayer, endLayer)
 * Throws `bad-config` if there are fewer layers than stages or a throughput is not positive.
 */
export function splitWithin(
  nLayer: number,
  throughput: readonly number[],
  fits: (stage: number, firstLayer: number, endLayer: number) => boolean,
): LayerRange[] | null {
  checkSplit(nLayer, throughput);
  const seconds = (s: number, i: number, j: number) => fits(s, i, j) ? (j - i) / throughput[s]! : Infinity;
  return bestSplit(nLayer, throughput.length, seconds);
}

/**
 * The split with the least slowest stage, given what layers [i, j) take on a stage; infinite if they do not fit.
 * Source: the one-dimensional dynamic programme of PipeDream (Narayanan et al. 2019), O(P * L^2).
 */
export function bestSplit(
  nLayer: number,
  stages: number,
  seconds: (stage: number, firstLayer: number, endLayer: number) => number,
): LayerRange[] | null {
  // best[s][j]: layers [0, j) on stages 0 .. s, with the first layer of stage s.
  const best: Split[][] = [];
  for (let s = 0; s < stages; s++) {
    const before = best[s - 1] ?? [{ slowest: 0, squares: 0, from: 0 }];
    const cut = (_: unknown, j: number) => bestCut(before, j, (i) => seconds(s, i, j));
    best.push(Array.from({ length: nLayer + 1 }, cut));
  }
  if (best.at(-1)![nLayer]!.slowest === Infinity) return null;
  const ranges: LayerRange[] = [];
  for (let s = stages - 1, endLayer = nLayer; s >= 0; s--) {
    const firstLayer = best[s]![endLayer]!.from;
    ranges.unshift({ firstLayer, endLayer });
    endLayer = firstLayer;
  }
  return ranges;
}

interface Split {
  slowest: number;
  squares: number;
  from: number;
}

const IMPOSSIBLE: Split = { slowest: Infinity, squares: Infinity, from: 0 };

/** Where the last stage of [0, j) begins; `before[i]` is the best of [0, i) on the stages before it. */
function bestCut(before: readonly Split[], j: number, seconds: (i: number) => number): Split {
  let best = IMPOSSIBLE;
  for (let i = 0; i < j && i < before.length; i++) {
    const { slowest, squares } = before[i]!;
    if (slowest === Infinity) continue;
    const time = seconds(i);
    if (time === Infinity) continue;
    const split = { slowest: Math.max(slowest, time), squares: squares + time * time, from: i };
    const closer = split.slowest < best.slowest + EPSILON && split.squares < best.squares - EPSILON;
    if (split.slowest < best.slowest - EPSILON || closer) best = split;
  }
  return best;
}

function checkSplit(nLayer: number, throughput: readonly number[]): void {
  if (throughput.length < 1 || nLayer < throughput.length || nLayer > LAYERS_MAX) {
    throw new ShoalError(
      "bad-config",
      `cannot cut ${nLayer} layers into ${throughput.length} stages; give each stage a layer, at most ${LAYERS_MAX} in all`,
    );
  }
  for (const value of throughput) {
    if (!(value > 0 && value < Infinity)) {
      throw new ShoalError("bad-config", `throughputs must be positive and finite, got ${value}`);
    }
  }
}
