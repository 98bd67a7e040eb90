// The pure state machine of a run: (state, event, now) -> effects. It decides who is in, when a round opens, when a step is
// committed and what follows a departure. It never touches sockets, files or clocks; `now` is an argument, in ms.
// Invariants: (1) a step is committed once in a cut, when two holders of every stage (all, if fewer) have logged the same
// total; (2) every cut starts from one complete source: the seed, or a snapshot of all stages at one step; a departure only
// amends the view and the open step goes on; (3) messages of another cut or of an unknown peer change nothing;
// (4) `committed` goes back only together with a new cut, to a complete snapshot, and the steps redone are counted and told.
import { engineSaid } from "../../peer/model/stage_memory.ts";
import type { PeerMessage, StateFile } from "../../peer/wire/control.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { UNREAD_STATE } from "../../peer/wire/values.ts";
import { holds, peersOf } from "../../peer/wire/view.ts";
import { afterBoundary, complete, sayDone } from "./boundary.ts";
import { administer } from "./admin.ts";
import { amendView } from "./amend.ts";
import { peersChanged } from "./balance.ts";
import {
  commitIfComplete,
  recordEvaluation,
  recordLogged,
  recordLosses,
  reportStep,
  spreadWinners,
} from "./commit.ts";
import { createRunState } from "./create.ts";
import { isTold, settleDispute, silentHolder, tellState } from "./disputes.ts";
import { isHolder, isLearner, isOfFormer } from "./holders.ts";
import { offerState, settleLearners, timeOutTransfers, wantState } from "./learn.ts";
import { loadingMs } from "./loading.ts";
import { wantsNewCut } from "./maintain.ts";
import { takeMeasures } from "./measures.ts";
import { countCosts, tellHolders } from "./stalls.ts";
import { departed, dismiss, evict, recover, restart, startIfPossible } from "./recovery.ts";
import { heardFrom, judgeSilence, keepListening } from "./silence.ts";
import { noTotal, settleRequests, timeOutRequests, wantTotal } from "./totals.ts";
import { askText, cancelText, recordWriteFailed, recordWriteOpen, recordWrote, stepTexts } from "./texts.ts";
import { recordTrace } from "./trace.ts";
import { takeMeasured } from "./sized_peer.ts";
import { concludeIfWhole, restoreState, returned } from "./regather.ts";
import { beginAdmission, recordProbed, stepProbes } from "./probes.ts";
import { planForALoss } from "./replan.ts";
import { endRestoreIfHeld, restored, restoreFailed, timeOutRestore } from "./restore.ts";
import { recordExported, recordKept, recordOffer, recordUnkept, tickKept } from "./snapshots.ts";
import type { RunRecord } from "./run_record.ts";
import {
  type Newcomer,
  type PeerRecord,
  type RunCoreState,
  type RunEffect,
  type RunEvent,
  zeroCounters,
} from "./run_state.ts";
import { note, setStatus, type Turn } from "./turn.ts";

/** Two peers that cannot be linked after so many tries of theirs in one cut do not stay together. */
const LINK_LOSSES_MAX = 4;
/** A round that has not ended by then is stuck for a reason no detector saw; it is redone in a new generation. */
export const ROUND_MS = 300_000;

export class RunCore {
  readonly state: RunCoreState;

  constructor(config: RunConfig, spec: ModelSpec, resume?: { step: number; files: StateFile[] }) {
    this.state = createRunState(config, spec, resume);
  }

  /** A core that goes on where the log of a killed one ends; `resume` is what it falls back to. */
  static restored(record: RunRecord, resume?: { step: number; files: StateFile[] }): RunCore {
    const core = new RunCore(record.config, record.spec, resume);
    restoreState(core.state, record);
    return core;
  }

  /** Takes one event and returns everything the shell must do because of it, in order. */
  step(event: RunEvent, now: number): RunEffect[] {
    const turn: Turn = { s: this.state, now, out: [] };
    keepListening(turn);
    const { committed } = turn.s;
    take(turn, event);
    for (const { peer, measured } of stepProbes(turn)) admit(turn, peer, measured);
    startIfPossible(turn);
    if (turn.s.committed > committed) tellHolders(turn);
    stepTexts(turn);
    return turn.out;
  }
}

