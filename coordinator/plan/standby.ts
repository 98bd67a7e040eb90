// What to do if any one peer is lost, worked out beforehand: the same cut with the others taking over, and a new cut where that
// is worth its transfers. Pure. A stand-by plan is a proposal for the moment of the loss; who is really there then decides.
import type { ScheduleId } from "../../peer/wire/run.ts";
import { diffPlans, heldBy, type PlanDiff } from "./plan_diff.ts";
import { depthMax, plan as planAnew, planOf, settledOn } from "./planner.ts";
import { capacityOf, infeasibility } from "./planner_feasible.ts";
import { CostModel, type GroupStage } from "./planner_model.ts";
import { predict } from "./planner_predict.ts";
import { type Budget, type Judged, judged, refine } from "./planner_refine.ts";
import { candidateOf } from "./planner_search.ts";
import type { Infeasible, Plan, PlanRequest } from "./planner_types.ts";

/** Swarms up to this size are planned anew for every loss; larger ones start from the plan in force. */
const PLANNED_ANEW_MAX = 12;
/** Simulated operations per loss. */
const SIMULATED_OPS = 20_000;

export interface StandBy {
  /** The peer whose loss it is for. */
  peer: string;
  /** Same cut, no transfer: the other holders of its stages take over. Null if it is some stage's only holder. */
  amended: Plan | null;
  /** The best that is left, perhaps with another cut; or why the model no longer fits. */
  replanned: Plan | Infeasible;
  /** From the amended plan (or, without one, the plan in force) to the new one. Null if nothing fits. */
  diff: PlanDiff | null;
}

/** One per peer that holds something. Each takes as long as a small plan; standByFor() makes them one at a time. */
export function standByPlans(request: PlanRequest, plan: Plan): StandBy[] {
  return [...heldBy(plan).keys()].map((peer) => standByFor(request, plan, peer));
}

/** Works out the loss of one peer. */
export function standByFor(request: PlanRequest, plan: Plan, peer: string): StandBy {
  const left = { ...request, peers: request.peers.filter(({ id }) => id !== peer), schedule: plan.schedule };
  if (left.peers.length === 0) return { peer, amended: null, replanned: planAnew(left), diff: null };
  const model = new CostModel(left);
  const budget = { left: request.simulatedOps ?? SIMULATED_OPS };
  const start = withoutPeer(model, plan, { peer, budget });
  const amended = start === null ? null : planOf(settledOn(model, start), heldBy(plan));
  const replanned = bestLeft(model, plan, { start, budget });
  if (replanned.kind === "infeasible") return { peer, amended, replanned, diff: null };
  return { peer, amended, replanned, diff: diffPlans(amended ?? plan, replanned, { request: left }) };
}

/** The plan's layout on another set of peers: members that are gone left out, a shadow in the place of a lone one. */
function withoutPeer(
  model: CostModel,
  plan: Plan,
  { peer, budget }: { peer: string; budget: Budget },
): Judged | null {
  const shadowing = plan.stages.map((stage) => ({
    ...stage,
    replicas: stage.replicas.some((replica) => replica.peer !== peer)
      ? stage.replicas
      : stage.shadows.filter((shadow) => shadow !== peer).slice(0, 1).map((shadow) => ({ peer: shadow })),
  }));
  const left = layoutOf(model, { stages: shadowing, schedule: plan.schedule }, budget);
  return left === null ? null : asRunNow(model, left, plan);
}

/** A cut keeps its slots and what it computes again, whoever takes over. */
function asRunNow(model: CostModel, { candidate, prediction }: Judged, plan: Plan): Judged {
  const stages = prediction.stages.map((stage, s) => {
    const { inflight, recompute } = plan.stages[s]!;
    return { ...stage, inflight, recompute };
  });
  return { candidate, prediction: predict(model, candidate, prediction.schedule, { stages }) };
}

/** Who computes what, as far as the search needs to know. */
interface Computing {
  stages: readonly { firstLayer: number; endLayer: number; replicas: readonly { peer: string }[] }[];
  schedule: ScheduleId;
}

/** A plan's layout in a model of its own: null if a stage has no peer left, or no memory. */
export function layoutOf(model: CostModel, { stages, schedule }: Computing, budget: Budget): Judged | null {
  const index = new Map(model.request.peers.map(({ id }, i) => [id, i]));
  const groups: GroupStage[] = [];
  for (const { replicas, firstLayer, endLayer } of stages) {
    const peers = replicas.flatMap(({ peer }) => index.has(peer) ? [index.get(peer)!] : []);
    const group = peers.length === 0 ? null : model.stage(peers, firstLayer, endLayer);
    if (group === null) return null;
    groups.push(group);
  }
  return judged(model, candidateOf(model, groups), schedule, budget);
}

function bestLeft(
  model: CostModel,
  plan: Plan,
  { start, budget }: { start: Judged | null; budget: Budget },
): Plan | Infeasible {
  if (start === null || model.peers <= PLANNED_ANEW_MAX || computesTwice(start)) {
    return planAnew(model.request);
  }
  const capacities = [...model.engines.keys()].map((peer) => capacityOf(model, peer));
  const refusal = infeasibility(model, capacities, depthMax(model));
  if (refusal !== null) return refusal;
  return planOf(settledOn(model, refine(model, start, { budget })), heldBy(plan));
}

/** A peer in two stages is an emergency, not a layout to search from. */
export function computesTwice({ candidate }: Judged): boolean {
  const peers = candidate.stages.flatMap((stage) => stage.peers);
  return new Set(peers).size < peers.length;
}
