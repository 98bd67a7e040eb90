// The pure state machine of a run: (state, event, now) -> effects. It decides who is in, when a round opens, when a step is
// committed and what follows a departure. It never touches sockets, files or clocks; `now` is an argument, in ms.
// Invariants: (1) a step is committed once in a generation, when every replica of every stage has logged the same total;
// (2) every view starts from one complete source: the seed, or a snapshot of all stages at one step; (3) messages of another
// generation or of an unknown peer change nothing; (4) `committed` goes back only together with a new generation, to a
// complete snapshot, and the number of steps redone is counted and told.
import type { PeerMessage, StateFile } from "../../peer/wire/control.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { peersOf } from "../../peer/wire/view.ts";
import { afterBoundary, complete, finish, sayDone } from "./boundary.ts";
import { commitIfComplete, recordEvaluation, recordLogged } from "./commit.ts";
import { createRunState } from "./create.ts";
import { beat, silenceLimitMs } from "./detect.ts";
import { dismiss, evict, recover, restart, startIfPossible } from "./recovery.ts";
import type { PeerRecord, RunCoreState, RunEffect, RunEvent } from "./run_state.ts";
import { note, setStatus, type Turn } from "./turn.ts";

/** A peer silent for longer is gone, whatever its heartbeats were like; a closed socket is noticed at once, this is for frozen peers and dead networks. */
export const SILENCE_MS = 15_000;
/** While shaders compile, a software adapter may hold the thread that sends heartbeats for many seconds. */
export const COMPILING_SILENCE_MS = 60_000;
/** Loading a view (download, connect, compile) may take this long; slower peers are dropped so that the rest goes on. */
export const LOADING_MS = 120_000;
/** A round that has not ended by then is stuck for a reason no detector saw; it is redone in a new generation. */
export const ROUND_MS = 300_000;

export class RunCore {
  readonly state: RunCoreState;

  constructor(config: RunConfig, spec: ModelSpec, resume?: { step: number; files: StateFile[] }) {
    this.state = createRunState(config, spec, resume);
  }

  /** Takes one event and returns everything the shell must do because of it, in order. */
  step(event: RunEvent, now: number): RunEffect[] {
    const turn: Turn = { s: this.state, now, out: [] };
    take(turn, event);
    startIfPossible(turn);
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
    case "evict":
      return evict(turn, event.peer, event.reason);
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
    case "admin":
      return administer(turn, event.action);
    case "tick":
      return tick(turn);
  }
}

function join(turn: Turn, peer: Pick<PeerRecord, "id" | "runtime" | "adapter" | "engine" | "name">): void {
  const zeros = { blockMs: 0, memoryBytes: 0, stepMs: 0, bytesUp: 0, bytesDown: 0, direct: 0, relayed: 0 };
  const flags = { paused: false, leaving: false, hidden: false };
  turn.s.peers[peer.id] = { ...peer, joinedAt: turn.now, heardAt: turn.now, ...zeros, ...flags };
  note(turn, "join", `${peer.id} joined: ${peer.runtime}, ${peer.adapter}`);
  turn.out.push({ do: "report", line: { event: "peer", id: peer.id, what: "joined" } });
}

function leaveNow(turn: Turn, id: string, reason: string): void {
  if (turn.s.peers[id] === undefined) return;
  delete turn.s.peers[id];
  note(turn, "gone", `${id} is gone: ${reason}`);
  turn.out.push({ do: "report", line: { event: "peer", id, what: `gone: ${reason}` } });
  if (turn.s.view !== null && peersOf(turn.s.view).includes(id)) recover(turn, `${id} is gone`);
}

function hear(turn: Turn, peer: PeerRecord, message: PeerMessage): void {
  const { s } = turn;
  peer.heardAt = turn.now;
  switch (message.type) {
    case "measured":
      return admit(turn, peer, message);
    case "heartbeat": {
      s.beats[peer.id] = beat(s.beats[peer.id], turn.now);
      const { stepMs, bytesUp, bytesDown, direct, relayed, hidden } = message;
      Object.assign(peer, { stepMs, bytesUp, bytesDown, direct, relayed, hidden });
      return;
    }
    case "ready":
      if (message.gen === s.gen && s.phase === "loading" && !s.ready.includes(peer.id)) s.ready.push(peer.id);
      return openWhenReady(turn);
    case "logged":
      if (recordLogged(turn, peer.id, message)) commitIfComplete(turn);
      return;
    case "evaluated":
      if (recordEvaluation(turn, peer.id, message)) afterBoundary(turn);
      return;
    case "applied":
      return applied(turn, peer.id, message);
    case "link-lost":
      return linkLost(turn, peer.id, message);
    case "leave":
    case "pause":
      return contributorWish(turn, peer, message);
    case "hello":
    case "signal":
      return;
  }
}

