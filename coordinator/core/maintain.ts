// Upkeep of the present cut between two steps: those who want to leave are let go once others hold what they hold, stages
// with one holder get a second, newcomers get a stage, and micro-batches are dealt out by speed. One amendment at most, and
// none if nothing would change. Pure; mutates the turn's state.
import { holds, peersOf } from "../../peer/wire/view.ts";
import type { StagePlan } from "../../peer/wire/run.ts";
import { amendView } from "./amend.ts";
import { promise } from "./balance.ts";
import { currentHolders, keepsUp, learnersOf, liveHolders, onlyHeldBy } from "./holders.ts";
import { rerouteTransfers, startTransfer } from "./learn.ts";
import { dismiss } from "./recovery.ts";
import { chooseLearner, reshare, withLearner, withoutPeer } from "./shares.ts";
import { helpedMost } from "./newcomer.ts";
import type { Turn } from "./turn.ts";
import { createFit, hasRoom } from "./fit.ts";
import { keepsOrder } from "./textbook_upkeep.ts";
import { planView, stageCount, usablePeers } from "./view_builder.ts";

/** Amends the view if that helps; called with a view, all of its peers ready, and no round open. */
export function maintain(turn: Turn): void {
  const { s } = turn;
  if (!s.tidyDue) return;
  s.tidyDue = false;
  const before = s.view!.stages;
  const whys: string[] = [];
  let stages = letGo(turn, before, whys);
  // Whoever could not go yet may at the next boundary.
  s.tidyDue = Object.values(s.peers).some((peer) =>
    (peer.leaving || peer.paused) && stages.some((stage) => holds(stage, peer.id))
  );
  // Who is behind gets no work yet.
  s.tidyDue ||= stages.some((stage) =>
    liveHolders(s, stage).some(({ peer }) => !keepsUp(s, stage.index, peer))
  );
  const learners: { stage: number; peer: string }[] = [];
  stages = addHolders(turn, stages, learners);
  stages = placeSpares(turn, stages, learners);
  for (const { stage, peer } of learners) whys.push(`${peer} takes stage ${stage + 1} over`);
  if (!keepsOrder(s, stages)) {
    stages = reshare(stages, {
      peers: s.peers,
      count: s.config.gradient_accumulation_steps,
      ready: (peer, stage) => (s.warm[peer]?.includes(stage) ?? false) && keepsUp(s, stage, peer),
      idle: (peer) => s.peers[peer]?.paused === true || s.peers[peer]?.leaving === true,
    });
  }
  if (JSON.stringify(stages) === JSON.stringify(before) && sameAsTold(turn)) return;
  const gone = peersOf(s.view!).filter((peer) => !stages.some((stage) => holds(stage, peer)));
  amendView(turn, stages, whys.join(", ") || "work shared out anew");
  for (const peer of gone) {
    rerouteTransfers(turn, peer);
    if (s.peers[peer]?.leaving === true) dismiss(turn, peer);
  }
  for (const { stage, peer } of learners) startTransfer(turn, stage, peer);
  promiseNewcomer(turn, before, learners);
}

/** What somebody brings who had no stage is told once it computes. */
function promiseNewcomer(
  { s }: Turn,
  before: StagePlan[],
  learners: { stage: number; peer: string }[],
): void {
  const first = learners.find(({ peer }) => !before.some((stage) => holds(stage, peer)));
  if (first === undefined || s.planning.promised !== null) return;
  const what = `${s.peers[first.peer]?.name || first.peer} takes part of stage ${first.stage + 1}`;
  promise(s, { what, before: s.planning.stepS, expected: null, peer: first.peer });
}

/** Peers learn only from a view that somebody is no learner any more; work may follow from it. */
function sameAsTold({ s }: Turn): boolean {
  return s.toldLearners === learnersOf(s.view!.stages);
}

