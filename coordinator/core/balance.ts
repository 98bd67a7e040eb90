// Keeps a run's plan suited to its peers while it trains: after each step it compares what peers took with what the plan
// believed, and carries out what coordinator/plan/balancer.ts proposes: other shares at once, other holders by learning, another
// cut at this boundary. Pure; mutates the turn's state. What must stay true: it acts only between two steps, only on a plan
// that nothing else is changing, and what it does is said with its reason, its expected gain and, later, its true one.
import type { StagePlan } from "../../peer/wire/run.ts";
import { holds, isDelayed, peersOf } from "../../peer/wire/view.ts";
import { type Balancer, createBalancer, isCooling, stepDone, stepSeen } from "../plan/balancer.ts";
import { sameCut } from "../plan/plan_diff.ts";
import { CostModel, HIDDEN_SHARE } from "../plan/planner_model.ts";
import type { Plan, PlanRequest } from "../plan/planner_types.ts";
import { GAIN_MIN, PAYBACK, type Rebalancing } from "../plan/rebalance.ts";
import type { Verdict } from "../plan/stragglers.ts";
import { amendView } from "./amend.ts";
import { bestSchedule, isFixedOrder } from "./auto_schedule.ts";
import { createFit, hasRoom } from "./fit.ts";
import { learnersOf } from "./holders.ts";
import { startTransfer } from "./learn.ts";
import { requestOf } from "./plan_request.ts";
import { plannable } from "./planned_view.ts";
import {
  CHANGES_TOLD,
  commitSeconds,
  planKey,
  planOfView,
  predictedStep,
  type Promised,
} from "./planning.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";
import { withLearner } from "./shares.ts";
import { forgiveSpares } from "./spares.ts";
import { freshSeconds } from "./step_times.ts";
import { note, type Turn } from "./turn.ts";
import { usablePeers } from "./view_builder.ts";

/** Steps that a promise is measured over; the first after a change builds engines and is not of them. */
const STEPS_MEASURED = 5;
/** Steps of a cut before its links are believed: the first ones open them. */
const LINKS_SETTLE_STEPS = 3;
/** Steps whose gain a change may count on at most: peers come and go, and a run of a million steps is no reason for anything. */
export const HORIZON_STEPS = 1_000;

/** Somebody came, went or changed: the plan is weighed at one of the next boundaries. */
export function peersChanged(s: RunCoreState): void {
  s.planning.balancer = { ...s.planning.balancer, pending: true };
  s.planning.scheduleDue = true;
}

/** Looks at the plan once per committed step; called between two rounds, all peers of the view ready. */
export function balance(turn: Turn): void {
  const { s } = turn;
  const { planning } = s;
  planning.boundaryDue = false;
  if (planning.lookedAt === s.committed) return;
  planning.lookedAt = s.committed;
  keepPromise(turn);
  notice(turn);
  // Nothing moves while an order is followed that other shares would end; who has changed is seen all the same.
  if (s.config.schedule === "auto" && isSettled(s) && isFixedOrder(s.view!.schedule)) return lookAt(turn);
  if (!isSteady(s)) return;
  const fresh = freshSeconds(s);
  if (fresh === null && !planning.balancer.pending) return;
  weigh(turn, fresh ?? {});
}

/** What may make another plan the better one, beside the times of steps. */
function notice(turn: Turn): void {
  const { s } = turn;
  noticeHidden(s);
  noticeLinks(s);
  const forgiven = forgiveSpares(s, turn.now);
  for (const id of forgiven) {
    note(turn, "plan", `${nameOf(s.peers[id]!)} may be quick again: it is reckoned with anew`);
  }
  if (forgiven.length > 0) peersChanged(s);
}

/** A tab that went to the background or came back is worth another share. */
function noticeHidden(s: RunCoreState): void {
  const hidden = Object.values(s.peers).filter((peer) => peer.hidden).map((peer) => peer.id).join();
  if (s.planning.hidden !== hidden && s.planning.lookedAt > s.cutBase) peersChanged(s);
  s.planning.hidden = hidden;
}

/** The first plan takes links for average ones: once they were measured, it is weighed again, once in a cut. */
function noticeLinks(s: RunCoreState): void {
  const { planning, view } = s;
  if (planning.linksWeighed || view === null || s.committed < s.cutBase + LINKS_SETTLE_STEPS) return;
  const members = peersOf(view);
  const known = (id: string) => members.some((other) => (s.peers[id]?.links?.[other]?.rttMs ?? 0) > 0);
  if (members.length < 2 || !members.every(known)) return;
  planning.linksWeighed = true;
  peersChanged(s);
}

