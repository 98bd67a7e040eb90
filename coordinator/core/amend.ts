// Amending a view: generation + 1, the same cut of the layers, the same open step. Everybody keeps what they have; only who
// does what changes. Pure; mutates the turn's state. What must stay true: an amendment loses nothing, so it is made only
// while every stage has a holder that lives.
import { holds, peersOf } from "../../peer/wire/view.ts";
import type { StagePlan } from "../../peer/wire/run.ts";
import { currentHolders, keepsUp, learnersOf } from "./holders.ts";
import type { RunCoreState } from "./run_state.ts";
import { reroute, rerouteStage } from "./totals.ts";
import { withoutPeer } from "./shares.ts";
import { keepsOrder, orderLost } from "./textbook_upkeep.ts";
import { note, type Turn } from "./turn.ts";

/** Sends the present cut with other stages; what was asked of somebody who is gone is asked of somebody else. */
export function amendView(turn: Turn, stages: StagePlan[], why: string): void {
  const { s } = turn;
  // Sums of the generation before are void, so the others may lack what a holder that has the total will not send again.
  if (s.round?.pass === "train") s.amendedStep = s.round.step;
  s.gen++;
  const kept = keepsOrder(s, s.view!.stages);
  const former = noteReplicas(s, stages);
  s.view = { ...s.view!, gen: s.gen, baseStep: s.committed, stages };
  s.toldLearners = learnersOf(stages);
  note(turn, "view", `generation ${s.gen} at step ${s.committed}: ${why}`, { gen: s.gen, cut: s.view.cut });
  if (kept && !keepsOrder(s, stages)) orderLost(turn);
  turn.out.push({ do: "persist", record: { kind: "view", view: s.view } });
  for (const peer of Object.keys(s.peers)) {
    turn.out.push({ do: "send", peer, message: { type: "view", view: s.view, source: null } });
  }
  for (const { stage, peer } of former) rerouteStage(turn, stage, peer);
  if (s.round?.pass === "eval") {
    s.evaluated = {};
    const open = { type: "open" as const, gen: s.gen, step: s.round.step, pass: s.round.pass };
    for (const peer of peersOf(s.view)) turn.out.push({ do: "send", peer, message: open });
  }
}

/** Who lets go of which stage. What a peer has said of a stage is not true of one that it lets go of and learns anew. */
function noteReplicas(s: RunCoreState, stages: StagePlan[]): { stage: number; peer: string }[] {
  const former = s.view!.stages.flatMap(({ index, replicas }) =>
    replicas.filter(({ peer }) => !holds(stages[index], peer)).map(({ peer }) => ({ stage: index, peer }))
  );
  for (const { stage, peer } of former) forgetReplica(s, stage, peer);
  for (const stage of stages) {
    for (const { peer } of stage.replicas) {
      if (!holds(s.view!.stages[stage.index], peer)) s.replicaSince[`${stage.index}/${peer}`] = s.gen;
    }
  }
  return former;
}

function forgetReplica(s: RunCoreState, stage: number, peer: string): void {
  delete s.applied[peer]?.[stage];
  delete s.learnerHashes[`${stage}/${peer}`];
  delete s.logged[stage]?.[peer];
  for (const step of Object.values(s.loggers)) {
    if (step[stage] !== undefined) step[stage] = step[stage].filter((it) => it !== peer);
  }
  s.warm[peer] = (s.warm[peer] ?? []).filter((it) => it !== stage);
}

/** The same step goes on without a peer that has just been removed; false if that would lose a stage. */
export function amendWithout(turn: Turn, gone: string, why: string): boolean {
  const { s } = turn;
  const follows = (peer: string, stage: number) => keepsUp(s, stage, peer);
  const stages = withoutPeer(s.view!.stages, gone, { peers: s.peers, keepsUp: follows });
  if (stages === null || !stages.every((stage) => currentHolders(s, stage).length > 0)) return false;
  for (const stage of Object.values(s.logged)) delete stage[gone];
  delete s.evaluated[gone];
  s.reassigned += owedBy(s.view!.stages, gone);
  amendView(turn, stages, why);
  reroute(turn, gone);
  return true;
}

function owedBy(stages: StagePlan[], peer: string): number {
  return stages.reduce(
    (sum, stage) => sum + (stage.replicas.find((it) => it.peer === peer)?.microBatches.length ?? 0),
    0,
  );
}