function take(turn: Turn, event: RunEvent): void {
  const { s } = turn;
  switch (event.type) {
    case "join":
      return join(turn, event.peer);
    case "gone":
      return leaveNow(turn, event.peer, event.reason);
    case "noted":
      return note(turn, "admin", event.text);
    case "evict":
      return evict(turn, event.peer, event.reason, { mayReturn: event.mayReturn ?? false });
    case "message":
      if (s.peers[event.peer] !== undefined) hear(turn, s.peers[event.peer]!, event.message);
      return;
    case "stored":
      return stored(turn, event);
    case "checkpointed":
      return checkpointed(turn, event);
    case "checkpoint-failed":
      return checkpointFailed(turn, event);
    case "sampled":
      return sampled(turn, event.step, event.text);
    case "text":
      return askText(turn, event.id, event.wish);
    case "text-cancel":
      return cancelText(turn, event.id);
    case "admin":
      return administer(turn, event);
    case "return":
      return returned(turn, event.peer, event.have);
    case "tick":
      return tick(turn);
  }
}

function join(turn: Turn, peer: Newcomer): void {
  const zeros = { blockMs: 0, memoryBytes: 0, ...zeroCounters() };
  const flags = { paused: false, leaving: false, hidden: false };
  turn.s.peers[peer.id] = { ...peer, joinedAt: turn.now, heardAt: turn.now, ...zeros, ...flags };
  const pinned = peer.pin === undefined ? "" : `, pinned to stage ${peer.pin + 1} as before`;
  note(turn, "join", `${peer.id} joined: ${peer.runtime}, ${peer.adapter}${pinned}`);
  turn.out.push({ do: "report", line: { event: "peer", id: peer.id, what: "joined" } });
}

function leaveNow(turn: Turn, id: string, reason: string): void {
  if (turn.s.peers[id] === undefined) return;
  delete turn.s.peers[id];
  note(turn, "gone", `${id} is gone: ${reason}`);
  turn.out.push({ do: "report", line: { event: "peer", id, what: `gone: ${reason}` } });
  departed(turn, id, reason);
}

function hear(turn: Turn, peer: PeerRecord, message: PeerMessage): void {
  const { s } = turn;
  heardFrom(turn, peer, message.type === "heartbeat");
  switch (message.type) {
    case "measured":
      return beginAdmission(turn, peer, message);
    case "probed":
      return recordProbed(turn, peer, message);
    case "heartbeat": {
      const { stepMs, bytesUp, bytesDown, direct, relayed, hidden } = message;
      Object.assign(peer, { stepMs, bytesUp, bytesDown, direct, relayed, hidden });
      takeMeasures(s, peer, message);
      return countCosts(s, peer, message);
    }
    case "ready":
      if (message.gen === s.gen && s.phase === "loading" && !s.ready.includes(peer.id)) s.ready.push(peer.id);
      return openWhenReady(turn);
    case "logged":
      if (recordLogged(turn, peer.id, message)) commitIfComplete(turn);
      return;
    case "losses":
      return recordLosses(turn, peer.id, message);
    case "want-total":
      return wantTotal(turn, peer.id, message);
    case "no-total":
      return noTotal(turn, peer.id, message);
    case "want-state":
      return wantState(turn, peer.id, message);
    case "kept":
      return recordKept(turn, peer.id, message);
    case "unkept":
      return recordUnkept(turn, peer.id, message);
    case "exported":
      return recordExported(turn, peer.id, message);
    case "restore-failed":
      return restoreFailed(turn, peer.id, message);
    case "offer":
      return recordOffer(turn, peer.id, message);
    case "evaluated":
      if (recordEvaluation(turn, peer.id, message)) afterBoundary(turn);
      return;
    case "trace":
      return recordTrace(turn, peer.id, message);
    case "warm":
      return warm(turn, peer.id, message);
    case "applied":
      return applied(turn, peer.id, message);
    case "link-lost":
      return linkLost(turn, peer.id, message);
    case "write-open":
      return recordWriteOpen(turn, peer.id, message);
    case "write-failed":
      return recordWriteFailed(turn, peer.id, message);
    case "wrote":
      return recordWrote(turn, peer.id, message);
    case "leave":
    case "pause":
      return contributorWish(turn, peer, message);
    case "hello":
    case "signal":
      return;
  }
}

function admit(turn: Turn, peer: PeerRecord, message: PeerMessage & { type: "measured" }): void {
  takeMeasured(peer, message, turn.s.config);
  peer.memoryBytes = message.memoryBytes;
  if (message.gpuOptimizer === true) peer.gpuOptimizer = true;
  if (message.kernels !== undefined && message.kernels !== "") peer.kernels = message.kernels;
  const chosen = peer.kernels === undefined ? "" : `; ${peer.kernels}`;
  const said = engineSaid(peer.engine, turn.s.config);
  const keeps = said === peer.engine ? "" : `; ${said}`;
  note(turn, "admitted", `${peer.id} measured: ${peer.blockMs.toFixed(1)} ms per block${chosen}${keeps}`);
  if (turn.s.view === null) return;
  turn.s.tidyDue = true;
  peersChanged(turn.s);
  if (wantsNewCut(turn)) turn.s.replanDue = `${peer.id} joined`;
}

