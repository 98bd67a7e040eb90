// Learners: peers that take a stage's state over from a holder while training goes on. The holder exports its state between
// two steps, the learner fetches it, then the totals since, until its state hash agrees; only then does it count as a
// holder. Pure; mutates the turn's state.
import type { StateFile } from "../../peer/wire/control.ts";
import { currentHolders, isLearner } from "./holders.ts";
import { LOADING_MS, loadingMs } from "./loading.ts";
import { evict } from "./recovery.ts";
import type { Transfer } from "./run_state.ts";
import { learned } from "./shares.ts";
import { note, type Turn } from "./turn.ts";

/** A transfer that has not ended by then begins anew: the holder may be too busy, or the learner's line too slow. */
const TRANSFER_MS = 60_000;
/** Attempts to bring one learner up to date before it is let go. */
const ATTEMPTS_MAX = 5;

/** Asks a holder for its state at the newest committed step. */
export function startTransfer(turn: Turn, stage: number, peer: string): void {
  const { s } = turn;
  const transfer = s.transfers.find((it) => it.stage === stage && it.peer === peer);
  if (transfer !== undefined) return retry(turn, transfer);
  const fresh: Transfer = { stage, peer, from: "", step: 0, file: null, at: turn.now, attempts: 0 };
  s.transfers.push(fresh);
  retry(turn, fresh);
}

function retry(turn: Turn, transfer: Transfer): void {
  const { s } = turn;
  const { stage, peer } = transfer;
  if (transfer.attempts++ >= ATTEMPTS_MAX) {
    return evict(turn, peer, `it could not take over stage ${stage + 1}`, { mayReturn: true });
  }
  const holders = currentHolders(s, s.view!.stages[stage]!).map((replica) => replica.peer);
  // Each attempt asks another holder, those that compute nothing for the stage last in the view first.
  const from = holders.at(-(1 + (transfer.attempts - 1) % Math.max(1, holders.length)));
  if (from === undefined) return;
  Object.assign(transfer, { from, step: s.committed, file: null, at: turn.now });
  const message = { type: "snapshot" as const, cut: s.view!.cut, step: s.committed, stage };
  turn.out.push({ do: "send", peer: from, message });
}

/** A state has been uploaded: learners that wait for it are told where it is. */
export function offerState(turn: Turn, step: number, file: StateFile): void {
  const { s } = turn;
  for (const transfer of s.transfers) {
    if (transfer.stage !== file.stage || transfer.step !== step || transfer.file !== null) continue;
    Object.assign(transfer, { file, at: turn.now });
    s.recoveryBytes += 2 * file.bytes;
    const message = { type: "state" as const, cut: s.view!.cut, step, stage: file.stage, file };
    turn.out.push({ do: "send", peer: transfer.peer, message });
  }
}

export function wantState(
  turn: Turn,
  peer: string,
  message: { cut: number; stage: number; reason: string },
): void {
  const { s } = turn;
  if (message.cut !== s.view?.cut || !isLearner(s, message.stage, peer)) return;
  note(turn, "warning", `${peer} asks again for the state of stage ${message.stage + 1}: ${message.reason}`);
  startTransfer(turn, message.stage, peer);
}

/**
 * Learners that have everything committed, with the same state hash as the first holder told, count as holders from here on.
 * True if one does now; one that differs is put out.
 */
export function settleLearners(turn: Turn, stage: number): boolean {
  const { s } = turn;
  let learnt = false;
  for (const { peer, learning } of s.view!.stages[stage]!.replicas) {
    const told = learning === true ? s.learnerHashes[`${stage}/${peer}`] : undefined;
    const first = told === undefined ? undefined : s.stateHashes[told.step]?.[stage];
    if (told === undefined || first === undefined) continue;
    if (told.hash !== first) {
      evict(turn, peer, `state of stage ${stage} differs after step ${told.step}`);
      return learnt;
    }
    // It may be the only one left as soon as it counts, so nothing that is committed may be missing.
    if (told.step < s.committed - 1) continue;
    completeTransfer(turn, stage, peer);
    learnt = true;
  }
  return learnt;
}

/** A learner has applied everything up to now, with the same hash as the others: it is a holder from here on. */
function completeTransfer(turn: Turn, stage: number, peer: string): void {
  const { s } = turn;
  s.transfers = s.transfers.filter((it) => it.stage !== stage || it.peer !== peer);
  // The peers learn of it with the next view; for commits it counts at once.
  s.view = { ...s.view!, stages: learned(s.view!.stages, stage, peer) };
  s.tidyDue = true;
  note(turn, "holder", `${peer} holds stage ${stage + 1} now, its state verified`);
}

/** Those who left need nothing any more; who waited for them asks somebody else. */
export function rerouteTransfers(turn: Turn, gone: string): void {
  const { s } = turn;
  s.transfers = s.transfers.filter((it) => it.peer !== gone);
  for (const transfer of [...s.transfers]) {
    if (transfer.from === gone && transfer.file === null) retry(turn, transfer);
  }
}

export function timeOutTransfers(turn: Turn): void {
  const { spec, view } = turn.s;
  // With adapters a learner also fetches its layers of the frozen model.
  const patience = TRANSFER_MS + (view === null ? 0 : loadingMs(spec, view) - LOADING_MS);
  for (const transfer of [...turn.s.transfers]) {
    if (turn.now - transfer.at > patience) retry(turn, transfer);
  }
}
