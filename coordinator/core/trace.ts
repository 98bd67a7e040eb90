// The trace of a step: when it is asked for, who has told, and the newest that is whole. Pure; mutates the turn's state. What
// must stay true: a peer tells only of operations that are its own, and nothing of a trace decides anything about the run.
import type { Trace } from "../../peer/wire/measures.ts";
import type { View } from "../../peer/wire/run.ts";
import type { StepSummary, StepTrace } from "../../peer/wire/status.ts";
import { isDelayed, shareOf, stagesOf } from "../../peer/wire/view.ts";
import { predictedStep } from "./planning.ts";
import { predictPipelineMs } from "./predict_step.ts";
import type { RunCoreState } from "./run_state.ts";
import { assembleTrace } from "./trace_assemble.ts";
import type { Turn } from "./turn.ts";

/** Steps quicker than this are not all traced: a page shows no more, and every trace is a message of each peer. */
const TRACE_EVERY_MS = 1_000;
/** Round trips kept per peer; the shortest places its clock. */
const ROUND_TRIPS_KEPT = 8;
/** Weight of the newest step in what the exchange of sums and the commit take. */
const OUTSIDE_WEIGHT = 0.2;

export interface Traces {
  /** The round that was opened last with the wish for its trace. */
  asked:
    | { gen: number; step: number; at: number; predictedMs: number | null; committedAt: number | null }
    | null;
  told: Record<string, { trace: Trace; at: number }>;
  /** Between coordinator and peer, ms. */
  roundTrips: Record<string, number[]>;
  newest: StepTrace | null;
  /** What a step takes beyond its operations: exchange of sums, commit, the way of messages; moving average, ms. */
  outsideMs: number | null;
}

export function noTraces(): Traces {
  return { asked: null, told: {}, roundTrips: {}, newest: null, outsideMs: null };
}

/** A training round is about to be opened; true if its trace is wanted. */
export function askTrace({ s, now }: Turn): boolean {
  const { asked, outsideMs } = s.traces;
  if (asked !== null && now >= asked.at && now - asked.at < TRACE_EVERY_MS) return false;
  const pipelineMs = outsideMs === null ? null : predictPipelineMs(s);
  const predictedMs = pipelineMs === null ? null : pipelineMs + outsideMs!;
  s.traces.asked = { gen: s.gen, step: s.committed, at: now, predictedMs, committedAt: null };
  s.traces.told = {};
  return true;
}

export function recordTrace(turn: Turn, peer: string, trace: Trace): void {
  const { s, now } = turn;
  const { asked, told, roundTrips } = s.traces;
  if (asked === null || trace.gen !== asked.gen || trace.step !== asked.step || !isCurrent(s)) return;
  if (!isWhole(s.view!, peer, trace)) return;
  const roundTrip = Math.max(0, now - asked.at - trace.saidUs / 1000);
  roundTrips[peer] = [...roundTrips[peer] ?? [], roundTrip].slice(-ROUND_TRIPS_KEPT);
  told[peer] = { trace, at: now };
  settle(s);
}

/** The open step is about to be committed. */
export function traceCommitted({ s, now }: Turn): void {
  const { asked } = s.traces;
  if (asked === null || asked.step !== s.round?.step || !isCurrent(s)) return;
  asked.committedAt = now;
  settle(s);
}

/** Not once the view was amended or planned anew: then others did a part of the step. */
function isCurrent(s: RunCoreState): boolean {
  const { asked } = s.traces;
  return s.view !== null && asked !== null && asked.gen === s.gen;
}

function settle(s: RunCoreState): void {
  const { asked, told, roundTrips } = s.traces;
  if (asked === null || asked.committedAt === null) return;
  const peers = computing(s.view!);
  if (!peers.every((peer) => told[peer] !== undefined)) return;
  const lags = Object.fromEntries(peers.map((peer) => [peer, Math.min(...roundTrips[peer]!) / 2]));
  const traces = Object.fromEntries(peers.map((peer) => [peer, told[peer]!.trace]));
  const measuredMs = asked.committedAt - asked.at;
  const { gen, step, predictedMs } = asked;
  const about = { gen, step: step + 1, measuredMs, predictedMs, stages: s.view!.stages.length };
  const microBatches = s.config.gradient_accumulation_steps;
  s.traces.newest = { ...about, microBatches, ...assembleTrace(s.view!, traces, lags) };
  noteOutside(s, s.traces.newest);
  forgetGone(s);
  Object.assign(s.traces, { told: {}, asked: { ...asked, committedAt: null, step: -1 } });
}