function openWhenReady(turn: Turn): void {
  const { s } = turn;
  if (s.phase !== "loading" || s.view === null) return;
  if (!peersOf(s.view).every((peer) => s.ready.includes(peer))) return;
  setStatus(turn, "training", `${peersOf(s.view).length} peers in ${s.view.stages.length} stages`);
  s.lastCommitAt = turn.now;
  // Whoever computes has built its engine while loading; shadows build theirs after the first step.
  for (const stage of s.view.stages) {
    for (const { peer, microBatches } of stage.replicas) {
      if (microBatches.length > 0) (s.warm[peer] ??= []).push(stage.index);
    }
  }
  afterBoundary(turn);
}

/** A holder's engine for a stage is built: it may be given work there. */
function warm(turn: Turn, id: string, message: PeerMessage & { type: "warm" }): void {
  const { s } = turn;
  const { cut, stage } = message;
  if (isOfFormer(s, id, message)) return;
  if (cut !== s.view?.cut || !holds(s.view.stages[stage], id) || s.warm[id]?.includes(stage)) return;
  (s.warm[id] ??= []).push(stage);
  s.tidyDue = true;
}

/** Every holder of a stage must have the same state after a commit (I4); one that differs is put out. */
function applied(turn: Turn, id: string, message: PeerMessage & { type: "applied" }): void {
  const { s } = turn;
  const { step, stage, hash } = message;
  const holder = isHolder(s, stage, id);
  const learner = isLearner(s, stage, id);
  if (message.cut !== s.view?.cut || step >= s.committed || !(holder || learner)) return;
  if (isOfFormer(s, id, message)) return;
  const own = s.applied[id] ??= {};
  own[stage] = Math.max(own[stage] ?? -1, step);
  settleRequests(turn);
  // Nobody else has that state; if somebody learns it, the holder reads it and says it again with its hash.
  if (hash === UNREAD_STATE) return commitIfComplete(turn);
  if (holder && !tellState(turn, id, { step, stage, hash })) return;
  commitIfComplete(turn);
  if (isEnding(s) && silentHolder(s) === null) return afterBoundary(turn);
  if (learner) s.learnerHashes[`${stage}/${id}`] = { step, hash };
  if (!settleLearners(turn, stage)) return;
  endRestoreIfHeld(turn);
  if (s.round?.pass === "train") {
    // Parts of the open step that came before its state are lost to it: it gets the total, once another has it.
    s.amendedStep = s.round.step;
    spreadWinners(turn);
  }
  if (s.phase === "held") afterBoundary(turn);
}

function linkLost(turn: Turn, id: string, message: { gen: number; peer: string; reason: string }): void {
  const { s } = turn;
  if (
    message.gen !== s.gen || s.view === null || s.phase === "regathering" || s.phase === "restoring" ||
    s.ending !== null || s.status === "finished"
  ) return;
  const members = peersOf(s.view);
  if (!members.includes(id) || !members.includes(message.peer)) return;
  note(turn, "link", `${id} lost its link to ${message.peer}: ${message.reason}`);
  const pair = [id, message.peer].sort().join("/");
  const losses = s.lostLinks[pair] = (s.lostLinks[pair] ?? 0) + 1;
  if (s.phase === "loading") return recover(turn, `link between ${id} and ${message.peer} lost`);
  // A new view makes both ends try once more; whoever came later goes if that does not help.
  if (losses < LINK_LOSSES_MAX) {
    amendView(turn, s.view.stages, `${id} and ${message.peer} link up again`);
    return spreadWinners(turn);
  }
  const [first, second] = [s.peers[id]!, s.peers[message.peer]];
  const later = second !== undefined && second.joinedAt > first.joinedAt ? second : first;
  evict(turn, later.id, "no link to another peer could be made", { mayReturn: true });
}

