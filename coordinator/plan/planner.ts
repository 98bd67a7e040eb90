// The planner: from measured peers and links to who holds which layers, who computes which micro-batches, and how. Pure and
// deterministic. Searches with the cost model (exactly where the swarm is small), judges with the simulator, and keeps the
// reasons. What must stay true: no holder's memory is exceeded, every layer and micro-batch has exactly one place.
import { ShoalError } from "../../peer/wire/errors.ts";
import type { ScheduleId } from "../../peer/wire/run.ts";
import { chooseCodecs } from "./planner_codecs.ts";
import { doubled } from "./planner_doubled.ts";
import { exactFits, exactLayout } from "./planner_exact.ts";
import { capacityOf, infeasibility, roomiest } from "./planner_feasible.ts";
import { CostModel } from "./planner_model.ts";
import { inOrderOfNaming } from "./planner_order.ts";
import { predict, type Prediction } from "./planner_predict.ts";
import { reasonsFor, suggestBatch } from "./planner_reasons.ts";
import { type Judged, judged, refine } from "./planner_refine.ts";
import { type Candidate, candidateOf, searchLayouts } from "./planner_search.ts";
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
  const found = candidates(model, most, () => roomiest(capacities, most, model.layers).peers.length)
    .filter((candidate) => candidate.cost.seconds < Infinity);
  if (found.length > 0) {
    const settled = settle(model, found);
    return settled === null ? tooFullForTwo(model) : planOf(inOrder(settled));
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

/** Layouts worth simulating, cheapest by the cost model first; none only if tabs in the background may hold no stage alone. */
function candidates(model: CostModel, most: number, depthThatFits: () => number): Candidate[] {
  const exactly = model.request.config.n_stage > 0;
  let found = withOptimum(model, searchLayouts(model, { most, exactly }), exactly ? most : null);
  for (let depth = most - 1; found.length === 0 && exactly && depth >= 1; depth--) {
    found = searchLayouts(model, { most: depth, exactly });
  }
  // Memory may demand a depth that is not tried for its speed.
  if (found.length === 0) found = searchLayouts(model, { most: depthThatFits(), exactly: true });
  return found;
}

/** The same with the best layout of all before them, where it can be found exactly and is better. */
function withOptimum(model: CostModel, found: Candidate[], stageCount: number | null): Candidate[] {
  if (!exactFits(model)) return found;
  const best = exactLayout(model, { below: found[0]?.cost.seconds ?? Infinity, stageCount });
  if (best === null) return found;
  const candidate = candidateOf(model, best.stages.map(({ stage }) => stage));
  const options = best.stages.map(({ stage, option }) => stage.options.indexOf(option));
  return [{ ...candidate, cost: { ...candidate.cost, options, seconds: best.seconds } }, ...found];
}

/**
 * The simulator's choice among the candidates, improved step by step with the simulator as judge. Null if each peer is to hold
 * two stages and cannot.
 */
function settle(model: CostModel, found: readonly Candidate[]): Settled | null {
  const wanted = model.request.schedule ?? model.request.config.schedule;
  const first: ScheduleId = wanted === "auto" ? "dynamic" : wanted;
  const budget = { left: model.request.simulatedOps ?? SIMULATED_OPS };
  let best = judged(model, found[0]!, first, budget);
  for (const candidate of found.slice(1)) {
    if (budget.left <= 0) break;
    const rival = judged(model, candidate, first, budget);
    if (rival.prediction.seconds < best.prediction.seconds) best = rival;
  }
  best = refine(model, best, { budget });
  const { schedules, prediction } = chooseSchedule(model, best, wanted);
  const single = { candidate: best.candidate, prediction };
  const chosen = doubled(model, single) ?? (model.request.twoEach ? null : single);
  if (chosen === null) return null;
  const { codecs, prediction: final } = chooseCodecs(model, chosen.candidate, chosen.prediction);
  const instead = chosen === single ? {} : { instead: prediction.seconds };
  return { model, candidate: chosen.candidate, prediction: final, codecs, schedules, ...instead };
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