function noteOutside(s: RunCoreState, { measuredMs, startMs, endMs }: StepTrace): void {
  const outside = Math.max(0, measuredMs - (endMs - startMs));
  const before = s.traces.outsideMs;
  s.traces.outsideMs = before === null ? outside : before + OUTSIDE_WEIGHT * (outside - before);
}

function forgetGone(s: RunCoreState): void {
  for (const peer of Object.keys(s.traces.roundTrips)) {
    if (s.peers[peer] === undefined) delete s.traces.roundTrips[peer];
  }
}

/** Peers that compute in a training step, in the order of their first stage. */
export function computing(view: View): string[] {
  const replicas = view.stages.flatMap((stage) => stage.replicas.filter((it) => it.microBatches.length > 0));
  return [...new Set(replicas.map((it) => it.peer))];
}

/** Every operation of the peer's share once and none of anybody else's; with some dropped, none of anybody else's. */
function isWhole(view: View, peer: string, { ops, dropped }: Trace): boolean {
  const owned = new Set(
    stagesOf(view, peer).flatMap((stage) =>
      shareOf(stage, peer).flatMap((m) => ["F", "B", "W"].map((kind) => `${kind}/${stage.index}/${m}`))
    ),
  );
  const before = owned.size;
  for (const { kind, stage, microBatch, startUs, endUs } of ops) {
    if (endUs < startUs || !owned.delete(`${kind}/${stage}/${microBatch}`)) return false;
  }
  return before > 0 && (owned.size === 0 || dropped > 0);
}

/** What the newest traced step tells in short; null before the first. */
export function lastStep(s: RunCoreState): StepSummary | null {
  const { newest } = s.traces;
  if (newest === null) return null;
  const { step, measuredMs, predictedMs, bubble, lanes } = newest;
  const waits = lanes.map(({ peer, waitMs, linkWaitMs }) => ({ peer, waitMs, linkWaitMs }));
  return { step, measuredMs, predictedMs, bubble, waits };
}

/** Seconds of a step that a peer's boundary tensors take, by its averages per micro-batch; null if it cannot tell. */
function boundarySeconds({ view, peers }: RunCoreState, peer: string): number | null {
  const told = (peers[peer]?.ops ?? []).flatMap(({ stage, decodeMs, encodeMs, sendMs }) => {
    const known = [decodeMs, encodeMs, sendMs].filter((ms) => ms !== undefined);
    const share = shareOf(view!.stages[stage], peer).length;
    return known.length === 0 ? [] : [known.reduce((sum, ms) => sum + ms, 0) * share / 1000];
  });
  return told.length === 0 ? null : told.reduce((sum, seconds) => sum + seconds, 0);
}

/** The mean over the computing peers that can tell; nothing if none can. */
function boundaryFigure(s: RunCoreState): { boundary_s?: number } {
  const all = s.view === null ? [] : computing(s.view).flatMap((peer) => boundarySeconds(s, peer) ?? []);
  return all.length === 0 ? {} : { boundary_s: all.reduce((sum, seconds) => sum + seconds, 0) / all.length };
}

/**
 * What a line of metrics.jsonl tells of it: seconds, and the mean wait for links of the peers that compute. Where steps overlap a
 * trace is no step's alone, so there is but the prediction.
 */
export function stepFigures(
  s: RunCoreState,
): { predicted_s?: number; bubble?: number; wait_s?: number; boundary_s?: number } {
  if (s.view !== null && isDelayed(s.view)) {
    const steady = predictedStep(s);
    return { ...(steady === null ? {} : { predicted_s: steady.seconds }), ...boundaryFigure(s) };
  }
  const last = lastStep(s);
  if (last === null) return {};
  const wait = last.waits.reduce((sum, it) => sum + it.linkWaitMs, 0) / Math.max(1, last.waits.length);
  return {
    ...(last.predictedMs === null ? {} : { predicted_s: last.predictedMs / 1000 }),
    ...{ bubble: last.bubble, wait_s: wait / 1000 },
    ...boundaryFigure(s),
  };
}
