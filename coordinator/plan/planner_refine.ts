// Local search with the simulator as judge: the cost model orders a layout's neighbours, the simulator decides. Pure and
// deterministic; spends a budget of simulated operations, never time.
import type { ScheduleId } from "../../peer/wire/run.ts";
import type { CostModel, GroupStage } from "./planner_model.ts";
import { neighbours } from "./planner_moves.ts";
import { predict, type Prediction } from "./planner_predict.ts";
import { type Candidate, candidateOf } from "./planner_search.ts";

/** Neighbours of the best layout that the simulator looks at in one round, by the cost model's order. */
const NEIGHBOURS_SIMULATED = 8;
/** Neighbours that the cost model puts in order for that. */
const NEIGHBOURS_COSTED = 600;

export interface Judged {
  candidate: Candidate;
  prediction: Prediction;
}

/** Simulated operations that may still be spent; counted down. */
export interface Budget {
  left: number;
}

export interface RefineOptions {
  budget: Budget;
  /** Default: every neighbour. */
  moves?: (candidate: Candidate) => Iterable<readonly GroupStage[]>;
  /** Moves that may be taken. Default: any number. */
  rounds?: number;
  /** The number of stages stays as it is. Default: where the run asks for one. */
  keepDepth?: boolean;
}

/** A layout and what its step takes, paid for from the budget. */
export function judged(
  model: CostModel,
  candidate: Candidate,
  schedule: ScheduleId,
  budget: Budget,
): Judged {
  budget.left -= 3 * model.N * candidate.stages.length;
  return { candidate, prediction: predict(model, candidate, schedule) };
}

/** Takes the first neighbour that the simulator likes better, again and again. */
export function refine(model: CostModel, start: Judged, options: RefineOptions): Judged {
  const { budget, rounds = Infinity, keepDepth = model.request.config.n_stage > 0 } = options;
  const moves = options.moves ?? ((candidate) => neighbours(model, candidate, { keepDepth }));
  let best = start;
  for (let round = 0; round < rounds && budget.left > 0; round++) {
    const near = nearby(model, moves(best.candidate));
    const better = betterOf(model, best, { budget, near }) ??
      betterOf(model, best, { budget, near: otherOptions(model, best.candidate) });
    if (better === null) break;
    best = better;
  }
  return best;
}

function betterOf(
  model: CostModel,
  best: Judged,
  of: { budget: Budget; near: readonly Candidate[] },
): Judged | null {
  for (const candidate of of.near) {
    if (of.budget.left <= 0 || candidate.cost.seconds === Infinity) break;
    const rival = judged(model, candidate, best.prediction.schedule, of.budget);
    if (rival.prediction.seconds >= best.prediction.seconds * (1 - 1e-9)) continue;
    return { ...rival, candidate: { ...candidate, spares: candidateOf(model, candidate.stages).spares } };
  }
  return null;
}

/** The same groups, one stage at another way of running it: what recomputing costs and slots win is for the simulator to say. */
function otherOptions(model: CostModel, { stages, spares, cost }: Candidate): Candidate[] {
  return stages.flatMap(({ options }, s) =>
    options.flatMap((_, option) => {
      if (option === cost.options[s]) return [];
      return [{ stages, spares, cost: model.evaluate(stages, cost.options.with(s, option)) }];
    })
  );
}

/** The neighbours that the cost model likes best. */
function nearby(model: CostModel, moves: Iterable<readonly GroupStage[]>): Candidate[] {
  const costed: Candidate[] = [];
  for (const stages of moves) {
    costed.push({ stages, spares: [], cost: model.evaluate(stages) });
    if (costed.length >= NEIGHBOURS_COSTED) break;
  }
  return costed.sort((a, b) => a.cost.seconds - b.cost.seconds).slice(0, NEIGHBOURS_SIMULATED);
}
