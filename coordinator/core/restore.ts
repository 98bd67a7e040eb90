// A stage has lost its last holder: the run goes back to the newest snapshot that peers keep, if that is newer than the
// coordinator's own. For each stage one live peer uploads its state, from its own copy or put together from shards; when all are
// there they are a source like any other. Pure; mutates the turn's state. What must stay true: a state counts only with the
// hash that holders reported; whoever fails or leaves is replaced, and when nobody is left an older source is taken.
import type { StateFile } from "../../peer/wire/control.ts";
import { addSource } from "./boundary.ts";
import { currentHolders } from "./holders.ts";
import { recover, restart } from "./recovery.ts";
import type { RunCoreState } from "./run_state.ts";
import { isRestorable, type KeptStage, type Restoring } from "./snapshot_state.ts";
import { newestSource } from "./safety.ts";
import { giveUp, sendOrder } from "./snapshots.ts";
import { note, setPhase, setStatus, type Turn } from "./turn.ts";

/** A peer that has not brought a stage's state by then is passed over: it may be on a slow line, and others may have it. */
export const RESTORE_MS = 60_000;

type Wanted = Restoring["stages"][number];

/** Begins to collect the newest snapshot that peers keep; false if there is none newer than the coordinator's own. */
export function restoreIfNewer(turn: Turn, reason: string): boolean {
  const { s } = turn;
  const { current } = s.kept;
  if (s.restoring !== null || current === null || s.view?.cut !== current.cut) return false;
  if (current.step <= newestSource(s) || !current.stages.every(isRestorable)) return false;
  giveUp(turn, "the run goes back");
  Object.assign(s, { round: null, pending: null });
  setPhase(turn, "restoring");
  setStatus(turn, "warming up", `${reason}; step ${current.step} is restored from peers' memory`);
  note(turn, "restore", `step ${current.step} from what peers keep`);
  const stages = current.stages.map((_, stage): Wanted => ({
    ...{ stage, peer: "", tried: [], at: turn.now, file: null },
  }));
  s.restoring = { reason, snapshot: current, stages };
  for (const wanted of stages) if (s.restoring !== null) ask(turn, wanted);
  return true;
}

/** The next peer that can bring the state: who has a copy first, then who keeps a shard, each with few others to bring. */
function ask(turn: Turn, wanted: Wanted): void {
  const { s } = turn;
  const { snapshot, stages } = s.restoring!;
  const kept = snapshot.stages[wanted.stage]!;
  const busy = (peer: string) => stages.filter((it) => it.peer === peer && it.file === null).length;
  const next = candidates(kept).filter((it) => !wanted.tried.includes(it.peer))
    .toSorted((a, b) => a.rank - b.rank || busy(a.peer) - busy(b.peer))[0];
  if (next === undefined) return abandon(turn, `nobody could bring stage ${wanted.stage + 1}`);
  const { peer } = next;
  Object.assign(wanted, { peer, at: turn.now, tried: [...wanted.tried, peer] });
  const keepers = kept.keepers.filter((it) => it.kept).map(({ peer, index }) => ({ peer, index }));
  const { index, firstLayer, endLayer } = kept.stage;
  const { step, cut } = snapshot;
  const file = kept.file === null ? null : { step, firstLayer, endLayer, k: kept.k, ...kept.file };
  const where = { cut, step, stage: index, firstLayer, endLayer };
  const message = { type: "restore" as const, ...where, hash: kept.hash!, snapshot: file, keepers };
  // Both ends of a link must want it.
  for (const keeper of keepers) {
    if (next.rank > 0 && keeper.peer !== peer) sendOrder(turn, keeper.peer, { order: "link", peer });
  }
  turn.out.push({ do: "send", peer, message });
}

