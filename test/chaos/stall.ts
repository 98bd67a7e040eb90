// How long a departure held a run up, from the times of its commits. Pure: times in, times out, all in milliseconds.

/** Gaps between commits that say what is normal. */
const NORMAL_GAPS = 25;
/** A departure late in a step shows in the next gap, and its repair may show in the one after. */
const TOUCHED_GAPS_LEAST = 3;

export interface Departure {
  /** When the peer was hurt, or began to leave. */
  fromMs: number;
  /** When the run had taken note of it. */
  untilMs: number;
}

/**
 * Excess of the gaps touched by a departure over the median gap before it, detection included; null if the run was not
 * under way before it or not again after it. Touched are all gaps that overlap the departure, and three at least.
 * @param commitsMs times of the run's commits, ascending
 */
export function stallMs(commitsMs: readonly number[], { fromMs, untilMs }: Departure): number | null {
  // The last commit before the departure begins the first gap that it touches.
  const first = commitsMs.findLastIndex((at) => at <= fromMs);
  if (first < 2) return null;
  const afterwards = commitsMs.findIndex((at) => at >= untilMs);
  if (afterwards < 0) return null;
  const last = Math.max(first + TOUCHED_GAPS_LEAST, afterwards);
  if (last >= commitsMs.length) return null;
  const before = commitsMs.slice(Math.max(0, first - NORMAL_GAPS), first + 1);
  const normal = quantile(before.slice(1).map((at, i) => at - before[i]!), 0.5)!;
  return Math.max(0, commitsMs[last]! - commitsMs[first]! - (last - first) * normal);
}

/** The smallest value that at least a share `q` of all reach or stay below; null of none. */
export function quantile(values: readonly number[], q: number): number | null {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)] ?? null;
}

export interface StallRow {
  kind: string;
  count: number;
  p50Ms: number;
  p95Ms: number;
  maxMs: number;
}

/** One row per kind, in order of first appearance; departures whose stall is unknown count for nothing. */
export function stallRows(stalls: readonly { kind: string; ms: number | null }[]): StallRow[] {
  const kinds = new Map<string, number[]>();
  for (const { kind, ms } of stalls) {
    if (ms !== null) kinds.set(kind, [...kinds.get(kind) ?? [], ms]);
  }
  return [...kinds].map(([kind, values]) => ({
    ...{ kind, count: values.length, p50Ms: quantile(values, 0.5)! },
    ...{ p95Ms: quantile(values, 0.95)!, maxMs: Math.max(...values) },
  }));
}
