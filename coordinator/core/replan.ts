// What a new plan would change, before it is applied: the dry run that the organizer sees, the order to apply it, and plans for
// the loss of any one peer that are ready beforehand. Pure; the preview changes nothing. What must stay true: what is applied is
// what was shown, as long as the peers are the same.
import { followedSchedule } from "../../peer/schedule/placed.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import type { PlanStage, PlanStatus, ReplanPreview } from "../../peer/wire/status.ts";
import { diffPlans, heldBy, type PlanDiff } from "../plan/plan_diff.ts";
import { withPins } from "../plan/pins.ts";
import { plural } from "../plan/planner_feasible.ts";
import type { Infeasible, Plan, PlanRequest } from "../plan/planner_types.ts";
import { type StandBy, standByFor } from "../plan/standby.ts";
import { bestSchedule } from "./auto_schedule.ts";
import { promise, tell } from "./balance.ts";
import { judgePlan, weighSizes } from "./micro_batch.ts";
import { requestOf, type RequestOptions } from "./plan_request.ts";
import { isPlanned, pinsOf, plannable, planned } from "./planned_view.ts";
import { commitSeconds, planKey, planOfView, predictedStep, type StandByPlan } from "./planning.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";
import { steadily, steadyStandBy } from "./steady_plan.ts";
import type { Turn } from "./turn.ts";
import { usablePeers } from "./view_builder.ts";

/** Swarms up to this size have stand-by plans: each is a plan of its own, and a large swarm hardly notices one peer. */
const STANDBY_PEERS_MAX = 16;
/** Between two of them: each may take a tenth of a second, in which no step is committed. */
const STANDBY_EVERY_MS = 2_000;
/** Simulated operations of a stand-by plan: they are made while the coordinator has other things to do. */
const STANDBY_OPS = 5_000;
/** The same of the schedules that are tried for it. */
const STANDBY_SIMULATED = 150_000;
/** Reasons that a page gets; the event log has all of them. */
const REASONS_TOLD = 24;

/** The peers that a plan may use, in the order in which they joined. */
function plannedPeers(s: RunCoreState): PeerRecord[] {
  return plannable(usablePeers(Object.values(s.peers)).sort((a, b) => a.joinedAt - b.joinedAt));
}

function requestFor(s: RunCoreState, peers: readonly PeerRecord[]): PlanRequest {
  return { ...requestOf({ spec: s.spec, config: s.config, peers }), commitSeconds: commitSeconds(s) };
}

interface Proposal {
  answer: Plan | Infeasible;
  diff: PlanDiff | null;
  /** The run's configuration, or the same with micro-batches of another size; and the peers with their times for it. */
  config: RunConfig;
  peers: readonly PeerRecord[];
}

/** What the planner would do now, and what that would change. */
function proposal(s: RunCoreState): Proposal {
  const { answer: found, config, peers } = sizedAnswer(s, plannedPeers(s));
  const sized = Object.fromEntries(peers.map((peer) => [peer.id, peer]));
  const answer = steadily({ ...s, config, peers: sized }, found);
  if (answer.kind === "infeasible") return { answer, diff: null, config, peers };
  const request = requestFor({ ...s, config }, peers);
  const before = predictedStep(s)?.seconds ?? Infinity;
  return { answer, diff: diffPlans(planOfView(s.view!), answer, { request, before }), config, peers };
}

function sizedAnswer(s: RunCoreState, peers: readonly PeerRecord[]): Omit<Proposal, "diff"> {
  const answerOf = (of: RequestOptions) => planned(of, requestFor({ ...s, config: of.config }, of.peers));
  const choice = weighSizes(s, peers, (of) => judgePlan(answerOf(of)));
  const answer = choice?.judged.answer ?? null;
  if (choice === null || answer === null || answer.kind === "infeasible") {
    const { config, spec } = s;
    return { answer: answerOf({ spec, config, peers }), config, peers };
  }
  const reasons = [choice.sentence, ...answer.reasons];
  return { answer: { ...answer, reasons }, config: choice.config, peers: choice.peers };
}