/** Whoever leaves or pauses goes as soon as every stage they hold has another holder. */
function letGo({ s }: Turn, stages: StagePlan[], whys: string[]): StagePlan[] {
  let out = stages;
  const follows = (peer: string, stage: number) => keepsUp(s, stage, peer);
  for (const peer of Object.values(s.peers)) {
    if (!peer.leaving && !peer.paused) continue;
    if (!out.some((stage) => holds(stage, peer.id))) continue;
    const safe = out.every((stage) =>
      !holds(stage, peer.id) || currentHolders(s, stage).some((replica) => replica.peer !== peer.id)
    );
    const without = safe ? withoutPeer(out, peer.id, { peers: s.peers, keepsUp: follows }) : null;
    if (without === null) continue;
    out = without;
    whys.push(`${peer.id} ${peer.leaving ? "leaves" : "pauses"}`);
  }
  return out;
}

/** A stage with one holder gets a second, and so does one whose only holder wants to go. */
function addHolders(
  { s }: Turn,
  stages: StagePlan[],
  learners: { stage: number; peer: string }[],
): StagePlan[] {
  let out = stages;
  const fit = createFit(s.spec, s.config);
  const staying = usablePeers(Object.values(s.peers));
  for (const { index } of stages) {
    const stage = out[index]!;
    const lasting = stage.replicas.filter((it) => staying.some((peer) => peer.id === it.peer));
    const leaving = stage.replicas.length > lasting.length;
    const wanted = s.config.shadows ? 2 : leaving ? 1 : 0;
    if (lasting.length >= wanted) continue;
    const roomy = staying.filter((peer) => hasRoom(fit, out, { stage, peer }));
    const peer = chooseLearner(out, stage, roomy);
    if (peer === null) continue;
    out = withLearner(out, index, peer);
    learners.push({ stage: index, peer });
  }
  return out;
}

/** Peers without a stage are put where they help most. */
function placeSpares(
  { s }: Turn,
  stages: StagePlan[],
  learners: { stage: number; peer: string }[],
): StagePlan[] {
  let out = stages;
  const fit = createFit(s.spec, s.config);
  for (const peer of usablePeers(Object.values(s.peers))) {
    if (out.some((stage) => holds(stage, peer.id))) continue;
    const roomy = out.filter((stage) => hasRoom(fit, out, { stage, peer }));
    if (roomy.length === 0) continue;
    const stage = helpedMost(s, out, { peer, roomy });
    if (stage === null) continue;
    // More replicas than micro-batches would have nothing to compute.
    if (out[stage]!.replicas.length > s.config.gradient_accumulation_steps) continue;
    out = withLearner(out, stage, peer.id);
    learners.push({ stage, peer: peer.id });
  }
  return out;
}

/**
 * More stages are wanted than there are, and the peers that are there allow it: the layers have to be cut anew. Where the run
 * leaves the number open, balance.ts weighs what a new cut would bring.
 */
export function wantsNewCut({ s }: Turn): boolean {
  const { spec } = s;
  const open = s.config.schedule === "auto";
  if ((open || s.config.schedule === "dynamic") && s.config.n_stage === 0) return false;
  // How many stages there can be does not depend on what is chosen; choosing takes a while.
  const config = open ? { ...s.config, schedule: "dynamic" as const } : s.config;
  const peers = usablePeers(Object.values(s.peers));
  const now = s.view!.stages.length;
  if (peers.length === 0 || stageCount(config, spec, peers.length) <= now) return false;
  // A peer whose memory is too small for a stage of its own is no reason.
  const { view } = planView({ gen: s.gen + 1, baseStep: s.committed, spec, config, peers });
  return view !== null && view.stages.length > now;
}

/** A peer that wants to go and cannot: nobody else is there to take its stages, or will be in a moment. */
export function isStuck({ s }: Turn): boolean {
  const staying = usablePeers(Object.values(s.peers)).map((peer) => peer.id);
  return Object.values(s.peers).some((peer) =>
    (peer.leaving || peer.paused) &&
    // Another holder that has not applied the newest step yet is about to.
    onlyHeldBy(s, peer.id).some((stage) => !stage.replicas.some((replica) => staying.includes(replica.peer)))
  );
}
