// Which of the core's effects stand in the run's log before they are carried out, and how. Knows the log's records and nothing
// of sockets; whoever calls it holds back what follows until it returns.
import type { CommitRecord, PersistEffect, RestoredPeer } from "./core/run_record.ts";
import type { RunCoreState, RunEffect } from "./core/run_state.ts";
import type { ConfigChange } from "../peer/wire/changes.ts";
import type { RunConfig, View } from "../peer/wire/run.ts";
import { peersOf } from "../peer/wire/view.ts";

export type ShellEffect = RunEffect | PersistEffect;

/** What proves that a returning peer is the one it says it is. */
export interface Identity {
  ticket: string;
  incarnation: number;
}

/** The part of RunLog that effects need. */
export interface EffectLog {
  appendView(view: View, peers: RestoredPeer[]): void;
  appendCommit(commit: CommitRecord): void;
  appendConfig(config: RunConfig, changes: ConfigChange[]): void;
  appendRewind(committed: number): void;
  appendEnd(ended: { step: number; checkpoint: string }): void;
}

/**
 * Writes what must outlive the coordinator before `effect` may be carried out; most effects need nothing.
 * @throws {ShoalError} storage-full: nothing is recorded, and the effect must wait.
 */
export function recordEffect(
  log: EffectLog,
  effect: ShellEffect,
  members: (view: View) => RestoredPeer[],
): void {
  if (effect.do === "persist") {
    const { record } = effect;
    if (record.kind === "view") return log.appendView(record.view, members(record.view));
    if (record.kind === "config") return log.appendConfig(record.config, record.changes);
    const { kind: _, ...commit } = record;
    return log.appendCommit(commit);
  }
  if (effect.do !== "report") return;
  const { line } = effect;
  if (line.event === "rollback") log.appendRewind(line.step);
  else if (line.event === "done") log.appendEnd({ step: line.step, checkpoint: line.checkpoint });
}

/** The members of a view as they may come back after a restart. */
export function membersOf(
  view: View,
  peers: RunCoreState["peers"],
  identities: ReadonlyMap<string, Identity>,
): RestoredPeer[] {
  return peersOf(view).flatMap((id) => {
    const [peer, identity] = [peers[id], identities.get(id)];
    if (peer === undefined || identity === undefined) return [];
    const { runtime, adapter, engine, name, blockMs, fixedMs, memoryBytes, gpuOptimizer = false } = peer;
    const measured = { blockMs, memoryBytes, gpuOptimizer, ...(fixedMs === undefined ? {} : { fixedMs }) };
    return [{ id, runtime, adapter, engine, name, ...measured, ...identity }];
  });
}