/** Why there is nothing to plan, or null. */
function obstacle(s: RunCoreState): string | null {
  const { view, config } = s;
  if (s.status === "finished" || s.status === "failed" || s.ending !== null) return "The run has ended.";
  if (view === null) return "No layers are placed yet: the next plan begins when there are enough peers.";
  const peers = plannedPeers(s);
  if (peers.length === 0) return "There is no peer that may be given work.";
  if (isPlanned({ config, peers })) return null;
  return ["dynamic", "2bw", "auto"].includes(config.schedule)
    ? `The run asks for ${config.n_stage} stages and has ${
      plural(peers.length, "peer")
    }, so peers hold several.`
    : `The schedule ${config.schedule} places its stages itself.`;
}

/** The dry run: what moves, how many bytes that is, what a step takes before and after. Changes nothing. */
export function previewReplan(s: RunCoreState): ReplanPreview {
  const reason = obstacle(s);
  if (reason !== null) return refused(reason);
  const { answer, diff, config } = proposal(s);
  if (answer.kind === "infeasible" || diff === null) {
    return refused(answer.kind === "infeasible" ? answer.reason : "");
  }
  return {
    possible: true,
    reason: "",
    before: finite(diff.before),
    after: diff.after,
    bytes: diff.bytes,
    seconds: finite(diff.seconds),
    paysAfter: diff.paysAfter,
    transfers: diff.transfers.map((transfer) => ({ ...transfer, seconds: finite(transfer.seconds) })),
    sentences: [...orders(s, answer), ...sizes(s, config), ...diff.sentences],
    reasons: answer.reasons.slice(0, REASONS_TOLD),
    stages: answer.stages.map(plannedStage),
    spares: answer.spares,
  };
}

/** Which schedule each side has, where that is the planner's to choose. */
function orders({ config, view }: RunCoreState, { schedule }: Plan): string[] {
  if (config.schedule !== "auto") return [];
  return [`The schedule is ${followedSchedule(view!)} now and would be ${schedule}.`];
}

function sizes({ config: now }: RunCoreState, next: RunConfig): string[] {
  if (now.batch_size === next.batch_size) return [];
  const of = ({ batch_size, gradient_accumulation_steps }: RunConfig) =>
    `${gradient_accumulation_steps} of ${plural(batch_size, "sequence")}`;
  return [`A step has ${of(now)} as micro-batches now and would have ${of(next)}.`];
}

function refused(reason: string): ReplanPreview {
  return {
    ...{ possible: false, reason, before: null, after: null, bytes: 0, seconds: null, paysAfter: null },
    ...{ transfers: [], sentences: [], reasons: [], stages: [], spares: [] },
  };
}

/** JSON has no infinity. */
function finite(seconds: number): number | null {
  return Number.isFinite(seconds) ? seconds : null;
}

function plannedStage({ firstLayer, endLayer, replicas, shadows }: Plan["stages"][number]): PlanStage {
  return {
    ...{ firstLayer, endLayer, shadows },
    replicas: replicas.map(({ peer, microBatches }) => ({ peer, microBatches: microBatches.length })),
  };
}

/** The organizer applies it: a new cut at the next boundary, from the state that is there then. */
export function replanNow(turn: Turn): void {
  const { s } = turn;
  if (obstacle(s) !== null || s.replanDue !== null) return;
  const { answer, diff, config, peers } = proposal(s);
  if (answer.kind === "infeasible" || diff === null) return;
  const why = `planned anew by the organizer. ${diff.sentences.at(-1) ?? ""}`;
  s.planning.prepared = { key: planKey({ config }, peers), answer, why, size: config.batch_size };
  s.replanDue = "planned anew by the organizer";
  tell(turn, `P${why.slice(1)}`);
  promise(s, {
    what: "Planned anew by the organizer",
    before: s.planning.stepS,
    expected: diff.after,
    peer: null,
  });
}

/**
 * Works out what to do without one more peer, if there is one whose loss was not thought of since the view or the peers
 * changed. To be called now and then; each call costs one small plan.
 */