/** Nobody learns or wants to go, and the order is the planner's own. */
function isSteady(s: RunCoreState): boolean {
  return s.view !== null && ["dynamic", "2bw"].includes(s.view.schedule) && isSettled(s);
}

/** The same whatever the order. */
export function isSettled(s: RunCoreState): boolean {
  const { view } = s;
  if (view === null) return false;
  if (s.replanDue !== null || s.paused) return false;
  if (s.committed >= s.target || learnersOf(view.stages).replaceAll("/", "") !== "") return false;
  return peersOf(view).every((id) => isStaying(s.peers[id]));
}

function isStaying(peer: PeerRecord | undefined): boolean {
  return peer !== undefined && !peer.leaving && !peer.paused && peer.blockMs > 0;
}

/**
 * A step was committed while the next one is open: its times are looked at, and if somebody has become slow or quick, or is to be
 * reckoned with anew, no further step is opened ahead, so that the plan is weighed between two steps.
 */
export function watchAhead(turn: Turn): void {
  const { s } = turn;
  const { planning } = s;
  notice(turn);
  if (isSteady(s)) lookAt(turn);
  if (planning.balancer.pending && isSteady(s) && !isCooling(planning.balancer, turn.now)) {
    planning.boundaryDue = true;
  }
}

/** The newest step's times: who has become slow or quick is believed to be, and that is still to be weighed. */
function lookAt(turn: Turn): void {
  const { s } = turn;
  const fresh = freshSeconds(s);
  if (fresh === null) return;
  const { request, plan } = measuredRequest(s);
  const { balancer, verdicts } = stepSeen(believed(s), fresh, believedSeconds(s, request, plan));
  s.planning.balancer = { ...balancer, factors: {} };
  believe(turn, balancer.factors, verdicts);
}

/** Speeds as they were measured at first: what is believed since stands in the factors. */
function measuredRequest(s: RunCoreState): { request: PlanRequest; plan: Plan } {
  const { spec, config } = s;
  const peers = plannable(usablePeers(Object.values(s.peers)).sort((a, b) => a.joinedAt - b.joinedAt));
  const measured = requestOf({ spec, config, peers: peers.map((peer) => ({ ...peer, slowdown: 1 })) });
  // Steps that overlap are weighed by what one of them would take alone: shares and layers that suit the one suit the other.
  return {
    request: { ...measured, commitSeconds: commitSeconds(s) },
    plan: { ...planOfView(s.view!), schedule: "dynamic" },
  };
}

function believed({ peers, planning: { balancer } }: RunCoreState): Balancer {
  return {
    ...balancer,
    factors: Object.fromEntries(Object.values(peers).map((peer) => [peer.id, peer.slowdown ?? 1])),
  };
}

function weigh(turn: Turn, seconds: Record<string, number>): void {
  const { s } = turn;
  const { planning } = s;
  const { request, plan } = measuredRequest(s);
  const horizonSteps = Math.min(HORIZON_STEPS, s.target - s.committed);
  const step = stepDone(believed(s), { seconds, nowMs: turn.now, horizonSteps }, {
    ...{ request, plan, believedSeconds: believedSeconds(s, request, plan) },
  });
  planning.balancer = { ...step.balancer, factors: {} };
  believe(turn, step.balancer.factors, step.verdicts);
  const { rebalancing } = step;
  // A plan that cannot be weighed (a peer in two stages that no plan would give it) is left to the next departure.
  if (rebalancing === null || rebalancing.now === Infinity) return;
  carryOut(turn, rebalancing, step.verdicts);
}

/**
 * What the plan takes a micro-batch of each computing peer to last at the believed speeds, in all of its stages; a tab in the
 * background in full.
 */
