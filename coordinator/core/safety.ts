// What would be lost if somebody left now: per stage, per peer and for the run. Pure questions about the state; nothing here
// changes it. What must stay true: 0 is said only if another peer that lives has everything committed.
import type { StagePlan } from "../../peer/wire/run.ts";
import type { StageSafety } from "../../peer/wire/status.ts";
import { currentHolders, liveHolders, onlyHeldBy, redundancyOf } from "./holders.ts";
import type { RunCoreState } from "./run_state.ts";
import { isRestorable, type KeptStage, keptStep, protectionNow } from "./snapshot_state.ts";

/** Committed steps in the newest source that the coordinator has itself; 0 = the seed. */
export function newestSource(s: Pick<RunCoreState, "snapshots" | "source">): number {
  return Math.max(s.snapshots.at(-1)?.step ?? 0, s.source?.step ?? 0);
}

/** Committed steps in the newest complete snapshot, here or with peers, which the run falls back to; 0 = the seed. */
export function snapshotStep(s: Pick<RunCoreState, "snapshots" | "source" | "kept">): number {
  return Math.max(newestSource(s), keptStep(s.kept));
}

/** Steps since that snapshot: what the loss of a stage costs. */
function unsaved(s: RunCoreState): number {
  return Math.max(0, s.committed - snapshotStep(s));
}

/** The same if the peer goes, who may take with it what the snapshot cannot be restored without. */
function unsavedWithout(s: RunCoreState, gone: string): number {
  const left = (stage: KeptStage) => ({
    ...stage,
    keepers: stage.keepers.filter(({ peer }) => peer !== gone),
    owners: stage.owners.filter((peer) => peer !== gone),
  });
  const restorable = s.kept.current?.stages.every((stage) => isRestorable(left(stage))) ?? false;
  return Math.max(0, s.committed - Math.max(newestSource(s), restorable ? keptStep(s.kept) : 0));
}

/** Committed steps that would be done again if this peer vanished now. */
export function stepsAtRiskWith(s: RunCoreState, peer: string): number {
  return onlyHeldBy(s, peer).length > 0 ? unsavedWithout(s, peer) : 0;
}

/** Committed steps that the departure of one peer now could cost: of the one that matters most. */
export function stepsAtRisk(s: RunCoreState): number {
  return Math.max(0, ...(s.view?.stages ?? []).map((stage) => stageRisk(s, stage)));
}

function stageRisk(s: RunCoreState, stage: StagePlan): number {
  const [first, ...more] = currentHolders(s, stage);
  if (more.length > 0) return 0;
  return first === undefined ? unsaved(s) : unsavedWithout(s, first.peer);
}

/** Stage by stage: who has the state, who fetches it, and what its loss would cost. */
export function safetyOf(s: RunCoreState): StageSafety[] {
  return (s.view?.stages ?? []).map((stage) => ({
    redundancy: redundancyOf(s, stage),
    snapshot: protectionOf(s, stage),
    holders: liveHolders(s, stage).map((replica) => replica.peer),
    learning: stage.replicas.filter((it) => it.learning === true && s.peers[it.peer] !== undefined).map((
      it,
    ) => it.peer),
    stepsAtRisk: stageRisk(s, stage),
  }));
}

/** What peers of other stages keep of the stage in the newest snapshot. */
function protectionOf(s: RunCoreState, stage: StagePlan): StageSafety["snapshot"] {
  const kept = s.kept.current?.cut === s.view?.cut ? s.kept.current?.stages[stage.index] : undefined;
  return kept === undefined ? "none" : protectionNow(kept);
}
