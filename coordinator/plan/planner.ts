// The planner: from measured peers and links to who holds which layers, who computes which micro-batches, and how. Pure and
// deterministic. Searches with the cost model (exactly where the swarm is small), judges with the simulator, and keeps the
// reasons. What must stay true: no holder's memory is exceeded, every layer and micro-batch has exactly one place.
import { ShoalError } from "../../peer/wire/errors.ts";
import type { ScheduleId } from "../../peer/wire/run.ts";
import { chooseCodecs } from "./planner_codecs.ts";
import { bestDepths, bestOf, layoutsOf } from "./planner_depths.ts";
import { doubled, isFaster } from "./planner_doubled.ts";
import { capacityOf, infeasibility, roomiest } from "./planner_feasible.ts";
import { CostModel } from "./planner_model.ts";
import { inOrderOfNaming } from "./planner_order.ts";
import { predict, type Prediction } from "./planner_predict.ts";
import { reasonsFor, suggestBatch } from "./planner_reasons.ts";
import { type Judged, judged } from "./planner_refine.ts";
import type { Candidate } from "./planner_search.ts";
import { type Held, type HolderStages, holderStages, widened } from "./planner_shadows.ts";
import type { BoundaryCodecs, Infeasible, Plan, PlannedStage, PlanRequest } from "./planner_types.ts";

/** More peers than this take longer than planning may. */
export const PLANNED_PEERS_MAX = 256;
/** Operations that the simulator runs for one plan, unless the request says otherwise: about a quarter of a second. */
const SIMULATED_OPS = 70_000;
/** A schedule must be this much faster than the dynamic order to be chosen instead: it is less patient with surprises. */
const SCHEDULE_GAIN = 0.97;

/** More slots must shorten a step this much; memory that is not used keeps a peer's owner content. */
const SLOTS_GAIN = 0.99;

/** What the search settled on; the plan is made from it. */
export interface Settled {
  model: CostModel;
  candidate: Candidate;
  prediction: Prediction;
  codecs: BoundaryCodecs[];
  schedules: { schedule: ScheduleId; seconds: number }[];
  /** Seconds of a step with one stage a peer, where peers have two. */
  instead?: number;
}

/**
 * Plans a run. Throws `bad-config` for a request that means nothing (no measured speed, too many peers); that the model
 * does not fit the peers is an answer, not an error.
 */
export function plan(request: PlanRequest): Plan | Infeasible {
  checkRequest(request);
  const { config, peers } = request;
  if (request.twoEach !== true && asksTwoEach(config, peers.length)) {
    const two = plan({ ...request, twoEach: true, config: { ...config, n_stage: config.n_stage / 2 } });
    if (two.kind === "plan") return two;
  }
  const model = new CostModel(request);
  const most = depthMax(model);
  const capacities = [...model.engines.keys()].map((peer) => capacityOf(model, peer));
  const refusal = infeasibility(model, capacities, most);
  if (refusal !== null) return refusal;
  const found = bestLayouts(model, most, () => roomiest(capacities, most, model.layers).peers.length);
  if (found.length > 0) {
    const settled = found.flatMap((layout) => settle(model, layout));
    return settled.length === 0 ? tooFullForTwo(model) : fastestOf(model, settled);
  }
  return request.hiddenAlone === false ? plan({ ...request, hiddenAlone: true }) : unreachable(model);
}

/** Whether the run has so many stages that each computing peer holds two. */
export function asksTwoEach(
  { n_stage, n_layer }: Pick<PlanRequest["config"], "n_stage" | "n_layer">,
  peers: number,
): boolean {
  return n_stage > peers && n_stage % 2 === 0 && n_stage > 2 && n_stage <= 2 * peers && n_stage <= n_layer;
}

function tooFullForTwo({ request: { config, peers } }: CostModel): Infeasible {
  return {
    ...{ kind: "infeasible", missingLayers: 0, missingBytes: 0 },
    reason: `No ${config.n_stage} of ${peers.length} peers have the memory for two stages each.`,
  };
}

