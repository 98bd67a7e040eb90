// Who has fallen silent: binds the detector to the run's state. A peer that compiles, loads or learns has long patience, each
// by itself; everybody else is judged by their own heartbeats. Pure; mutates the turn's state.
import { stagesOf } from "../../peer/wire/view.ts";
import { beat, judge, listen, type Verdict } from "./detect.ts";
import { isLearner } from "./holders.ts";
import { evict } from "./recovery.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";
import { note, type Turn } from "./turn.ts";

/** A peer silent for longer is gone, whatever its heartbeats were like; a closed socket is noticed at once, this is for frozen peers and dead networks. */
export const SILENCE_MS = 15_000;
/** While shaders compile, a software adapter may hold the thread that sends heartbeats for many seconds. */
export const COMPILING_SILENCE_MS = 60_000;

/** To be called first of all with every event. */
export function keepListening(turn: Turn): void {
  turn.s.ear = listen(turn.s.ear, turn.now);
}

/** Anything that a peer says shows that it lives; only heartbeats, sent at even intervals, tell what silence is usual. */
export function heardFrom(turn: Turn, peer: PeerRecord, heartbeat: boolean): void {
  const { s } = turn;
  peer.heardAt = turn.now;
  const ms = s.ear?.ms ?? 0;
  const old = s.beats[peer.id];
  if (heartbeat || old === undefined) s.beats[peer.id] = beat(old, ms, isBusy(s, peer));
  else old.at = ms;
  s.suspected = s.suspected.filter((id) => id !== peer.id);
}

/** Puts out who is gone, and notes who may be. */
export function judgeSilence(turn: Turn): void {
  const { s, now } = turn;
  for (const id of Object.keys(s.beats)) if (s.peers[id] === undefined) delete s.beats[id];
  s.suspected = s.suspected.filter((id) => s.peers[id] !== undefined);
  // All are judged before the first goes: a view that begins without it gives the others the long patience.
  const verdicts = Object.values(s.peers).map((peer) => ({ peer, verdict: verdictOn(s, peer) }));
  for (const { peer, verdict } of verdicts) {
    if (verdict === "suspect" && !s.suspected.includes(peer.id)) {
      s.suspected.push(peer.id);
      note(turn, "silent", `${peer.id} is silent`);
    }
    if (verdict !== "gone") continue;
    const seconds = Math.round((now - peer.heardAt) / 100) / 10;
    evict(turn, peer.id, `silent for ${seconds} s`, { mayReturn: true });
  }
}

function verdictOn(s: RunCoreState, peer: PeerRecord): Verdict {
  const ms = s.ear?.ms ?? 0;
  const beats = s.beats[peer.id] ??= { at: ms, gaps: [] };
  if (isBusy(s, peer)) beats.busyAt ??= ms;
  else delete beats.busyAt;
  return judge(beats, ms, { mostMs: SILENCE_MS, busyMs: COMPILING_SILENCE_MS });
}

/** Compiling, loading or learning: it may hold the thread that sends heartbeats. */
function isBusy(s: RunCoreState, peer: PeerRecord): boolean {
  if (peer.blockMs === 0 || s.phase === "loading" || s.phase === "regathering") return true;
  const held = s.view === null ? [] : stagesOf(s.view, peer.id);
  return held.some(({ index }) =>
    isLearner(s, index, peer.id) || !(s.warm[peer.id]?.includes(index) ?? false)
  );
}
