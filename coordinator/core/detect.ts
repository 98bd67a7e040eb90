// When a silent peer counts as gone: not after a constant, but after far longer than its own heartbeats have been apart.
// A quick peer on a good network is missed within seconds, one that is starved by its own GPU gets the time it has shown to
// need. Pure. (Median and median absolute deviation, as robust against the odd stall as half of the samples.)

/** Heartbeat gaps remembered per peer: half a minute at two a second. */
export const GAPS_KEPT = 64;
/** With fewer gaps nothing is known about the peer yet, and the longest limit holds. */
const GAPS_NEEDED = 16;
/** Never less: a garbage collection or a burst of compiling must not look like a departure. */
const LIMIT_LEAST_MS = 5_000;
/** Deviations beyond the median that a gap may be long. */
const DEVIATIONS = 6;

/** Arrival of a peer's heartbeats. */
export interface Beats {
  at: number;
  gaps: number[];
}

export function beat(beats: Beats | undefined, now: number): Beats {
  if (beats === undefined) return { at: now, gaps: [] };
  return { at: now, gaps: [...beats.gaps, now - beats.at].slice(-GAPS_KEPT) };
}

/** Milliseconds of silence after which the peer is put out: least + median + 6 MAD, at most `mostMs`. */
export function silenceLimitMs(gaps: readonly number[], mostMs: number): number {
  if (gaps.length < GAPS_NEEDED) return mostMs;
  const middle = median(gaps);
  const deviation = median(gaps.map((gap) => Math.abs(gap - middle)));
  return Math.min(mostMs, LIMIT_LEAST_MS + middle + DEVIATIONS * deviation);
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[sorted.length >> 1]!;
}