function admit(turn: Turn, peer: PeerRecord, message: { blockMs: number; memoryBytes: number }): void {
  peer.blockMs = Math.max(message.blockMs, 0.01);
  peer.memoryBytes = message.memoryBytes;
  note(turn, "admitted", `${peer.id} measured: ${peer.blockMs.toFixed(1)} ms per block`);
  if (turn.s.view !== null) turn.s.replanDue = `${peer.id} joined`;
}

function openWhenReady(turn: Turn): void {
  const { s } = turn;
  if (s.phase !== "loading" || s.view === null) return;
  if (!peersOf(s.view).every((peer) => s.ready.includes(peer))) return;
  setStatus(turn, "training", `${peersOf(s.view).length} peers in ${s.view.stages.length} stages`);
  s.lastCommitAt = turn.now;
  afterBoundary(turn);
}

/** Every holder of a stage must have the same state after a commit (I4); one that differs is put out. */
function applied(
  turn: Turn,
  id: string,
  message: { gen: number; step: number; stage: number; hash: string },
): void {
  const { s } = turn;
  const holds = s.view?.stages[message.stage]?.replicas.some((replica) => replica.peer === id) ?? false;
  if (message.gen !== s.gen || message.step !== s.committed - 1 || !holds) return;
  const first = s.stateHashes[message.stage];
  if (first === undefined) s.stateHashes[message.stage] = message.hash;
  else if (first === message.hash) s.agreements++;
  else evict(turn, id, `state of stage ${message.stage} differs after step ${message.step}`);
}

function linkLost(turn: Turn, id: string, message: { gen: number; peer: string; reason: string }): void {
  const { s } = turn;
  if (message.gen !== s.gen || s.view === null) return;
  const members = peersOf(s.view);
  if (!members.includes(id) || !members.includes(message.peer)) return;
  note(turn, "link", `${id} lost its link to ${message.peer}: ${message.reason}`);
  recover(turn, `link between ${id} and ${message.peer} lost`);
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
  else if (inView || what === "resumes") s.replanDue = `${peer.id} ${what}`;
  if (s.phase === "held") afterBoundary(turn);
}

function stored(turn: Turn, event: { gen: number; step: number; file: StateFile }): void {
  const { s } = turn;
  if (event.gen !== s.gen || s.pending === null || s.pending.step !== event.step) return;
  if (s.pending.files.some((file) => file.stage === event.file.stage)) return;
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
  setStatus(turn, "finished", `${s.committed} steps done`);
  s.phase = "idle";
  const losses = { "train/loss": s.trainLoss ?? NaN, "val/loss": s.valLoss ?? NaN };
  const { checkpoint, sample } = s.ending;
  turn.out.push({ do: "report", line: { event: "done", step: s.committed, ...losses, checkpoint, sample } });
  sayDone(turn, "the run is finished");
}

function administer(turn: Turn, action: "pause" | "resume" | "stop"): void {
  const { s } = turn;
  if (s.status === "finished" || s.status === "failed") return;
  note(turn, "admin", `${action} by the organizer`);
  if (action === "pause") s.paused = true;
  else s.paused = false;
  if (action === "stop") {
    s.target = Math.min(s.target, s.round?.pass === "train" ? s.committed + 1 : s.committed);
  }
  if (action === "stop" && s.view === null) return finish(turn);
  if (s.phase === "held") {
    setStatus(turn, "training", action === "stop" ? "stopping" : "resumed");
    afterBoundary(turn);
  }
}

function tick(turn: Turn): void {
  const { s, now } = turn;
  for (const id of Object.keys(s.beats)) if (s.peers[id] === undefined) delete s.beats[id];
  for (const peer of Object.values(s.peers)) {
    const compiling = peer.blockMs === 0 || s.phase === "loading";
    const limit = compiling ? COMPILING_SILENCE_MS : silenceLimitMs(s.beats[peer.id]?.gaps ?? [], SILENCE_MS);
    const silent = now - peer.heardAt;
    if (silent > limit) {
      evict(turn, peer.id, `silent for ${Math.round(silent / 1000)} s`, { mayReturn: true });
    }
  }
  const age = now - s.phaseSince;
  if (s.phase === "loading" && age > LOADING_MS && s.view !== null) {
    const late = peersOf(s.view).find((peer) => !s.ready.includes(peer));
    if (late !== undefined) evict(turn, late, `not ready after ${LOADING_MS / 1000} s`, { mayReturn: true });
  } else if (s.phase === "round" && age > ROUND_MS) {
    recover(turn, `no progress for ${ROUND_MS / 1000} s`);
  } else if (s.phase === "handover" && age > ROUND_MS) {
    // Asking the same holders for the same state once more would go on for ever.
    restart(turn, `no complete state after ${ROUND_MS / 1000} s`);
  }
}