/** The memories would do, but no line of peers that reach one another was found. */
function unreachable({ request: { peers, link } }: CostModel): Infeasible {
  const pairs = peers.flatMap((a, i) => peers.slice(i + 1).map((b) => [a.id, b.id] as const));
  const cut = pairs.filter(([a, b]) => link(a, b) === null || link(b, a) === null);
  return {
    ...{ kind: "infeasible", missingLayers: 0, missingBytes: 0 },
    reason:
      `The peers that could hold the model do not reach one another: ${cut.length} of ${pairs.length} links ` +
      `are missing; a relay would carry them.`,
  };
}

function checkRequest({ peers, config, spec }: PlanRequest): void {
  if (peers.length > PLANNED_PEERS_MAX) {
    const message =
      `at most ${PLANNED_PEERS_MAX} peers are planned, got ${peers.length}; leave some as spares`;
    throw new ShoalError("bad-config", message);
  }
  if (spec.n_layer < 1 || config.gradient_accumulation_steps < 1) {
    throw new ShoalError("bad-config", "a plan needs at least one layer and one micro-batch");
  }
  if (new Set(peers.map((peer) => peer.id)).size !== peers.length) {
    throw new ShoalError("bad-config", "two peers have the same id; a plan needs distinct ones");
  }
}

/** Stages that there may be at most: each takes a peer and a layer. */
export function depthMax(model: CostModel): number {
  const wanted = model.request.config.n_stage;
  return Math.min(wanted > 0 ? wanted : Infinity, model.peers, model.layers);
}

/**
 * The plan of the fastest. Over links that nobody has measured two stages each must pay with all slots that memory has left, be these
 * links quick or slow.
 */
function fastestOf(model: CostModel, all: readonly Settled[]): Plan {
  const planned = all.map((settled) => ({ settled, plan: planOf(inOrder(settled)) }))
    .toSorted((a, b) => a.plan.seconds - b.plan.seconds);
  const [fastest] = planned as [typeof planned[0], ...typeof planned];
  const one = planned.find(({ settled }) => settled.instead === undefined);
  const two = planned.find(({ settled }) => settled.instead !== undefined);
  if (!model.doubtful || one === undefined || two === undefined) return fastest.plan;
  const slow = ({ settled }: typeof one) =>
    atWorst(settled, roomier(settled, holderStages(model, settled.prediction)).prediction);
  return isFaster(two.plan, one.plan) && isFaster(slow(two), slow(one)) ? two.plan : one.plan;
}

/** The layouts that the simulator likes best; none only if tabs in the background may hold no stage alone. */
function bestLayouts(model: CostModel, most: number, depthThatFits: () => number): Judged[] {
  const { config, simulatedOps: ops = SIMULATED_OPS } = model.request;
  const schedule = firstSchedule(model);
  if (config.n_stage === 0) {
    const best = bestDepths(model, { schedule, most, ops });
    if (best.length > 0) return best;
  }
  for (let depth = config.n_stage === 0 ? 0 : most; depth >= 1; depth--) {
    const found = layoutsOf(model, depth);
    if (found.length === 0) continue;
    const best = bestOf(model, found, { schedule, ops });
    if (model.request.twoEach !== true) return [best];
    // Which groups are best with two stages each is seen only when they have them.
    return [best, ...found.map((layout) => judged(model, layout, schedule, { left: 0 }))];
  }
  // Memory may demand a depth that is not tried for its speed.
  const found = layoutsOf(model, depthThatFits());
  return found.length === 0 ? [] : [bestOf(model, found, { schedule, ops })];
}

/** What layouts are judged by. */
function firstSchedule({ request: { schedule, config } }: CostModel): ScheduleId {
  const wanted = schedule ?? config.schedule;
  return wanted === "auto" ? "dynamic" : wanted;
}

/**
 * What else there is to choose about a layout: with one stage a peer or with two, or both where that is still to be weighed. Nothing
 * if each peer is to hold two stages and cannot.
 */
