// What a plan's steps take where each follows the one before without a pause (schedule 2bw): the planner reckons with a step alone,
// which fills the pipeline and empties it. Pure; it places nothing. What must stay true: plans of one comparison are all priced here,
// or none is.
import { isDelayed } from "../../peer/wire/view.ts";
import { diffPlans } from "../plan/plan_diff.ts";
import type { Infeasible, Plan, PlanRequest } from "../plan/planner_types.ts";
import { viewOf } from "../plan/planner_view.ts";
import type { StandBy } from "../plan/standby.ts";
import { steadyOf } from "./predict_step.ts";
import type { RunCoreState } from "./run_state.ts";

/** The plan with its seconds and idle share from commit to commit; as it is where steps do not overlap, or cannot be simulated. */
export function steadily<T extends Plan | Infeasible>(s: RunCoreState, plan: T): T {
  if (plan.kind === "infeasible" || !isDelayed(s.config)) return plan;
  const codecs = { forward: s.config.codec_forward, backward: s.config.codec_backward };
  const view = viewOf(plan, { gen: 0, baseStep: 0, codecs });
  const found = steadyOf(s, { ...view, schedule: "2bw" });
  return found === null ? plan : { ...plan, ...found };
}

/** The same of both plans for a loss, and what changes between them. `request`: without the peer that is lost. */
export function steadyStandBy(
  s: RunCoreState,
  found: StandBy,
  { plan, request }: { plan: Plan; request: PlanRequest },
): StandBy {
  if (!isDelayed(s.config)) return found;
  const amended = found.amended === null ? null : steadily(s, found.amended);
  const replanned = steadily(s, found.replanned);
  const diff = replanned.kind === "infeasible" ? null : diffPlans(amended ?? plan, replanned, { request });
  return { ...found, amended, replanned, diff };
}