export function planForALoss({ s, now }: Turn): void {
  const { view, planning } = s;
  const peers = plannedPeers(s);
  if (view === null || s.phase !== "round") return;
  const key = `${view.gen}|${planKey(s, peers)}`;
  if (planning.standByFor !== key) Object.assign(planning, { standByFor: key, standBy: [] });
  if (peers.length < 2 || peers.length > STANDBY_PEERS_MAX) return;
  // Where the planner chose another order, a loss ends it, and the dynamic one is followed until the next cut.
  if (!["dynamic", "2bw"].includes(view.schedule) && s.config.schedule !== "auto") return;
  if (!isPlanned({ config: s.config, peers: peers.slice(1) })) return;
  const plan: Plan = { ...planOfView(view), schedule: "dynamic" };
  const known = new Set(planning.standBy.map(({ peer }) => peer));
  if (now - planning.standByAt < STANDBY_EVERY_MS) return;
  const next = [...heldBy(plan).keys()].find((peer) => !known.has(peer) && s.peers[peer] !== undefined);
  if (next === undefined) return;
  planning.standByAt = now;
  planning.standBy.push(standByPlan(s, peers, { peer: next, plan }));
}

function standByPlan(
  s: RunCoreState,
  peers: readonly PeerRecord[],
  { peer, plan }: { peer: string; plan: Plan },
): StandByPlan {
  const left = peers.filter(({ id }) => id !== peer);
  const request = { ...requestFor(s, peers), simulatedOps: STANDBY_OPS, hiddenAlone: true };
  const without = { ...request, peers: request.peers.filter(({ id }) => id !== peer) };
  const pinned = (found: StandBy): StandBy => {
    const pins = pinsOf(left);
    if (found.replanned.kind === "infeasible" || pins.length === 0) return found;
    const replanned = withPins(without, found.replanned, pins);
    return { ...found, replanned, diff: diffPlans(found.amended ?? plan, replanned, { request: without }) };
  };
  const scheduled = (found: StandBy): StandBy => {
    const of = { spec: s.spec, config: s.config, peers: left };
    const replanned = bestSchedule(found.replanned, {
      ...of,
      request: without,
      simulated: STANDBY_SIMULATED,
    });
    if (replanned.kind === "infeasible" || replanned.schedule === plan.schedule) {
      return { ...found, replanned };
    }
    return { ...found, replanned, diff: diffPlans(found.amended ?? plan, replanned, { request: without }) };
  };
  const found = steadyStandBy(s, scheduled(pinned(standByFor(request, plan, peer))), {
    plan,
    request: without,
  });
  return {
    ...{ peer, key: planKey(s, left), amendedSeconds: found.amended?.seconds ?? null },
    ...{ answer: found.replanned, sentence: sentenceFor(s, found) },
  };
}

function sentenceFor(s: RunCoreState, { peer, amended, replanned, diff }: StandBy): string {
  const name = s.peers[peer]?.name || peer;
  const step = (seconds: number) => `${seconds.toPrecision(3)} s`;
  if (replanned.kind === "infeasible") return `If ${name} left: ${replanned.reason}`;
  if (amended === null) {
    return `If ${name} left: nobody else holds its layers; from a snapshot a step would take ${
      step(replanned.seconds)
    }.`;
  }
  const others = `If ${name} left: the others would take over at once, ${step(amended.seconds)} per step`;
  const better = diff !== null && diff.paysAfter !== null && replanned.seconds < amended.seconds * 0.9;
  return better
    ? `${others}; layers cut anew, ${step(replanned.seconds)} after ${step(diff.seconds)}.`
    : `${others}.`;
}

/** What the pages show of the plan; null before the first view. */
export function planStatus(s: RunCoreState): PlanStatus | null {
  const { view, planning } = s;
  if (view === null) return null;
  const predicted = predictedStep(s);
  const held = heldBy(planOfView(view));
  const learning = new Set(
    view.stages.flatMap((stage) => stage.replicas.map((replica) => replica.peer)).filter((id) =>
      !held.has(id)
    ),
  );
  return {
    schedule: followedSchedule(view),
    seconds: predicted?.seconds ?? null,
    bubble: predicted?.bubble ?? null,
    reasons: (planning.plan?.reasons ?? []).slice(0, REASONS_TOLD),
    spares: plannedPeers(s).map(({ id }) => id).filter((id) => !held.has(id) && !learning.has(id)),
    changes: planning.changes,
    standBy: planning.standBy.map(({ peer, sentence }) => ({ peer, sentence })),
  };
}