function believedSeconds(s: RunCoreState, request: PlanRequest, plan: Plan): (peer: string) => number {
  const model = new CostModel(request);
  const index = new Map(request.peers.map(({ id }, i) => [id, i]));
  return (peer) => {
    const held = plan.stages.filter(({ replicas }) => replicas.some((replica) => replica.peer === peer));
    const i = index.get(peer);
    if (i === undefined) return 0;
    const share = request.peers[i]!.hidden ? HIDDEN_SHARE : 1;
    const { slowdown = 1 } = s.peers[peer] ?? {};
    // What coding takes is measured as it is, whatever is believed of the rest.
    return held.reduce((sum, { firstLayer, endLayer, recompute }) => {
      const coding = model.codingSeconds(i, firstLayer, endLayer);
      const layers = model.seconds(i, firstLayer, endLayer, recompute) - coding;
      return sum + (layers * slowdown + coding) * share;
    }, 0);
  };
}

function believe(turn: Turn, factors: Readonly<Record<string, number>>, verdicts: readonly Verdict[]): void {
  const { s } = turn;
  s.planning.scheduleDue ||= verdicts.length > 0;
  for (const [id, factor] of Object.entries(factors)) {
    if (s.peers[id] !== undefined) s.peers[id].slowdown = factor;
  }
  for (const { peer, factor } of verdicts) {
    const name = s.peers[peer] === undefined ? peer : nameOf(s.peers[peer]);
    const how = factor > 1
      ? `${factor.toFixed(1)} times as long`
      : `${(100 * factor).toFixed(0)} % of the time`;
    note(turn, "plan", `${name} takes ${how} for a micro-batch as the plan believed`);
  }
}

function nameOf(peer: PeerRecord): string {
  return peer.name === "" ? peer.id : peer.name;
}

function carryOut(turn: Turn, rebalancing: Rebalancing, verdicts: readonly Verdict[]): void {
  const { s } = turn;
  const { rung, plan, reason, now, diff } = rebalancing;
  if (rung === null || diff === null) {
    // Said only where somebody waits for an answer.
    if (verdicts.length > 0) tell(turn, reason);
    return;
  }
  // What operations take is not all that a step takes: a gain that nobody would notice is none.
  const { lastS } = s.planning;
  if (lastS.length > 0 && now - diff.after < GAIN_MIN * Math.min(...lastS)) return;
  // Steps that overlap are weighed as if they did not, which is no promise about their pace.
  const expected = isDelayed(s.view!) ? null : diff.after;
  const promised = { what: reason, before: s.planning.stepS ?? now, expected, peer: null };
  if (needsCut(s, plan)) {
    if (!earnsCut(s, rebalancing)) return;
    const peers = plannable(usablePeers(Object.values(s.peers)).sort((a, b) => a.joinedAt - b.joinedAt));
    const of = { spec: s.spec, config: s.config, peers };
    const request = { ...requestOf(of), commitSeconds: commitSeconds(s) };
    // Everybody stops anyway, so another order may follow for no more than that.
    const answer = bestSchedule(plan, { ...of, request });
    s.planning.prepared = { key: planKey(s, peers), answer, why: reason };
    s.replanDue = reason;
    tell(turn, reason);
    return promise(s, promised);
  }
  const { stages, learners } = withShares(s, plan);
  if (JSON.stringify(stages) === JSON.stringify(s.view!.stages)) return;
  tell(turn, reason);
  promise(s, { ...promised, peer: learners[0]?.peer ?? null });
  amendView(turn, stages, reason);
  for (const { stage, peer } of learners) startTransfer(turn, stage, peer);
}

/** Other layers, or peers that would change stages: everybody stops for that. Whoever has no stage yet may learn one meanwhile. */
function needsCut({ view }: RunCoreState, plan: Plan): boolean {
  if (!sameCut(planOfView(view!), plan)) return true;
  const members = peersOf(view!);
  return plan.stages.some(({ index, replicas }) =>
    replicas.some(({ peer }) => members.includes(peer) && !holds(view!.stages[index], peer))
  );
}

/** Peers that change stages within one cut were reckoned with as if nobody had to stop. */
function earnsCut(s: RunCoreState, { plan, now, diff }: Rebalancing): boolean {
  const stop = requestOf({ ...s, peers: Object.values(s.peers) }).cutSeconds?.(plan) ?? 0;
  const horizon = Math.min(HORIZON_STEPS, s.target - s.committed);
  return (now - diff!.after) * horizon >= PAYBACK * Math.max(stop, diff!.seconds);
}

