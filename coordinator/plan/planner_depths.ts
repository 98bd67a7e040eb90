// The best layout where the number of stages is the planner's own: each depth is searched as if it had been asked for, then stages
// are joined and split from the best one on. Pure and deterministic; spends simulated operations, never time. What must stay true:
// in a small swarm no fixed number of stages gives a better plan than the free choice.
import type { ScheduleId } from "../../peer/wire/run.ts";
import { exactFits, type ExactLayout, exactLayout, exactLayouts } from "./planner_exact.ts";
import type { CostModel } from "./planner_model.ts";
import { type Budget, type Judged, judged, refine } from "./planner_refine.ts";
import { type Candidate, candidateOf, searchLayouts, type SearchLimits } from "./planner_search.ts";

/** Swarms up to this size have every depth searched in full; a larger one only the depths that look best. */
const SMALL_SWARM = 24;
/** A depth that the simulator finds so much slower than the best is not worth a search of its own: few gain as much by it. */
const HOPELESS = 1.3;
/** Shares of the operations of a depth, and what it may be behind the best to get them. */
const ROUNDS = [{ share: 1 / 4, within: HOPELESS }, { share: 3 / 4, within: 1.1 }];
/** The same by the cost model, for further starts and for the exact optima of all depths at once: what is further off takes longest. */
const WORTH_MORE = 1.15;
/** Depths of a large swarm that the simulator may improve. */
const DEPTHS_REFINED = 3;
/** Depths beside the best one that are searched in full, as long as that helps; none beyond the middle size, for the time. */
const NEIGHBOURS_TRIED = 4;
const MIDDLE_SWARM = 64;
/** Layouts so near to the best are compared as finished plans: more slots or other codecs may turn them round. */
const CLOSE = 1.05;

export interface DepthOptions {
  schedule: ScheduleId;
  /** Stages at most. */
  most: number;
  /** Simulated operations for all of it. */
  ops: number;
}

/** Layouts of one depth, the cheapest first: the exact optimum where that is to be had, then what the search finds. */
export function layoutsOf(model: CostModel, depth: number): Candidate[] {
  const found = searched(model, depth);
  if (!exactFits(model)) return found;
  const best = exactLayout(model, { below: found[0]?.cost.seconds ?? Infinity, stageCount: depth });
  return best === null ? found : [candidateFrom(model, best), ...found];
}

function searched(model: CostModel, depth: number, starts: SearchLimits["starts"] = {}): Candidate[] {
  const found = searchLayouts(model, { most: depth, exactly: true, starts });
  return found.filter(({ cost }) => cost.seconds < Infinity);
}

function candidateFrom(model: CostModel, { stages, seconds }: ExactLayout): Candidate {
  const candidate = candidateOf(model, stages.map(({ stage }) => stage));
  const options = stages.map(({ stage, option }) => stage.options.indexOf(option));
  return { ...candidate, cost: { ...candidate.cost, options, seconds } };
}

/** The fastest of the layouts by simulation, improved while the depth stays. */
export function bestOf(
  model: CostModel,
  layouts: readonly Candidate[],
  { schedule, ops }: Pick<DepthOptions, "schedule" | "ops">,
): Judged {
  const budget = { left: ops };
  return refine(model, startOf(model, layouts, { schedule, budget }), { budget, keepDepth: true });
}

/**
 * The fastest layouts of any depth by simulation, best first: those that slots and codecs may still put in another order. None if
 * the memories do not hold the model in so few stages.
 */
export function bestDepths(model: CostModel, options: DepthOptions): Judged[] {
  const refined = model.peers <= SMALL_SWARM ? everyDepth(model, options) : likelyDepths(model, options);
  const best = refined[0];
  if (best === undefined) return [];
  const left = model.peers <= MIDDLE_SWARM ? options.ops : options.ops / DEPTHS_REFINED;
  const free = refine(model, best, { budget: { left }, keepDepth: false });
  const limit = CLOSE * free.prediction.seconds;
  return [
    ...(free === best ? [] : [free]),
    ...refined.filter(({ prediction }) => prediction.seconds <= limit),
  ];
}

