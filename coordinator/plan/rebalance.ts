// What to change when peers turned out slower or faster than planned, or joined: the cheapest rung of a ladder that gets near
// the best, and only if it pays for itself. Pure; given the speeds as they are now, it proposes a plan and says what it costs.
//
// Rungs: shares (micro-batches dealt anew), shadow (a second holder computes instead of, or beside, the first), boundary (layers
// move to a neighbour), migrate (peers change stages), replan (a new cut). The first two transfer nothing.
import { diffPlans, heldBy, type PlanDiff } from "./plan_diff.ts";
import { plan as planAnew, planOf, settledOn } from "./planner.ts";
import { redealt } from "./planner_doubled.ts";
import { CostModel, type GroupStage } from "./planner_model.ts";
import { boundaryMoves } from "./planner_moves.ts";
import { predict, type PredictedStage, type Prediction } from "./planner_predict.ts";
import { type Budget, type Judged, refine } from "./planner_refine.ts";
import type { Candidate } from "./planner_search.ts";
import type { Plan, PlanRequest } from "./planner_types.ts";
import { computesTwice, layoutOf } from "./standby.ts";

export type Rung = "shares" | "shadow" | "boundary" | "migrate" | "replan";

export const RUNGS: readonly Rung[] = ["shares", "shadow", "boundary", "migrate", "replan"];

const WORDS: Readonly<Record<Rung, string>> = {
  shares: "Micro-batches are dealt out anew.",
  shadow: "A second holder computes.",
  boundary: "Layers move to a neighbour.",
  migrate: "Peers change stages.",
  replan: "The layers are cut anew.",
};

/** A change must shorten a step by this share, or it is noise. */
export const GAIN_MIN = 0.1;
/** A transfer must be earned back this many times over within the horizon. */
export const PAYBACK = 2;
/** A dearer rung is only taken if it is better than the cheaper one by this share. */
const BETTER_MIN = 0.05;
/** Simulated operations of one decision. */
const SIMULATED_OPS = 60_000;
/** Layers, and peers, that one decision moves at most: what follows can be decided with newer measurements. */
const BOUNDARY_ROUNDS = 6;
const MIGRATIONS = 4;
/** Swarms up to this size may be planned anew; the plan of a larger one is only improved. */
const REPLANNED_MAX = 32;

export interface Rebalancing {
  /** Null: the plan stays. */
  rung: Rung | null;
  plan: Plan;
  /** What a step takes with the plan in force at the speeds of now, in seconds. */
  now: number;
  /** Null if the plan stays. */
  diff: PlanDiff | null;
  reason: string;
  /** Every rung that was weighed, cheapest first: what a step would take, and its transfers. */
  considered: { rung: Rung; seconds: number; transferSeconds: number; bytes: number }[];
}

export interface RebalanceOptions {
  /** Steps that the run still has, or after which peers are expected to have changed again. */
  horizonSteps: number;
  /** Rungs that may be taken. Default: all. */
  rungs?: readonly Rung[];
}

interface Proposal {
  rung: Rung;
  plan: Plan;
  diff: PlanDiff;
}

/**
 * Decides about the plan in force. `request` has the speeds, links and peers of now. Peers that joined are among them and are
 * used where they help most; for peers that are gone standby.ts has the first answer, this one then improves on it.
 */
export function rebalance(request: PlanRequest, plan: Plan, options: RebalanceOptions): Rebalancing {
  const fixed = { ...request, schedule: plan.schedule };
  const model = new CostModel(fixed);
  const budget = { left: request.simulatedOps ?? SIMULATED_OPS };
  const start = layoutOf(model, plan, budget);
  const now = (start === null ? null : inForce(model, start, plan))?.seconds ?? Infinity;
  const proposals = proposalsOf(model, plan, { start, now, budget, rungs: options.rungs ?? RUNGS });
  const chosen = choose(proposals, now, options.horizonSteps);
  const considered = proposals.map(({ rung, diff }) => ({
    ...{ rung, seconds: diff.after, transferSeconds: diff.seconds, bytes: diff.bytes },
  }));
  if (chosen === null) {
    return { rung: null, plan, now, diff: null, reason: staying(proposals, now), considered };
  }
  const { rung, diff } = chosen;
  return {
    rung,
    considered,
    plan: chosen.plan,
    now,
    diff,
    reason: `${WORDS[rung]} ${diff.sentences.at(-1)!}`,
  };
}

/** A step with the plan's own shares and caps, at the speeds of the model; null if a peer's micro-batches are nobody's. */
function inForce(model: CostModel, { candidate }: Judged, plan: Plan): Prediction | null {
  const index = new Map(model.request.peers.map(({ id }, i) => [id, i]));
  const stages = plan.stages.map((stage, s): PredictedStage => {
    const present = stage.replicas.filter(({ peer }) => index.has(peer));
    return {
      ...{ stage: candidate.stages[s]!, recompute: stage.recompute, inflight: stage.inflight },
      shares: present.map(({ microBatches }) => microBatches),
    };
  });
  const covered = stages.every(({ shares }) =>
    shares.reduce((sum, share) => sum + share.length, 0) === model.N
  );
  return covered ? predict(model, candidate, plan.schedule, { stages, codecs: plan.codecs }) : null;
}

interface Situation {
  start: Judged | null;
  now: number;
  budget: Budget;
  rungs: readonly Rung[];
}