function contributorWish(
  turn: Turn,
  peer: PeerRecord,
  wish: { type: "leave"; reason: string } | { type: "pause"; paused: boolean },
): void {
  const { s } = turn;
  if (wish.type === "leave") peer.leaving = true;
  else peer.paused = wish.paused;
  const what = wish.type === "leave" ? "leaves after this step" : wish.paused ? "pauses" : "resumes";
  note(turn, "wish", `${peer.id} ${what}`);
  const inView = s.view !== null && peersOf(s.view).includes(peer.id);
  if (!inView && wish.type === "leave") dismiss(turn, peer.id);
  else s.tidyDue = true;
  if (s.phase === "held") afterBoundary(turn);
}

function stored(turn: Turn, event: { cut: number; step: number; file: StateFile }): void {
  const { s } = turn;
  if (event.cut !== s.view?.cut) return;
  if (s.restoring !== null) return restored(turn, event);
  offerState(turn, event.step, event.file);
  if (s.pending === null || s.pending.step !== event.step) return;
  if (s.pending.files.some((file) => file.stage === event.file.stage)) return;
  if (!isTold(s, event.step, event.file)) {
    return note(
      turn,
      "warning",
      `another state of stage ${event.file.stage + 1} was brought than was told of`,
    );
  }
  s.pending.files.push(event.file);
  if (s.view !== null && s.pending.files.length === s.view.stages.length) complete(turn);
}

function checkpointed(turn: Turn, event: { step: number; path: string; bytes: number }): void {
  const { s } = turn;
  note(turn, "checkpoint", `checkpoint of step ${event.step} written`);
  turn.out.push({ do: "report", line: { event: "checkpoint", step: event.step, path: event.path } });
  if (s.ending === null || event.step !== s.target) return;
  Object.assign(s.ending, { checkpoint: event.path, checkpointBytes: event.bytes });
  finishIfDone(turn);
}

function checkpointFailed(turn: Turn, event: { step: number; reason: string }): void {
  note(turn, "checkpoint", `checkpoint of step ${event.step} failed: ${event.reason}`);
  // An earlier checkpoint may still be on its way when the last one is asked for.
  if (turn.s.ending !== null && event.step === turn.s.target) {
    setStatus(turn, "failed", `the last checkpoint could not be written: ${event.reason}`);
  }
}

function sampled(turn: Turn, step: number, text: string): void {
  const { s } = turn;
  if (s.sample === null || step >= s.sample.step) s.sample = { step, text };
  turn.out.push({ do: "report", line: { event: "sample", step, text } });
  if (s.ending === null || step !== s.target) return;
  s.ending.sample = text;
  finishIfDone(turn);
}

function finishIfDone(turn: Turn): void {
  const { s } = turn;
  if (s.ending?.checkpoint == null || s.ending.sample === null || s.status === "finished") return;
  reportStep(turn);
  setStatus(turn, "finished", `${s.committed} steps done`);
  s.phase = "idle";
  const losses = { "train/loss": s.trainLoss ?? NaN, "val/loss": s.valLoss ?? NaN };
  const { checkpoint, sample } = s.ending;
  turn.out.push({ do: "report", line: { event: "done", step: s.committed, ...losses, checkpoint, sample } });
  sayDone(turn, "the run is finished");
}

function tick(turn: Turn): void {
  const { s, now } = turn;
  judgeSilence(turn);
  settleDispute(turn);
  if (isEnding(s) && silentHolder(s) === null) afterBoundary(turn);
  timeOutRequests(turn);
  timeOutTransfers(turn);
  concludeIfWhole(turn);
  timeOutRestore(turn);
  tickKept(turn);
  planForALoss(turn);
  const age = now - s.phaseSince;
  if (s.phase === "loading" && s.view !== null && age > loadingMs(s.spec, s.view, s.source)) {
    const late = peersOf(s.view).find((peer) => !s.ready.includes(peer));
    if (late !== undefined) {
      evict(turn, late, `not ready after ${Math.round(age / 1000)} s`, { mayReturn: true });
    }
  } else if (s.phase === "round" && age > ROUND_MS) {
    recover(turn, `no progress for ${ROUND_MS / 1000} s`);
  } else if (s.phase === "handover" && age > ROUND_MS) {
    // Asking the same holders for the same state once more would go on for ever.
    restart(turn, `no complete state after ${ROUND_MS / 1000} s`);
  } else if (isEnding(s) && age > ROUND_MS) {
    evict(turn, silentHolder(s)!, `its last state was not told within ${ROUND_MS / 1000} s`, {
      mayReturn: true,
    });
  }
}

/** All steps are done; it waits for what the holders tell of their states. */
function isEnding(s: RunCoreState): boolean {
  return s.phase === "held" && s.committed >= s.target && s.ending === null && s.view !== null;
}