/** Each depth as if it had been asked for, with all that it would have then, but for those that are hopeless. */
function everyDepth(model: CostModel, { schedule, most, ops }: DepthOptions): Judged[] {
  const found = layoutsByDepth(model, most);
  const starts = found.filter((layouts) => layouts.length > 0)
    .map((layouts) => startOf(model, layouts, { schedule, budget: { left: ops } })).toSorted(bySeconds);
  let left = starts;
  // Each time with more operations, and for fewer: what is left in the end had all of them.
  for (const { share, within } of ROUNDS) {
    const limit = within * (left[0]?.prediction.seconds ?? 0);
    left = left.filter(({ prediction }) => prediction.seconds <= limit)
      .map((it) => refine(model, it, { budget: { left: share * ops }, keepDepth: true })).toSorted(bySeconds);
  }
  return left;
}

/** layoutsOf() of each depth but the hopeless ones, of which the search sees less; the exact optima all at once. */
function layoutsByDepth(model: CostModel, most: number): Candidate[][] {
  const first = Array.from({ length: most }, (_, i) => searched(model, i + 1, { to: 1 }));
  const limit = WORTH_MORE * Math.min(...first.map((layouts) => layouts[0]?.cost.seconds ?? Infinity));
  const found = first.map((layouts, i) => {
    if ((layouts[0]?.cost.seconds ?? Infinity) > limit) return layouts;
    return [...layouts, ...searched(model, i + 1, { from: 1 })]
      .toSorted((a, b) => a.cost.seconds - b.cost.seconds);
  });
  if (!exactFits(model)) return found;
  const below = [-Infinity, ...found.map((layouts) => layouts[0]?.cost.seconds ?? Infinity)];
  const best = exactLayouts(model, { below, within: WORTH_MORE });
  return found.map((layouts, i) => {
    const layout = best[i + 1] ?? null;
    return layout === null ? layouts : [candidateFrom(model, layout), ...layouts];
  });
}

/** The depths that the search likes best, with a share of the operations each; then the depths beside the best one. */
function likelyDepths(model: CostModel, { schedule, most, ops }: DepthOptions): Judged[] {
  const share = ops / DEPTHS_REFINED;
  const better = (layouts: readonly Candidate[]) => {
    const budget = { left: share };
    return refine(model, startOf(model, layouts, { schedule, budget }), { budget, keepDepth: true });
  };
  const found = searchLayouts(model, { most, exactly: false, keepDepth: true });
  const starts = found.map((layout) => startOf(model, [layout], { schedule, budget: { left: ops } }));
  const refined = starts.toSorted(bySeconds).slice(0, DEPTHS_REFINED)
    .map(({ candidate }) => better([candidate])).toSorted(bySeconds);
  const seen = new Set(refined.map(depthOf));
  for (let tries = model.peers <= MIDDLE_SWARM ? NEIGHBOURS_TRIED : 0; tries > 0; tries--) {
    const depth = depthOf(refined[0]!);
    const next = [depth - 1, depth + 1].find((it) => it >= 1 && it <= most && !seen.has(it));
    if (next === undefined) break;
    seen.add(next);
    const layouts = layoutsOf(model, next);
    if (layouts.length > 0) refined.push(better(layouts));
    refined.sort(bySeconds);
  }
  return refined;
}

function startOf(
  model: CostModel,
  layouts: readonly Candidate[],
  { schedule, budget }: { schedule: ScheduleId; budget: Budget },
): Judged {
  let best = judged(model, layouts[0]!, schedule, budget);
  for (const layout of layouts.slice(1)) {
    if (budget.left <= 0) break;
    const rival = judged(model, layout, schedule, budget);
    if (rival.prediction.seconds < best.prediction.seconds) best = rival;
  }
  return best;
}

function depthOf({ candidate }: Judged): number {
  return candidate.stages.length;
}

function bySeconds(a: Judged, b: Judged): number {
  return a.prediction.seconds - b.prediction.seconds;
}
