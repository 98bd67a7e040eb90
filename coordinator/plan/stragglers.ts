// Which peers have become slower or faster than the plan believes, from what they report after each step. Pure: state in,
// verdicts out. What must stay true: noise of 20 % on single micro-batches never gives a verdict.

/** A peer must take this much more (or less) than believed. */
export const RATIO = 1.3;
/** And differ from the others by this many median absolute deviations: what slows everybody down moves nobody. */
export const DEVIATIONS = 4;
/** Peers that agree perfectly would make any difference look large; deviations below this share count as this much. */
const DEVIATION_MIN = 0.05;
/** Steps in a row that must agree. */
export const STEPS_IN_A_ROW = 3;

/** Plain data. */
export interface Watch {
  /** Ratios of the newest steps per peer, measured over believed, oldest first. */
  recent: Record<string, number[]>;
}

/** One peer's step: mean seconds of a micro-batch, F + B + W, measured and as the plan has it. */
export interface StepSample {
  peer: string;
  measured: number;
  believed: number;
}

export interface Verdict {
  peer: string;
  /** The factor on the believed seconds, from the middle one of the newest steps. */
  factor: number;
}

export function createWatch(): Watch {
  return { recent: {} };
}

/**
 * Takes the samples of one step and names the peers whose speed must be believed anew. After a verdict its peer starts over,
 * measured against the new belief. Peers without a sample (spares, shadows, those that are gone) are forgotten.
 */
export function observeStep(
  watch: Watch,
  samples: readonly StepSample[],
): { watch: Watch; verdicts: Verdict[] } {
  const recent: Record<string, number[]> = {};
  for (const { peer, measured, believed } of samples) {
    if (!(measured > 0 && believed > 0)) continue;
    recent[peer] = [...watch.recent[peer] ?? [], measured / believed].slice(-STEPS_IN_A_ROW);
  }
  const verdicts: Verdict[] = [];
  for (const [peer, ratios] of Object.entries(recent)) {
    if (ratios.length < STEPS_IN_A_ROW) continue;
    const others = Object.entries(recent).filter(([other]) => other !== peer).map(([, list]) => list.at(-1)!);
    if (
      ratios.every((ratio) => stands(ratio, others)) ||
      ratios.every((ratio) => stands(1 / ratio, others.map(inverse)))
    ) {
      verdicts.push({ peer, factor: median(ratios) });
    }
  }
  for (const { peer } of verdicts) delete recent[peer];
  return { watch: { recent }, verdicts };
}

/** Above the ratio, and above the others by their own spread. A lone peer has no others and is measured by itself. */
function stands(ratio: number, others: readonly number[]): boolean {
  if (ratio <= RATIO) return false;
  if (others.length === 0) return true;
  const centre = median(others);
  const spread = Math.max(DEVIATION_MIN * centre, median(others.map((other) => Math.abs(other - centre))));
  return ratio > centre * RATIO && ratio > centre + DEVIATIONS * spread;
}

function inverse(value: number): number {
  return 1 / value;
}

/** The middle one, or the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1]! + sorted[sorted.length >> 1]!) / 2;
}