function proposalsOf(model: CostModel, plan: Plan, situation: Situation): Proposal[] {
  const { start, now, rungs, budget } = situation;
  const held = heldBy(plan);
  const proposals: Proposal[] = [];
  const propose = (rung: Rung, layout: Judged | null) => {
    if (layout === null) return;
    const next = planOf(settledOn(model, layout), held);
    proposals.push({
      rung,
      plan: next,
      diff: diffPlans(plan, next, { request: model.request, before: now }),
    });
  };
  // Each rung starts from the best of those below it. A peer in two stages is an emergency, which only a new cut ends.
  const searchable = start !== null && !computesTwice(start);
  let best = searchable ? start : null;
  if (start !== null && !searchable && rungs.includes("shares")) {
    propose("shares", dealtAnew(model, start, plan));
  }
  for (const rung of rungs) {
    if (rung === "replan") {
      if (searchable && model.peers > REPLANNED_MAX) continue;
      const next = planAnew(model.request);
      if (next.kind === "infeasible") continue;
      proposals.push({
        rung,
        plan: next,
        diff: diffPlans(plan, next, { request: model.request, before: now }),
      });
      continue;
    }
    if (best === null) continue;
    best = climb(model, best, { rung, plan, budget });
    propose(rung, best);
  }
  return proposals;
}

/** The slots of a cut stay, whatever is dealt. */
function dealtAnew(model: CostModel, { candidate, prediction }: Judged, plan: Plan): Judged | null {
  const present = new Set(model.request.peers.map(({ id }) => id));
  const shares = plan.stages.map(({ replicas }) =>
    replicas.filter(({ peer }) => present.has(peer)).map(({ microBatches }) => microBatches)
  );
  const stages = prediction.stages.map((stage, s) => {
    const { inflight, recompute } = plan.stages[s]!;
    return { ...stage, inflight, recompute };
  });
  return redealt(model, { candidate, prediction: { ...prediction, stages } }, shares);
}

function climb(
  model: CostModel,
  from: Judged,
  { rung, plan, budget }: { rung: Rung; plan: Plan; budget: Budget },
): Judged {
  if (rung === "shares") return from;
  if (rung === "shadow") {
    return refine(model, from, { budget, moves: (candidate) => shadowMoves(model, candidate, plan) });
  }
  if (rung === "boundary") {
    const moves = ({ stages }: Candidate) => boundaryMoves(model, stages);
    return refine(model, from, { budget, moves, rounds: BOUNDARY_ROUNDS });
  }
  return refine(model, from, { budget, rounds: MIGRATIONS });
}

/** A shadow that computes nothing else takes a lone replica's place, or joins it: it has the state already. */
function* shadowMoves(model: CostModel, { stages }: Candidate, plan: Plan): Generator<readonly GroupStage[]> {
  const busy = new Set(stages.flatMap((stage) => stage.peers));
  for (const [s, stage] of stages.entries()) {
    for (const shadow of plan.stages[s]?.shadows ?? []) {
      const peer = model.request.peers.findIndex(({ id }) => id === shadow);
      if (peer < 0 || busy.has(peer)) continue;
      for (const peers of [[peer], [...stage.peers, peer]]) {
        const next = model.stage(peers, stage.first, stage.end);
        if (next !== null) yield stages.with(s, next);
      }
    }
  }
}

/** The cheapest rung that is nearly as good as the best that pays; null if none does. */
function choose(proposals: readonly Proposal[], now: number, horizonSteps: number): Proposal | null {
  const paying = proposals.filter(({ diff }) => pays(diff, now, horizonSteps));
  const best = Math.min(...paying.map((proposal) => worth(proposal, horizonSteps)));
  return paying.find((proposal) => worth(proposal, horizonSteps) * (1 - BETTER_MIN) <= best) ?? null;
}

/** Seconds of the whole horizon, transfers included. */
function worth({ diff }: Proposal, horizonSteps: number): number {
  return diff.seconds + horizonSteps * diff.after;
}

function pays({ seconds, after }: PlanDiff, now: number, horizonSteps: number): boolean {
  if (!(after <= now * (1 - GAIN_MIN))) return false;
  return now === Infinity || (now - after) * horizonSteps >= PAYBACK * seconds;
}

function staying(proposals: readonly Proposal[], now: number): string {
  const best = proposals.reduce((least, { diff }) => Math.min(least, diff.after), now);
  const gain = now === Infinity ? 0 : 100 * (1 - best / now);
  return gain < 100 * GAIN_MIN
    ? `The plan stays: the best change would save ${gain.toFixed(0)} % of a step.`
    : `The plan stays: what would save ${
      gain.toFixed(0)
    } % of a step does not earn its transfer back in time.`;
}

/** What a step of the plan, as it is, would take at the request's speeds and links; infinite if a peer of it is missing. */
export function secondsAt(request: PlanRequest, plan: Plan): number {
  return predictionAt(request, plan)?.seconds ?? Infinity;
}

/** The same with everything that the simulator tells; null if a peer of the plan is missing, or has no memory for its stage. */
export function predictionAt(request: PlanRequest, plan: Plan): Prediction | null {
  const model = new CostModel({ ...request, schedule: plan.schedule });
  const start = layoutOf(model, plan, { left: Infinity });
  return start === null ? null : inForce(model, start, plan);
}
