// What departures cost, as numbers: how long the next commit was late, how many micro-batches went to others, how many steps
// are done again, and the sums that peers report. Pure; mutates the turn's state. The stall is the excess over a usual step,
// detection included: it counts from the commit before. What must stay true: no sum goes down when a peer goes.
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { DepartureStatus, RecoveryStatus, StallSummary } from "../../peer/wire/status.ts";
import type { Departure, PeerRecord, RunCoreState } from "./run_state.ts";
import { safetyOf, snapshotStep, stepsAtRisk } from "./safety.ts";
import type { Turn } from "./turn.ts";

/** Departures kept for the pages and for the quantiles; metrics.jsonl keeps all. */
const DEPARTURES_MAX = 100;
/** Of them, those that a page gets with each status. */
const DEPARTURES_TOLD = 20;
/** Suspects that a page gets with each status. */
const SUSPECTS_TOLD = 20;
/** What peers count by themselves. */
const COUNTERS = ["recomputed", "recoveryBytes", "fenced", "snapshotBytes", "snapshotSpared"] as const;

/** A member of the view is gone; the step that is open now will tell what it cost. */
export function noteDeparture(turn: Turn, peer: string, how: string): void {
  const { s } = turn;
  for (const earlier of s.departures) settle(s, earlier);
  const { reassigned, stepsRedone } = s;
  const costs = { stallMs: null, reassigned: 0, lost: 0, before: { reassigned, stepsRedone } };
  s.departures.push({ peer, how, step: s.committed, at: turn.now, from: stallsFrom(turn), ...costs });
  s.costs.departures++;
  while (s.departures.length > DEPARTURES_MAX) s.departures.shift();
}

/** An evaluation and a pause are no stall; before the first commit there is no usual pace. */
function stallsFrom({ s, now }: Turn): number | null {
  if (s.phase === "held" || s.lastCommitAt === 0) return null;
  return s.round?.pass === "eval" ? now : s.lastCommitAt;
}

/** What followed a departure until now is its cost; what follows later belongs to the next one. */
function settle(s: RunCoreState, departure: Departure): void {
  Object.assign(departure, costOf(s, departure), { before: null });
}

function costOf(s: RunCoreState, departure: Departure): { reassigned: number; lost: number } {
  const { before, reassigned, lost } = departure;
  if (before === null) return { reassigned, lost };
  return { reassigned: s.reassigned - before.reassigned, lost: s.stepsRedone - before.stepsRedone };
}

/** A step is committed that took so long: departures during it have their stall. */
export function accountStalls(turn: Turn, tookMs: number): void {
  const { s, now } = turn;
  for (const departure of s.departures) {
    if (departure.stallMs !== null) continue;
    settle(s, departure);
    const took = departure.from === null ? tookMs : now - departure.from;
    const stallMs = departure.stallMs = Math.max(0, Math.round(took - s.stepMs));
    s.costs.stalls++;
    s.costs.stallMs += stallMs;
    const { peer, how, step, reassigned, lost: steps_lost } = departure;
    const costs = { stall_ms: stallMs, reassigned, steps_lost };
    const totals = { recomputed_total: s.costs.recomputed, recovery_bytes_total: recoveryBytes(s) };
    turn.out.push({ do: "report", line: { event: "departure", peer, how, step, ...costs, ...totals } });
  }
}

/** Takes over what a peer counts. Who counts less than before has begun anew. */
export function countCosts(
  s: RunCoreState,
  peer: PeerRecord,
  message: PeerMessage & { type: "heartbeat" },
): void {
  const { recomputed, recoveryBytes, retainedBytes, fenced = 0 } = message;
  const { snapshotBytes = 0, snapshotSpared = 0 } = message;
  const told = { recomputed, recoveryBytes, fenced, snapshotBytes, snapshotSpared };
  for (const name of COUNTERS) {
    s.costs[name] += told[name] < peer[name] ? told[name] : told[name] - peer[name];
  }
  Object.assign(peer, told, { retainedBytes });
}

/** Bytes moved because of departures: states by way of the coordinator, and what peers sent again. */
export function recoveryBytes(s: RunCoreState): number {
  return s.recoveryBytes + s.costs.recoveryBytes;
}

/** After a commit: says who holds what, if that has changed. */
export function tellHolders(turn: Turn): void {
  const { s } = turn;
  const safety = safetyOf(s);
  const redundancy = safety.map((stage) => stage.redundancy);
  const snapshot = safety.map((stage) => stage.snapshot);
  const holders = safety.map((stage) => stage.holders.length);
  const told = JSON.stringify([redundancy, snapshot, holders]);
  if (s.view === null || told === s.toldHolders) return;
  s.toldHolders = told;
  const line = { event: "holders" as const, step: s.committed, holders, redundancy, snapshot };
  turn.out.push({ do: "report", line: { ...line, steps_at_risk: stepsAtRisk(s) } });
}

export function recoveryStatus(s: RunCoreState): RecoveryStatus {
  return {
    departures: s.departures.slice(-DEPARTURES_TOLD).map((departure) => departureStatus(s, departure)),
    departuresTotal: s.costs.departures,
    stall: stallSummary(s),
    recomputed: s.costs.recomputed,
    bytes: recoveryBytes(s),
    fenced: s.costs.fenced,
    suspects: Object.entries(s.suspects).slice(-SUSPECTS_TOLD).map(([peer, count]) => ({ peer, count })),
    snapshotStep: snapshotStep(s),
  };
}

function departureStatus(s: RunCoreState, departure: Departure): DepartureStatus {
  const { peer, how, at: atMs, step, stallMs } = departure;
  return { peer, how, atMs, step, stallMs, ...costOf(s, departure) };
}

/** Of the departures that are kept. Quantiles by nearest rank: each is a stall that happened. */
export function stallSummary(s: Pick<RunCoreState, "departures">): StallSummary | null {
  const stalls = s.departures.flatMap(({ stallMs }) => stallMs === null ? [] : [stallMs]);
  const last = stalls.at(-1);
  if (last === undefined) return null;
  const sorted = stalls.toSorted((a, b) => a - b);
  const rank = (q: number) => sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)]!;
  return { last, median: rank(0.5), p95: rank(0.95), worst: rank(1) };
}