function settle(model: CostModel, best: Judged): Settled[] {
  const wanted = model.request.schedule ?? model.request.config.schedule;
  const { schedules, prediction } = chooseSchedule(model, best, wanted);
  const settled = ({ candidate, prediction: before }: Judged): Settled => {
    const { codecs, prediction: final } = chooseCodecs(model, candidate, before);
    return { model, candidate, prediction: final, codecs, schedules };
  };
  const single = { candidate: best.candidate, prediction };
  const two = doubled(model, single);
  if (two === null) return model.request.twoEach === true ? [] : [settled(single)];
  const twice = { ...settled(two), instead: prediction.seconds };
  return model.doubtful && model.request.twoEach !== true ? [settled(single), twice] : [twice];
}

/** The same with peers that are alike in the order of their naming. */
function inOrder(settled: Settled): Settled {
  const { model, candidate, prediction } = settled;
  const order = inOrderOfNaming(model, candidate.stages);
  const renamed = new Map(candidate.stages.map((stage) => [
    stage,
    { ...stage, peers: stage.peers.map((peer) => order[peer]!) },
  ]));
  return {
    ...settled,
    candidate: {
      ...candidate,
      stages: candidate.stages.map((stage) => renamed.get(stage)!),
      spares: candidate.spares.map((peer) => order[peer]!),
    },
    prediction: {
      ...prediction,
      stages: prediction.stages.map((it) => ({ ...it, stage: renamed.get(it.stage) ?? it.stage })),
    },
  };
}

function chooseSchedule(model: CostModel, { candidate, prediction }: Judged, wanted: ScheduleId | "auto") {
  const predictions = [prediction];
  if (wanted === "auto") {
    for (const schedule of ["1f1b", "gpipe"] as const) predictions.push(predict(model, candidate, schedule));
  }
  const fastest = predictions.reduce((best, it) => it.seconds < best.seconds ? it : best);
  const chosen = fastest.seconds < prediction.seconds * SCHEDULE_GAIN ? fastest : prediction;
  return {
    prediction: chosen,
    schedules: predictions.map(({ schedule, seconds }) => ({ schedule, seconds })),
  };
}

/** The plan of what the search settled on. `held`: who has which layers now, so that shadows stay where they are. */
export function planOf(settled: Settled, held?: Held): Plan {
  const { model, codecs, schedules } = settled;
  const holders = holderStages(model, settled.prediction, held);
  const { stages, prediction } = roomier(settled, holders);
  const final = { ...settled, prediction };
  return {
    ...{ kind: "plan", stages, codecs },
    spares: holders.spares,
    schedules: schedules.map(({ schedule, seconds }) => ({
      ...{ schedule, seconds: schedule === prediction.schedule ? prediction.seconds : seconds },
    })),
    schedule: prediction.schedule,
    seconds: prediction.seconds,
    bubble: prediction.bubble,
    batchSuggestion: suggestBatch(settled),
    reasons: reasonsFor(final, { ...holders, stages }),
  };
}

/**
 * The stages with every slot that memory has left, if a step is then worth it; with the slots they have otherwise. Links that
 * were not measured are taken to be slow: a slot too many costs memory, a slot too few costs time until the next cut.
 */
function roomier(
  settled: Settled,
  holders: HolderStages,
): { stages: PlannedStage[]; prediction: Prediction } {
  const { model, candidate, prediction, codecs } = settled;
  const same = { stages: holders.stages, prediction };
  const wide = prediction.schedule === "dynamic" ? widened(model, holders) : null;
  if (wide === null) return same;
  const stages = prediction.stages.map((stage, s) => ({ ...stage, inflight: wide[s]!.inflight }));
  const next = predict(model, candidate, "dynamic", { codecs, stages });
  const worst = (it: Prediction) => model.doubtful ? atWorst(settled, it).seconds : it.seconds;
  return worst(next) < worst(prediction) * SLOTS_GAIN ? { stages: wide, prediction: next } : same;
}

function atWorst({ model, candidate, codecs }: Settled, { schedule, stages }: Prediction): Prediction {
  return predict(model, candidate, schedule, { codecs, stages, doubtful: true });
}

/** What the search would have settled on, had it found this layout: the same schedule and codecs as a former plan. */
export function settledOn(model: CostModel, { candidate, prediction }: Judged): Settled {
  const { codecs } = chooseCodecs(model, candidate, prediction);
  const schedules = [{ schedule: prediction.schedule, seconds: prediction.seconds }];
  return { model, candidate, prediction, codecs, schedules };
}
