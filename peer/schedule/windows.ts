// How many micro-batches may be under way: latency-aware in-flight caps, and the spans of the fixed orders
// when stages have several replicas. Pure arithmetic on a plan; every peer of a view computes the same answer.
import type { ScheduleId } from "../wire/run.ts";

/** Forwards that cover a round trip are raised by this many, so that jitter does not starve the bottleneck. */
export const INFLIGHT_SLACK = 2;

/** One stage's share of a step: most micro-batches in flight per replica, and each replica's own list. */
export interface StageLoad {
  cap: number;
  lists: readonly (readonly number[])[];
}

/**
 * Forwards each stage must have in flight so that the bottleneck never waits for a round trip:
 * K_p = ceil((sum of t_j for j >= p, plus 2 * hops after p) / u) + slack, at most N,
 * with u the slowest of the stages and of the transfers.
 * @param t seconds of F+B+W per micro-batch, one per stage
 * @param hops one-way seconds (latency and transfer) between stage s and s+1; one fewer than `t`
 * @param N micro-batches of a step
 * @param options `slack` forwards on top (default INFLIGHT_SLACK); `transfers`, seconds that one message occupies
 * the link after stage s (default none): a slow link needs fewer forwards in flight than its hops suggest
 */
export function inflightCaps(
  t: readonly number[],
  hops: readonly number[],
  N: number,
  options: { slack?: number; transfers?: readonly number[] } = {},
): number[] {
  const { slack = INFLIGHT_SLACK, transfers = [] } = options;
  const bottleneck = Math.max(...t, ...transfers, Number.MIN_VALUE);
  const caps = new Array<number>(t.length).fill(1);
  let roundTrip = 0;
  for (let p = t.length - 1; p >= 0; p--) {
    roundTrip += t[p]! + 2 * (p < t.length - 1 ? hops[p] ?? 0 : 0);
    // Sums of measured times carry rounding noise, which must not raise the cap by one.
    const needed = Math.ceil(roundTrip / bottleneck - 1e-9) + slack;
    // A short pipeline of unequal stages may need less than a forward per stage, which would starve it.
    caps[p] = Math.max(1, Math.min(N, Math.max(needed, t.length - p)));
  }
  return caps;
}

/** Spans of `1f1b` or `gpipe`, one per stage, that fit together whatever the caps and shares; null for any other schedule. */
export function fixedSpans(schedule: ScheduleId, load: readonly StageLoad[]): number[] | null {
  if (schedule === "1f1b") return windows1f1b(load);
  if (schedule !== "gpipe") return null;
  const chunk = gpipeChunk(load);
  return load.map(() => chunk);
}

/**
 * Spans of `1f1b` per stage: the widest window of micro-batch numbers in which no replica of the stage holds
 * more than min(P - p, cap). A span that grew from one stage to the next would make a later stage wait for a
 * forward that an earlier one may only send after that later stage's own backward, so it is cut to never grow.
 */
export function windows1f1b(load: readonly StageLoad[]): number[] {
  let widest = stepSize(load);
  return load.map((stage, p) => {
    const held = Math.min(load.length - p, stage.cap);
    for (const list of stage.lists) widest = Math.min(widest, widestWindow(list, held));
    return Math.max(1, widest);
  });
}

/**
 * Chunk of `gpipe`, one for all stages (unequal chunks can wait for one another for ever): the largest for
 * which no replica holds more than its cap in any chunk. The whole step if everything fits: plain GPipe.
 */
export function gpipeChunk(load: readonly StageLoad[]): number {
  for (let chunk = stepSize(load); chunk > 1; chunk--) {
    if (load.every((stage) => stage.lists.every((list) => fitsChunks(list, { chunk, cap: stage.cap })))) {
      return chunk;
    }
  }
  return 1;
}

function stepSize(load: readonly StageLoad[]): number {
  let size = 1;
  for (const stage of load) for (const list of stage.lists) size = Math.max(size, (list.at(-1) ?? 0) + 1);
  return size;
}

/** Largest w such that no w consecutive numbers contain more than `held` of the list. */
function widestWindow(list: readonly number[], held: number): number {
  let widest = Number.MAX_SAFE_INTEGER;
  for (let i = 0; i + held < list.length; i++) widest = Math.min(widest, list[i + held]! - list[i]!);
  return widest;
}

function fitsChunks(list: readonly number[], limit: { chunk: number; cap: number }): boolean {
  for (let i = 0; i + limit.cap < list.length; i++) {
    if (Math.floor(list[i]! / limit.chunk) === Math.floor(list[i + limit.cap]! / limit.chunk)) return false;
  }
  return true;
}