function candidates({ owners, keepers, k }: KeptStage): { peer: string; rank: number }[] {
  const kept = keepers.filter((it) => it.kept);
  const enough = k > 0 && kept.length >= k;
  return [
    ...owners.map((peer) => ({ peer, rank: 0 })),
    ...(enough ? kept.map(({ peer }) => ({ peer, rank: 1 })) : []),
  ];
}

/** A state was uploaded; the last one completes the snapshot. */
export function restored(turn: Turn, event: { cut: number; step: number; file: StateFile }): void {
  const { s } = turn;
  const { snapshot, stages, reason } = s.restoring!;
  const wanted = stages.find((it) => it.stage === event.file.stage && it.file === null);
  if (event.step !== snapshot.step || event.cut !== snapshot.cut || wanted === undefined) return;
  if (event.file.hash !== snapshot.stages[wanted.stage]!.hash) {
    note(turn, "warning", `${wanted.peer} brought another state of stage ${wanted.stage + 1}`);
    return ask(turn, wanted);
  }
  wanted.file = event.file;
  s.recoveryBytes += event.file.bytes;
  if (stages.some((it) => it.file === null)) return;
  s.restoring = null;
  addSource(turn, { step: snapshot.step, files: stages.map((it) => it.file!) });
  restart(turn, reason);
}

export function restoreFailed(
  turn: Turn,
  peer: string,
  message: { cut: number; step: number; stage: number; reason: string },
): void {
  const { restoring } = turn.s;
  const wanted = restoring?.stages.find((it) => it.stage === message.stage && it.peer === peer);
  if (restoring?.snapshot.step !== message.step || wanted === undefined || wanted.file !== null) return;
  note(turn, "warning", `${peer} cannot bring stage ${message.stage + 1}: ${message.reason}`);
  ask(turn, wanted);
}

/**
 * Somebody is gone meanwhile; what it was to bring others bring, if they can. Who waits for a shard of it is told: a link that
 * was still being made to it would show nothing for long.
 */
export function restoreWithout(turn: Turn, gone: string): void {
  for (const wanted of turn.s.restoring?.stages ?? []) {
    if (turn.s.restoring === null) return;
    if (wanted.file !== null) continue;
    if (wanted.peer === gone) ask(turn, wanted);
    else sendOrder(turn, wanted.peer, { order: "gone", peer: gone });
  }
}

export function timeOutRestore(turn: Turn): void {
  for (const wanted of turn.s.restoring?.stages ?? []) {
    if (turn.s.restoring === null) return;
    if (wanted.file !== null || turn.now - wanted.at < RESTORE_MS) continue;
    note(turn, "warning", `${wanted.peer} has not brought stage ${wanted.stage + 1}`);
    ask(turn, wanted);
  }
}

/**
 * A learner has caught up meanwhile, so every stage has a holder of everything committed again: that is collected instead, and
 * nothing is lost.
 */
export function endRestoreIfHeld(turn: Turn): void {
  const { s } = turn;
  if (s.restoring === null || !s.view!.stages.every((stage) => currentHolders(s, stage).length > 0)) return;
  const { reason } = s.restoring;
  s.restoring = null;
  note(turn, "restore", "every stage has a holder again: nothing has to be done again");
  setPhase(turn, "held");
  recover(turn, reason);
}

/** The snapshot cannot be had: an older source is taken, and the run says how far that is. */
function abandon(turn: Turn, why: string): void {
  const { s } = turn;
  const { reason, snapshot } = s.restoring!;
  note(turn, "restore", `step ${snapshot.step} cannot be restored: ${why}`);
  s.restoring = null;
  s.kept.current = null;
  restart(turn, reason);
}

/** Whether this very peer was asked to bring the stage's state of that step, and has not yet. */
export function isAsked(s: RunCoreState, at: { peer: string; step: number; stage: number }): boolean {
  const { restoring } = s;
  if (restoring?.snapshot.step !== at.step) return false;
  return restoring.stages.some((it) => it.stage === at.stage && it.peer === at.peer && it.file === null);
}
