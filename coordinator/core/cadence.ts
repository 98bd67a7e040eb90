// How many steps lie between two snapshots in peers' memory. Pure: time is an argument. Young's first-order optimum
// (Young 1974; Daly 2006): an interval of sqrt(2 * cost / rate) seconds balances what snapshots cost against what a loss of
// all live holders of a stage would redo.

/** More often, snapshots would hardly end before the next begins; more seldom, the gradient log grows without need. */
export const INTERVAL_STEPS_MIN = 20;
export const INTERVAL_STEPS_MAX = 200;
/**
 * What is assumed before anything was seen, as if it had been: one departure in half an hour of one peer's presence. Lent
 * machines leave about that often when a lesson ends; an hour of real presence outweighs it two to one.
 */
export const PRIOR_DEPARTURES = 1;
export const PRIOR_PEER_SECONDS = 1_800;
/** What was seen counts half after so long: a run that has outlived the lesson is quieter. */
const HALF_LIFE_S = 3_600;
/** Longest presence counted at once; a longer gap between two looks is a clock that jumped or a machine that slept. */
const GAP_S_MAX = 60;
/** Seconds until a lost holder is replaced, unmeasured: detection, a view, one stage's state over a home connection. */
export const REPAIR_PRIOR_S = 30;
/** Seconds that one snapshot costs the training, unmeasured: a state is copied and cut on a thread that also computes. */
export const SNAPSHOT_COST_PRIOR_S = 0.05;

/** What has been seen of departures, fading. Departures that were asked for count too: they take a holder away all the same. */
export interface Departures {
  departures: number;
  peerSeconds: number;
  /** Milliseconds of the newest look; null before the first. */
  atMs: number | null;
}

export const NO_DEPARTURES: Departures = { departures: 0, peerSeconds: 0, atMs: null };

/** Counts the time since the last look for `peers` that were present, and forgets a little. Call it before each change. */
export function observePresence(seen: Departures, peers: number, nowMs: number): Departures {
  const passed = seen.atMs === null ? 0 : Math.min(Math.max(0, (nowMs - seen.atMs) / 1000), GAP_S_MAX);
  const left = 2 ** (-passed / HALF_LIFE_S);
  return {
    departures: seen.departures * left,
    peerSeconds: seen.peerSeconds * left + peers * passed,
    atMs: nowMs,
  };
}

/** One of `peers` present has left. */
export function observeDeparture(seen: Departures, peers: number, nowMs: number): Departures {
  const now = observePresence(seen, peers, nowMs);
  return { ...now, departures: now.departures + 1 };
}

/** Departures per peer and second: the posterior mean with the prior above (gamma prior of a Poisson process). */
export function departureRate(
  { departures, peerSeconds }: Pick<Departures, "departures" | "peerSeconds">,
): number {
  return (PRIOR_DEPARTURES + departures) / (PRIOR_PEER_SECONDS + peerSeconds);
}

/**
 * Rate per second at which a stage loses all its live holders. One of h leaves at h * rate; that is fatal if each of the
 * others leaves before the repair ends, which one of the j that are left does with probability min(1, j * rate * repair). For
 * two holders this is the 2 * rate^2 * repair of mirrored disks; without a holder it is for ever lost.
 */
export function stageLossRate(rate: number, holders: number, repairS: number): number {
  if (holders < 1) return Infinity;
  let loss = holders * rate;
  for (let left = holders - 1; left > 0; left--) loss *= Math.min(1, left * rate * repairS);
  return loss;
}

export interface CadenceInput {
  seen: Pick<Departures, "departures" | "peerSeconds">;
  /** Live holders of each stage, shadows included. */
  holders: readonly number[];
  /** Measured seconds until a lost holder was replaced; null = not yet seen. */
  repairS: number | null;
  /** Measured seconds by which one snapshot lengthened the training; null = not yet seen. */
  snapshotCostS: number | null;
  /** Median seconds of a step; null before the first. */
  stepS: number | null;
}

export interface Cadence {
  /** Steps between snapshots, INTERVAL_STEPS_MIN to INTERVAL_STEPS_MAX. */
  steps: number;
  /** Expected losses of all holders of some stage, per second; stages are added up, which is never too little. */
  lossRate: number;
}

/** Steps between snapshots: ceil(sqrt(2 * cost / loss rate) / step time) within its bounds. */
export function snapshotCadence(input: CadenceInput): Cadence {
  const { holders, stepS } = input;
  const rate = departureRate(input.seen);
  const repair = positive(input.repairS, REPAIR_PRIOR_S);
  const cost = positive(input.snapshotCostS, SNAPSHOT_COST_PRIOR_S);
  const lossRate = holders.reduce((sum, count) => sum + stageLossRate(rate, count, repair), 0);
  if (stepS === null || !(stepS > 0) || holders.length === 0) return { steps: INTERVAL_STEPS_MIN, lossRate };
  const best = Math.ceil(Math.sqrt(2 * cost / lossRate) / stepS);
  return { steps: Math.min(INTERVAL_STEPS_MAX, Math.max(INTERVAL_STEPS_MIN, best)), lossRate };
}

/** A measurement of nothing, or a broken one, is none. */
function positive(value: number | null, prior: number): number {
  return value !== null && value > 0 && Number.isFinite(value) ? value : prior;
}
