// Departures and new views: from which state a run goes on, and with whom. Pure; mutates the turn's state.
// A view always starts from one complete source. If every stage still has a holder of the committed state, that state is
// collected first and nothing is lost; otherwise the run falls back to the newest complete snapshot and says how far.
import { layersText, peersOf } from "../../peer/wire/view.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";
import { amendWithout } from "./amend.ts";
import { onNewCut } from "./balance.ts";
import { beginChanges, undoChanges } from "./changes.ts";
import { commitIfComplete, reportStep, spreadWinners } from "./commit.ts";
import { fresh } from "./create.ts";
import { everyStageHeld } from "./holders.ts";
import { rerouteTransfers } from "./learn.ts";
import { settleSize } from "./micro_batch.ts";
import { plannable } from "./planned_view.ts";
import { preparedFor } from "./planning.ts";
import { restoreIfNewer, restoreWithout } from "./restore.ts";
import { newestSource } from "./safety.ts";
import { forgetKept, keptWithout } from "./snapshots.ts";
import { noteDeparture } from "./stalls.ts";
import { tellFallback } from "./textbook_upkeep.ts";
import { note, requestMissing, requestSnapshots, setPhase, setStatus, type Turn } from "./turn.ts";
import { type Planned, planView, usablePeers } from "./view_builder.ts";

/** Failed generations in a row without a commit after which the run stops trying; else a broken network would spin for ever. */
const BARREN_MAX = 20;
/** So many of them follow each other at once; a later one waits twice as long as the one before, so that a silent peer is found out. */
const AT_ONCE_MAX = 3;
const PAUSE_LEAST_MS = 100;
const PAUSE_MOST_MS = 5_000;

/** Lets a peer go that asked to leave. */
export function dismiss(turn: Turn, id: string): void {
  turn.out.push({ do: "send", peer: id, message: { type: "done", reason: "you left; thank you" } });
  turn.out.push({ do: "drop", peer: id, reason: "left" });
  delete turn.s.peers[id];
  turn.out.push({ do: "report", line: { event: "peer", id, what: "left" } });
  keptWithout(turn, id);
  restoreWithout(turn, id);
}

/**
 * Removes a peer that is silent, late or wrong, and goes on without it. Who was only slow may come back as a new peer; what a
 * peer with a `wrong` state has computed goes with it.
 */
export function evict(turn: Turn, id: string, reason: string, options: EvictOptions = {}): void {
  const { s } = turn;
  if (s.peers[id] === undefined) return;
  const { mayReturn = false, wrong = false } = options;
  turn.out.push({ do: "send", peer: id, message: { type: "kicked", reason, mayReturn } });
  turn.out.push({ do: "drop", peer: id, reason });
  delete s.peers[id];
  note(turn, "evict", `${id} put out: ${reason}`);
  turn.out.push({ do: "report", line: { event: "peer", id, what: `put out: ${reason}` } });
  departed(turn, id, reason, { wrong });
}

export interface EvictOptions {
  mayReturn?: boolean;
  wrong?: boolean;
}

/**
 * Somebody is no longer among the peers: the open step goes on without them, or the run falls back. Where their work is wrong,
 * others may hold sums and tensors that come of it: the step begins anew from the states before it.
 */
export function departed(turn: Turn, id: string, how: string, { wrong = false } = {}): void {
  const { s } = turn;
  keptWithout(turn, id);
  const inView = s.view !== null && peersOf(s.view).includes(id);
  if (s.phase === "restoring") {
    if (inView) noteDeparture(turn, id, how);
    return restoreWithout(turn, id);
  }
  if (s.view === null || !inView || s.ending !== null) return;
  if (s.status === "finished" || s.status === "failed") return;
  if (s.phase === "regathering") return;
  noteDeparture(turn, id, how);
  const running = s.phase === "round" || s.phase === "handover" || s.phase === "held";
  const tainted = wrong && s.round?.pass === "train" && computes(s, id);
  if (!running || tainted || !amendWithout(turn, id, `${id} is gone: ${how}`)) {
    return recover(turn, `${id} is gone`);
  }
  rerouteTransfers(turn, id);
  s.tidyDue = true;
  if (s.phase === "handover") requestMissing(turn);
  else s.pending = null;
  spreadWinners(turn);
  commitIfComplete(turn);
}

function computes(s: RunCoreState, id: string): boolean {
  return s.view!.stages.some(({ replicas }) =>
    replicas.some(({ peer, microBatches }) => peer === id && microBatches.length > 0)
  );
}

/** Something of the present view is broken: collect what survives, or fall back. */
export function recover(turn: Turn, reason: string): void {
  const { s } = turn;
  if (s.status === "finished" || s.status === "failed" || s.view === null || s.ending !== null) return;
  if (s.phase === "restoring") return;
  const computing = s.phase === "round" || s.phase === "handover" || s.phase === "held";
  s.round = null;
  // Several ends report one failure; and while the organizer pauses the run nothing can be committed.
  if (!s.broken && !s.paused) s.barren++;
  // The survivors were told the newest commit before anything else, so each of them holds `committed`.
  if (computing && s.committed !== newestSource(s) && everyStageHeld(s)) {
    Object.assign(s, { replanDue: reason, broken: true });
    setPhase(turn, "handover");
    requestSnapshots(turn);
    return;
  }
  restart(turn, reason);
}

