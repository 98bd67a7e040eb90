// A restarted coordinator gathers the peers of its last view again: they kept computing meanwhile and hold what is committed.
// Whoever comes back does so under its own id and says what it holds; then the view is amended without the others, the last
// commit is said again, and the same step goes on. Pure; mutates the turn's state. What must stay true: nothing is opened
// before every stage has a holder of everything committed; if that does not come, the run falls back and says so.
import type { Have } from "../../peer/wire/control.ts";
import { UNREAD_STATE } from "../../peer/wire/values.ts";
import { peersOf } from "../../peer/wire/view.ts";
import { openAhead } from "./ahead.ts";
import { amendView } from "./amend.ts";
import { afterBoundary, openRound } from "./boundary.ts";
import { setAsideChanges } from "./changes.ts";
import { noteTold, settleReturned } from "./disputes.ts";
import { everyStageHeld, isHolder, keepsUp } from "./holders.ts";
import { startTransfer } from "./learn.ts";
import { recover, restart } from "./recovery.ts";
import type { ReturnEvent, RunRecord } from "./run_record.ts";
import { type PeerRecord, type RunCoreState, zeroCounters } from "./run_state.ts";
import { withoutPeer } from "./shares.ts";
import { settleRequests } from "./totals.ts";
import { note, setPhase, setStatus, type Turn } from "./turn.ts";

/** Peers knock every few seconds; who has not come back by then is done without, if the others hold everything. */
const REGATHER_MS = 8_000;
/** Peers stop knocking after a minute: what is not here by then will not come. */
const REGATHER_MOST_MS = 60_000;

/** Puts a fresh state where the killed coordinator's log ends. */
export function restoreState(s: RunCoreState, record: RunRecord): void {
  const { gen, view, committed, commit, changes } = record;
  s.lossScales = record.lossScales ?? [];
  if (changes !== undefined) Object.assign(s, { changes, changed: true });
  Object.assign(s, { gen, committed, started: view !== null });
  if (commit !== null) {
    const { gen: _, lossScale: __, ...said } = commit;
    s.lastCommit = { type: "commit", ...said };
  }
  if (view === null) return;
  // Nothing is known of who applied what until they say so themselves.
  Object.assign(s, { view, phase: "regathering", phaseSince: -1, cutBase: -1 });
  setAsideChanges(s);
  Object.assign(s, { status: "waiting", reason: `restarted at step ${committed}; waiting for its peers` });
}

/** A member of the view is back. */
export function returned(turn: Turn, basics: ReturnEvent["peer"], have: Have | null): void {
  const { s, now } = turn;
  // It is of this version, or it would not have been let in before.
  const flags = { paused: false, leaving: false, hidden: false, writes: true };
  const peer: PeerRecord = { ...basics, joinedAt: now, heardAt: now, ...zeroCounters(), ...flags };
  s.peers[peer.id] = peer;
  note(turn, "return", `${peer.id} is back`);
  turn.out.push({ do: "report", line: { event: "peer", id: peer.id, what: "back" } });
  if (s.phase !== "regathering" || have?.cut !== s.view?.cut) return;
  for (const held of have?.stages ?? []) {
    if (isHolder(s, held.stage, peer.id)) noteHolding(turn, peer.id, held);
  }
  concludeIfWhole(turn);
}

function noteHolding(turn: Turn, id: string, held: Have["stages"][number]): void {
  const { s } = turn;
  const { stage, step, hash, logged } = held;
  if (hash !== UNREAD_STATE) noteTold(s, id, { step: step - 1, stage, hash });
  (s.applied[id] ??= {})[stage] = step - 1;
  // A total that was logged is as good as applied: the commit that follows makes it so.
  if (logged === true && step === s.committed - 1) {
    ((s.loggers[step] ??= {})[stage] ??= []).push(id);
  }
}

/** Asked at every tick, and whenever somebody has come back or gone again. */
export function concludeIfWhole(turn: Turn): void {
  const { s, now } = turn;
  if (s.phase !== "regathering") return;
  // The clock begins with the first event: creating a state has no time.
  if (s.phaseSince < 0) s.phaseSince = now;
  const waited = now - s.phaseSince;
  const whole = peersOf(s.view!).every((peer) => s.peers[peer] !== undefined);
  const enough = everyStageHeld(s);
  if (enough && (whole || waited > REGATHER_MS)) return judgeAndGoOn(turn);
  if (waited > REGATHER_MOST_MS || (whole && !enough)) {
    restart(turn, "the peers that came back do not hold every stage any more");
  }
}

function judgeAndGoOn(turn: Turn): void {
  const { s } = turn;
  const wrong = settleReturned(turn);
  if (s.phase !== "regathering") return;
  if (!everyStageHeld(s)) return restart(turn, "nobody whose state is right holds every stage any more");
  goOn(turn);
  // Others may hold sums and tensors of the open step that come of a wrong state: it begins anew from the states before it.
  if (wrong && s.round?.pass === "train") recover(turn, "a state was wrong");
}

/** Who was still loading the cut has nothing of it, and nowhere to keep what others send: it learns a stage like a newcomer. */
function holdsItsShare(s: RunCoreState, peer: string): boolean {
  return s.view!.stages.every(({ index, replicas }) =>
    replicas.every((it) => it.peer !== peer || it.learning === true || s.applied[peer]?.[index] !== undefined)
  );
}

function goOn(turn: Turn): void {
  const { s } = turn;
  let stages = s.view!.stages;
  const missing = peersOf(s.view!).filter((peer) => s.peers[peer] === undefined || !holdsItsShare(s, peer));
  const takers = { peers: s.peers, keepsUp: (peer: string, stage: number) => keepsUp(s, stage, peer) };
  for (const peer of missing) stages = withoutPeer(stages, peer, takers) ?? stages;
  setPhase(turn, "held");
  s.amendedStep = s.committed;
  // Before the view, whose shares may be those of the step that follows it.
  for (const peer of peersOf(s.view!)) {
    if (s.lastCommit?.cut !== s.view!.cut || s.peers[peer] === undefined) continue;
    turn.out.push({ do: "send", peer, message: s.lastCommit });
  }
  amendView(
    turn,
    stages,
    `the coordinator is back${missing.length > 0 ? `, without ${missing.join(", ")}` : ""}`,
  );
  setStatus(turn, "training", `${peersOf(s.view!).length} peers are back`);
  s.lastCommitAt = turn.now;
  for (const stage of stages) {
    for (const { peer, learning } of stage.replicas) if (learning) startTransfer(turn, stage.index, peer);
  }
  // Whoever asked for a total before the others were back waits for it still.
  settleRequests(turn);
  if (s.committed >= s.target) return afterBoundary(turn);
  // The step that was open goes on; nothing else may come between.
  openRound(turn, "train");
  openAhead(turn, { certain: true });
  s.tidyDue = true;
}