/** The present stages with the plan's shares. Whoever the plan gives a stage that it does not hold learns it first. */
function withShares(
  s: RunCoreState,
  plan: Plan,
): { stages: StagePlan[]; learners: { stage: number; peer: string }[] } {
  const fit = createFit(s.spec, s.config);
  const learners: { stage: number; peer: string }[] = [];
  let stages = s.view!.stages;
  for (const { index, replicas } of plan.stages) {
    const arriving = replicas.filter(({ peer }) => !holds(stages[index], peer));
    if (arriving.length === 0) {
      stages = stages.map((stage) => stage.index === index ? dealt(s, stage, plan) : stage);
      continue;
    }
    for (const { peer } of arriving) {
      const record = s.peers[peer];
      if (record === undefined || !hasRoom(fit, stages, { stage: stages[index]!, peer: record })) continue;
      stages = withLearner(stages, index, peer);
      learners.push({ stage: index, peer });
    }
  }
  return { stages, learners };
}

/** A shadow whose engine is not built yet gets its share with the next upkeep. */
function dealt(s: RunCoreState, stage: StagePlan, plan: Plan): StagePlan {
  const shares = new Map(
    plan.stages[stage.index]!.replicas.map(({ peer, microBatches }) => [peer, microBatches]),
  );
  const ready = (peer: string) => s.warm[peer]?.includes(stage.index) ?? false;
  if (![...shares.keys()].every(ready)) return stage;
  return {
    ...stage,
    replicas: stage.replicas.map((it) => ({ ...it, microBatches: [...shares.get(it.peer) ?? []] })),
  };
}

/** Notes a change of the plan for the log and the pages. */
export function tell(turn: Turn, sentence: string): void {
  const { changes } = turn.s.planning;
  note(turn, "plan", sentence);
  changes.push(sentence);
  while (changes.length > CHANGES_TOLD) changes.shift();
}

/** A new promise takes the place of one that was not kept yet: its steps would be measured under another plan. */
export function promise(s: RunCoreState, of: Omit<Promised, "took" | "gen">): void {
  s.planning.promised = { ...of, took: [], gen: s.gen };
}

/** Once enough steps were done as promised: says what was gained in truth. */
function keepPromise(turn: Turn): void {
  const { s } = turn;
  const { promised, stepS } = s.planning;
  if (promised === null || stepS === null || s.gen === promised.gen) return;
  if (promised.peer !== null && !computes(s, promised.peer)) {
    if (s.peers[promised.peer] === undefined) s.planning.promised = null;
    return;
  }
  promised.took.push(stepS);
  if (promised.took.length <= STEPS_MEASURED) return;
  s.planning.promised = null;
  const sorted = promised.took.slice(1).toSorted((a, b) => a - b);
  const now = sorted[sorted.length >> 1]!;
  const expected = promised.expected === null ? "" : `, ${seconds(promised.expected)} were expected`;
  const before = promised.before === null ? "" : `, ${seconds(promised.before)} before`;
  tell(turn, `${withoutStop(promised.what)}: a step now takes ${seconds(now)}${expected}${before}.`);
}

function withoutStop(text: string): string {
  return text.replace(/\. A step is expected.*$/, "").replace(/\.$/, "");
}

function seconds(value: number): string {
  return `${value.toPrecision(3)} s`;
}

function computes(s: RunCoreState, peer: string): boolean {
  return s.view!.stages.some((stage) =>
    stage.replicas.some((replica) => replica.peer === peer && replica.microBatches.length > 0)
  );
}

/** The layers are cut anew: what was measured of other stages says nothing of these. */
export function onNewCut(turn: Turn, plan: Plan | null): void {
  const { s } = turn;
  const { balancer, standBy } = s.planning;
  const foreseen = standBy.find(({ answer }) => answer === plan);
  if (foreseen !== undefined) {
    tell(turn, `The layers are cut as planned beforehand for the loss of ${foreseen.peer}.`);
  }
  Object.assign(s.planning, {
    plan,
    prepared: null,
    linksWeighed: false,
    seen: {},
    standBy: [],
    standByFor: "",
  });
  // What is pending stays so: a cut that a departure forced is no answer to a peer that has just joined.
  s.planning.balancer = { ...createBalancer(), pending: balancer.pending, movedAt: balancer.movedAt };
  if (plan === null) return;
  const predicted = predictedStep(s);
  if (predicted !== null) {
    note(turn, "plan", `a step should take ${seconds(predicted.seconds)}; ${plan.reasons.join(" ")}`);
  }
}