/**
 * Ends the present view and starts the next one from the newest complete source, if there are peers for it. What peers keep is
 * collected first, if it is newer.
 */
export function restart(turn: Turn, reason: string): void {
  const { s } = turn;
  if (restoreIfNewer(turn, reason)) return;
  const source =
    [...s.snapshots, ...(s.source === null ? [] : [s.source])].sort((a, b) => b.step - a.step)[0] ?? null;
  const base = source?.step ?? 0;
  if (base < s.committed) {
    const lost = s.committed - base;
    s.stepsRedone += lost;
    note(turn, "rollback", `back to step ${base}: ${lost} steps are done again`, { base, lost });
    turn.out.push({ do: "report", line: { event: "rollback", step: base, steps_redone: lost } });
    s.lastEval = Math.min(s.lastEval, base);
    undoChanges(turn, base);
  }
  for (const peer of Object.values(s.peers)) if (peer.leaving) dismiss(turn, peer.id);
  Object.assign(s, {
    committed: base,
    source,
    view: null,
    round: null,
    pending: null,
    replanDue: null,
    broken: false,
  });
  reportStep(turn);
  // What was told of the open step is told anew; left here, it would stand in the way of a step before it.
  s.report = null;
  Object.assign(s, fresh());
  setPhase(turn, "idle");
  if (s.barren > BARREN_MAX) {
    return setStatus(turn, "failed", `${BARREN_MAX} attempts in a row failed: ${reason}`);
  }
  setStatus(turn, "waiting", reason);
  startIfPossible(turn);
}

/** Starts a view when there are enough measured peers; says what is missing otherwise. */
export function startIfPossible(turn: Turn): void {
  const { s } = turn;
  if (s.phase !== "idle" || s.status === "finished" || s.status === "failed") return;
  // A clock that was set back says nothing of how long this has lasted.
  const waited = turn.now - s.phaseSince;
  if (waited >= 0 && waited < pauseMs(s.barren)) return;
  const changed = beginChanges(turn);
  if (changed !== null) note(turn, "admin", `from this step on: ${changed}`);
  const usable = usablePeers(Object.values(s.peers)).sort((a, b) => a.joinedAt - b.joinedAt);
  const needed = s.started ? 1 : s.config.min_peers;
  if (usable.length < needed) {
    const joined = usable.length === 1 ? "1 peer is" : `${usable.length} peers are`;
    return setStatus(turn, "waiting", `${joined} ready, ${needed} needed`);
  }
  const planned = planOrRefusal(turn, usable);
  if (planned.view === null) return setStatus(turn, "waiting", `too little memory: ${planned.missing}`);
  s.gen++;
  Object.assign(s, { started: true, replanDue: null, cutBase: s.committed });
  s.view = s.changed ? { ...planned.view, config: s.config } : planned.view;
  turn.out.push({ do: "persist", record: { kind: "view", view: s.view } });
  setPhase(turn, "loading");
  setStatus(turn, "warming up", `${usable.length} peers load ${s.view.stages.length} stages`);
  note(turn, "view", `generation ${s.gen}: ${describe(s)}`, { gen: s.gen, base: s.committed });
  tellFallback(turn);
  onNewCut(turn, planned.plan ?? null);
  forgetKept(turn);
  for (const peer of Object.keys(s.peers)) {
    turn.out.push({ do: "send", peer, message: { type: "view", view: s.view, source: s.source } });
  }
}

/** How long after a failed generation the next one begins. */
function pauseMs(barren: number): number {
  if (barren <= AT_ONCE_MAX) return 0;
  return Math.min(PAUSE_MOST_MS, PAUSE_LEAST_MS * 2 ** (barren - AT_ONCE_MAX - 1));
}

/** Why these peers did not suffice, as long as they are the same: it is asked again after every event. Only a memo. */
const refusals = new WeakMap<RunCoreState, { asked: string; missing: string }>();

function planOrRefusal(turn: Turn, peers: PeerRecord[]): Planned {
  const { s } = turn;
  const asked = JSON.stringify(
    peers.map(({ id, memoryBytes, blockMs, hidden, engine }) => [id, memoryBytes, blockMs, hidden, engine]),
  );
  const before = refusals.get(s);
  if (before?.asked === asked) return { view: null, missing: before.missing };
  settleSize(turn, peers);
  const { spec, config } = s;
  const prepared = preparedFor(s, plannable(peers))?.answer;
  const planned = planView({ gen: s.gen + 1, baseStep: s.committed, spec, config, peers, prepared });
  if (planned.view === null) refusals.set(s, { asked, missing: planned.missing });
  return planned;
}

function describe(s: RunCoreState): string {
  const stages = s.view!.stages.map((stage) => {
    const { recompute = "none", inflight } = stage;
    const again = recompute === "none" ? "" : `, ${recompute} computed again, ${inflight} slots`;
    return `${layersText(stage)} on ${stage.replicas.map((replica) => replica.peer).join("+")}${again}`;
  });
  return `from step ${s.committed}, ${stages.join(", ")}`;
}
