// What micro-batches took since the last look, from the moving averages that peers tell: the newest ones alone, so that a peer
// that has become slow shows at once. Pure. What must stay true: nobody's figures are used twice, and none of another cut.
import type { StageTimes } from "../../peer/wire/measures.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";

/** Weight of the newest micro-batch in peers' averages; while they are few it is 1 / count. See peer/op_meter.ts. */
export const AVERAGE_WEIGHT = 0.1;

/**
 * Mean seconds of a new micro-batch, F + B + W, of each peer that computes: of all its stages together, in each of which it has as
 * many. Null until each of them has told of new ones: half of the peers' figures would compare them with the other half's old ones.
 */
export function freshSeconds(s: RunCoreState): Record<string, number> | null {
  const { seen } = s.planning;
  const found: Record<string, number> = {};
  const looked: typeof seen = {};
  for (const { stage, peer } of computing(s)) {
    const times = timesOf(s, stage, s.peers[peer]);
    const key = `${peer}/${stage}`;
    const before = seen[key];
    const known = before?.cut === times?.cut ? before : undefined;
    if (times === null || times.microBatches <= (known?.microBatches ?? 0)) return null;
    const ms = times.forwardMs + times.backwardMs + times.weightGradMs;
    looked[key] = { cut: times.cut, microBatches: times.microBatches, ms };
    found[peer] = (found[peer] ?? 0) + newestMean(ms, times.microBatches, known) / 1000;
  }
  s.planning.seen = looked;
  return found;
}

function computing({ view }: RunCoreState): { stage: number; peer: string }[] {
  return (view?.stages ?? []).flatMap(({ index, replicas }) =>
    replicas.filter(({ microBatches }) => microBatches.length > 0).map(({ peer }) => ({ stage: index, peer }))
  );
}

function timesOf({ view }: RunCoreState, stage: number, peer: PeerRecord | undefined): StageTimes | null {
  const times = peer?.ops?.find((it) => it.stage === stage && it.cut === view!.cut);
  return times ?? null;
}

/** The average as it was before is taken out again. */
function newestMean(
  ms: number,
  count: number,
  before: { microBatches: number; ms: number } | undefined,
): number {
  if (before === undefined) return ms;
  let kept = 1;
  for (let n = before.microBatches + 1; n <= count && kept > 1e-6; n++) {
    kept *= 1 - Math.max(AVERAGE_WEIGHT, 1 / n);
  }
  // Rounding noise must not make a time of nothing, or of less.
  return Math.max(ms / 100, (ms - kept * before.ms) / (1 - kept));
}
