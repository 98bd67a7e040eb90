// Holders of a stage that tell different states after a commit (I4). The greater number is right; where as many say one as the
// other, nobody can say who is, and the run goes back to a state of which all had told the same. Pure; mutates the turn's state.
// What must stay true: while it is open whose state is right, nothing is committed, and no run ends before all have spoken.
import type { StateFile } from "../../peer/wire/control.ts";
import { liveHolders } from "./holders.ts";
import { evict, restart } from "./recovery.ts";
import type { RunCoreState } from "./run_state.ts";
import { note, type Turn } from "./turn.ts";

/** A peer that was among those who differed so often is put out even if nobody can say that it was the wrong one. */
const DISPUTES_MAX = 2;

interface Told {
  step: number;
  stage: number;
}

/** A holder's state hash after a step; true if all who told theirs have the same. */
export function tellState(turn: Turn, peer: string, { step, stage, hash }: Told & { hash: string }): boolean {
  const { s } = turn;
  noteTold(s, peer, { step, stage, hash });
  // Those who would outvote it may be on their way back.
  if (s.phase === "regathering") return true;
  const told = s.stateTold[step]![stage]!;
  // Whoever brought another state says so too, sooner or later.
  s.snapshots = s.snapshots.filter((it) => it.step !== step + 1 || it.files.every(isOf(stage, hash)));
  if (s.pending?.step === step + 1) s.pending.files = s.pending.files.filter(isOf(stage, hash));
  if (!differs(told)) {
    if (Object.keys(told).length > 1) s.agreements++;
    return true;
  }
  settle(turn, { step, stage });
  return false;
}

/** Without judging it: who comes back to a restarted coordinator is judged once all who come have come. */
export function noteTold(
  s: RunCoreState,
  peer: string,
  { step, stage, hash }: Told & { hash: string },
): void {
  ((s.stateTold[step] ??= {})[stage] ??= {})[peer] = hash;
  (s.stateHashes[step] ??= {})[stage] ??= hash;
}

/**
 * Judges what those have told who came back: their newest states. Who is a step behind has the total of it, and is judged when
 * it has applied that. The run may go back, or lose those who were wrong: then true.
 */
export function settleReturned(turn: Turn): boolean {
  const { s } = turn;
  const before = Object.keys(s.peers).length;
  const judged = new Set<number>();
  for (const step of Object.keys(s.stateTold).map(Number).toSorted((a, b) => b - a)) {
    for (const stage of Object.keys(s.stateTold[step]!).map(Number)) {
      const isOlder = judged.has(stage);
      judged.add(stage);
      if (!differs(s.stateTold[step]![stage]!)) continue;
      if (isOlder) delete s.stateHashes[step]![stage];
      else settle(turn, { step, stage });
      if (s.phase !== "regathering") return false;
    }
  }
  return Object.keys(s.peers).length < before;
}

function isOf(stage: number, hash: string): (file: StateFile) => boolean {
  return (file) => file.stage !== stage || file.hash === hash;
}

/** Whether a state that somebody brought is the one that was told of after the step before it, as far as anybody has. */
export function isTold({ stateHashes }: RunCoreState, step: number, { stage, hash }: StateFile): boolean {
  return (stateHashes[step - 1]?.[stage] ?? hash) === hash;
}

/** A holder that has not told its state after the newest step; null if all who live have. */
export function silentHolder(s: RunCoreState): string | null {
  if (s.committed === s.cutBase) return null;
  const silent = s.view!.stages.flatMap((stage) =>
    liveHolders(s, stage).filter(({ peer }) => (s.applied[peer]?.[stage.index] ?? -1) < s.committed - 1)
  );
  return silent[0]?.peer ?? null;
}

/** An open question is asked again: who has not told yet may have told, or may be gone. */
export function settleDispute(turn: Turn): void {
  const { dispute, phase } = turn.s;
  if (dispute !== null && phase !== "regathering" && phase !== "restoring") settle(turn, dispute);
}

function differs(told: Record<string, string>): boolean {
  return new Set(Object.values(told)).size > 1;
}

function settle(turn: Turn, { step, stage }: Told): void {
  const { s } = turn;
  const told = s.stateTold[step]![stage]!;
  const [most, next] = tally(told);
  if (most!.peers.length > (next?.peers.length ?? 0)) {
    s.stateHashes[step]![stage] = most!.hash;
    s.dispute = null;
    for (const peer of Object.keys(told).filter((id) => told[id] !== most!.hash)) {
      evict(turn, peer, `state of stage ${stage} differs after step ${step}`, { wrong: true });
    }
    return;
  }
  const open = liveHolders(s, s.view!.stages[stage]!).some(({ peer }) =>
    told[peer] === undefined && (s.applied[peer]?.[stage] ?? -1) < step
  );
  if (open) s.dispute = { step, stage };
  else goBack(turn, { step, stage });
}

/** Who told which hash, most peers first. Votes of those who are gone count: a memory was right or wrong when it was told of. */
function tally(told: Record<string, string>): { hash: string; peers: string[] }[] {
  const byHash = Map.groupBy(Object.keys(told), (peer) => told[peer]!);
  return [...byHash].map(([hash, peers]) => ({ hash, peers })).sort((a, b) =>
    b.peers.length - a.peers.length
  );
}

/** The states before the step were told alike: whatever came after is dropped, also by those who were right. */
function goBack(turn: Turn, { step, stage }: Told): void {
  const { s } = turn;
  const peers = Object.keys(s.stateTold[step]![stage]!).filter((id) => s.peers[id] !== undefined);
  const reason = `${peers.join(" and ")} differ in stage ${stage + 1} after step ${step}`;
  note(turn, "dispute", `${reason}, and nobody can say who is right`);
  for (const peer of peers) s.disputes[peer] = (s.disputes[peer] ?? 0) + 1;
  s.dispute = null;
  s.snapshots = s.snapshots.filter((source) => source.step <= step);
  if (s.kept.current !== null && s.kept.current.step > step) s.kept.current = null;
  Object.assign(s, { round: null, pending: null });
  restart(turn, reason);
  const often = peers.filter((id) => s.disputes[id]! >= DISPUTES_MAX)
    .toSorted((a, b) => s.disputes[b]! - s.disputes[a]! || s.peers[b]!.joinedAt - s.peers[a]!.joinedAt)[0];
  if (often !== undefined) evict(turn, often, `its states differed from others' ${s.disputes[often]} times`);
}
