// When a silent peer is suspected, and when it counts as gone: not after a constant, but after longer than its own heartbeats
// have been apart. Pure. (Median and median absolute deviation as in hivemind's issue 676: robust against half of the samples
// being odd.) What must stay true: time in which the coordinator itself stood still is never a peer's silence.

/** Heartbeat gaps remembered per peer: half a minute at four a second. */
export const GAPS_KEPT = 128;
/** With fewer gaps nothing is known about the peer yet, and the longest limit holds: two seconds of beats. */
export const GAPS_NEEDED = 8;
/** Beyond median and deviations, until suspected: three peers on two cores, compiling and training, were never so late. */
const SUSPECT_MS = 500;
/** The same until put out. Twice the suspicion, since a false alarm costs a peer's return and a re-send, if no step. */
const EVICT_MS = 1_000;
/** Deviations beyond the median that a gap may be long. */
const DEVIATIONS = 6;
/** A gap that did end may come again: who computes on the thread that sends has a few very long ones and a short median. */
const LONGEST_FACTOR = 2;
/** Who was silent for longer before it had anything to compile is not silent because it compiles: eight beats. */
const SILENT_BEFORE_MS = 2_000;
/** Most time between two events that counts as listening; a quarter of a second lies between two ticks. */
const LISTENING_MS_MAX = 500;

/**
 * How long the coordinator has listened: a clock that stands still while the coordinator does (a closed lid, a starved
 * process) and that neither jumps nor goes back when the wall clock does.
 */
export interface Ear {
  /** Milliseconds of listening so far; the time of everything below. */
  ms: number;
  /** Wall clock at the newest event. */
  at: number;
}

/** To be called with the time of every event, ticks included. */
export function listen(ear: Ear | null, now: number): Ear {
  if (ear === null) return { ms: 0, at: now };
  const passed = Math.min(Math.max(0, now - ear.at), LISTENING_MS_MAX);
  return { ms: ear.ms + passed, at: now };
}

/** Arrival of a peer's heartbeats, in listening time. */
export interface Beats {
  at: number;
  gaps: number[];
  /** Since when the peer compiles or loads, as far as the coordinator knows; absent while it does not. */
  busyAt?: number;
}

/**
 * @param ms listening time of the arrival
 * @param busy the peer compiles or loads: what it is like then says nothing of its training
 */
export function beat(beats: Beats | undefined, ms: number, busy = false): Beats {
  if (beats === undefined) return { at: ms, gaps: [] };
  if (busy) return { ...beats, at: ms };
  return { at: ms, gaps: [...beats.gaps, Math.max(0, ms - beats.at)].slice(-GAPS_KEPT) };
}

export interface SilenceLimits {
  suspectMs: number;
  evictMs: number;
}

/**
 * suspect: 500 ms + median + 6 MAD, and never within the longest gap remembered. evict: 1 s + median + 6 MAD, and never within
 * twice the longest gap. Both at most `mostMs`, which also holds while nothing is known.
 */
export function silenceLimits(gaps: readonly number[], mostMs: number): SilenceLimits {
  if (gaps.length < GAPS_NEEDED) return { suspectMs: mostMs, evictMs: mostMs };
  const middle = median(gaps);
  const usual = middle + DEVIATIONS * median(gaps.map((gap) => Math.abs(gap - middle)));
  const longest = Math.max(...gaps);
  return {
    suspectMs: Math.min(mostMs, Math.max(SUSPECT_MS + usual, longest)),
    evictMs: Math.min(mostMs, Math.max(EVICT_MS + usual, LONGEST_FACTOR * longest)),
  };
}

/** alive; suspect: shown, and its work may be given to others as well; gone: to be put out. */
export type Verdict = "alive" | "suspect" | "gone";

/**
 * @param ms listening time now
 * @param patience `mostMs`: the longest limit; `busyMs`: the only one for a peer that fell silent while it compiled or loaded
 */
export function judge(beats: Beats, ms: number, patience: { mostMs: number; busyMs: number }): Verdict {
  const silence = ms - beats.at;
  const { busyAt } = beats;
  if (busyAt !== undefined && busyAt - beats.at <= SILENT_BEFORE_MS) {
    return silence > patience.busyMs ? "gone" : "alive";
  }
  const { suspectMs, evictMs } = silenceLimits(beats.gaps, patience.mostMs);
  if (silence > evictMs) return "gone";
  return silence > suspectMs ? "suspect" : "alive";
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[sorted.length >> 1]!;
}
