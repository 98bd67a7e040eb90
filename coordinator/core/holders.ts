// Who holds what: questions about the present view and the peers that live, which many parts of the core must answer alike.
// A holder has the stage's state and logs its totals; a learner is still fetching it and counts for nothing. Pure.
import type { ReplicaPlan, StagePlan } from "../../peer/wire/run.ts";
import type { Redundancy } from "../../peer/wire/status.ts";
import { holds } from "../../peer/wire/view.ts";
import type { RunCoreState } from "./run_state.ts";

/** Holders of a stage that live and have its state. */
export function liveHolders(s: Pick<RunCoreState, "peers">, stage: StagePlan): ReplicaPlan[] {
  return stage.replicas.filter((replica) => replica.learning !== true && s.peers[replica.peer] !== undefined);
}

/** Those of them that have everything committed: what survives if all others go now. */
export function currentHolders(s: RunCoreState, stage: StagePlan): ReplicaPlan[] {
  const last = s.committed - 1;
  return liveHolders(s, stage).filter(({ peer }) =>
    s.committed === s.cutBase || (s.applied[peer]?.[stage.index] ?? -1) >= last ||
    (s.loggers[last]?.[stage.index]?.includes(peer) ?? false)
  );
}

/** Whether each stage has a holder of everything committed. */
export function everyStageHeld(s: RunCoreState): boolean {
  return s.view!.stages.every((stage) => currentHolders(s, stage).length > 0);
}

/**
 * Whether a holder is one step behind at most: what others send it for the open step is further ahead than it accepts otherwise,
 * so it can be given no work there. Two others may have committed steps without it.
 */
export function keepsUp(s: RunCoreState, stage: number, peer: string): boolean {
  const { committed, cutBase } = s;
  if (cutBase >= committed - 1 || (s.applied[peer]?.[stage] ?? -1) >= committed - 2) return true;
  return s.loggers[committed - 1]?.[stage]?.includes(peer) ?? false;
}

export function isHolder(s: RunCoreState, stage: number, peer: string): boolean {
  const plan = s.view?.stages[stage];
  return plan !== undefined && liveHolders(s, plan).some((replica) => replica.peer === peer);
}

/** It was said of the stage as the peer held it before it let go of it in this cut. */
export function isOfFormer(s: RunCoreState, peer: string, said: { stage: number; gen: number }): boolean {
  return said.gen < (s.replicaSince[`${said.stage}/${peer}`] ?? 0);
}

export function isLearner(s: RunCoreState, stage: number, peer: string): boolean {
  const replicas = s.view?.stages[stage]?.replicas ?? [];
  return replicas.some((replica) => replica.peer === peer && replica.learning === true);
}

/** What protects a stage's state from the loss of one peer. */
export function redundancyOf(s: Pick<RunCoreState, "peers">, stage: StagePlan): Redundancy {
  const holders = liveHolders(s, stage);
  const computing = holders.filter((replica) => replica.microBatches.length > 0);
  if (computing.length > 1) return "replica";
  return holders.length > 1 ? "shadow" : "none";
}

/** Stages of which this peer is the only holder: they would be lost with it. */
export function onlyHeldBy(s: RunCoreState, peer: string): StagePlan[] {
  return (s.view?.stages ?? []).filter((stage) =>
    holds(stage, peer) && currentHolders(s, stage).every((replica) => replica.peer === peer)
  );
}

/** Who learns which stage, as one text to compare. */
export function learnersOf(stages: StagePlan[]): string {
  return stages.map((stage) => stage.replicas.filter((it) => it.learning).map((it) => it.peer)).join("/");
}
