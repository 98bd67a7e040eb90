// Whether another schedule is worth a new cut, where the run leaves the schedule to the planner: asked when peers, their speeds or
// links have changed, between two steps. Pure; mutates the turn's state. What must stay true: everybody stops for a new cut, so
// its schedule must shorten a step by what the balancer asks of any change and earn the standstill back; noise never does.
import { followedSchedule } from "../../peer/schedule/placed.ts";
import { isCooling } from "../plan/balancer.ts";
import { diffPlans } from "../plan/plan_diff.ts";
import type { Plan } from "../plan/planner_types.ts";
import { GAIN_MIN, PAYBACK } from "../plan/rebalance.ts";
import { isFixedOrder } from "./auto_schedule.ts";
import { HORIZON_STEPS, isSettled, promise, tell } from "./balance.ts";
import { requestOf } from "./plan_request.ts";
import { isPlanned, plannable, planned } from "./planned_view.ts";
import { commitSeconds, planKey, planOfView, predictedStep } from "./planning.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";
import type { Turn } from "./turn.ts";
import { usablePeers } from "./view_builder.ts";

/** Steps of a fixed order after which it is weighed anew: links change all the time, and nothing else asks about them. */
const WEIGHED_EVERY = 64;

/** Begins a new cut if another schedule, or the same one on other peers, pays for it. Called at a boundary that nothing else uses. */
export function weighSchedule(turn: Turn): void {
  const { s } = turn;
  const { planning, config } = s;
  if (config.schedule !== "auto" || !isSettled(s)) return;
  const fixed = isFixedOrder(s.view!.schedule);
  const again = fixed && s.committed > s.cutBase && (s.committed - s.cutBase) % WEIGHED_EVERY === 0;
  if (!(planning.scheduleDue || again) || isCooling(planning.balancer, turn.now)) return;
  planning.scheduleDue = false;
  // Nobody else weighs anything while a fixed order is followed.
  if (fixed) planning.balancer = { ...planning.balancer, pending: false };
  const peers = plannable(usablePeers(Object.values(s.peers)).sort((a, b) => a.joinedAt - b.joinedAt));
  const before = predictedStep(s)?.seconds;
  if (before === undefined || !isPlanned({ config, peers })) return;
  const request = { ...requestOf({ spec: s.spec, config, peers }), commitSeconds: commitSeconds(s) };
  const next = planned({ spec: s.spec, config, peers }, request);
  if (next.kind === "infeasible") return;
  // The balancer has just weighed what the dynamic order could gain.
  if (!fixed && next.schedule === s.view!.schedule) return;
  const diff = diffPlans(planOfView(s.view!), next, { request, before });
  const stop = Math.max(diff.seconds, request.cutSeconds?.(next) ?? 0);
  if (pays(s, { gain: before - next.seconds, before, stop })) cutAnew(turn, { next, before, peers });
}

function pays(
  s: RunCoreState,
  { gain, before, stop }: { gain: number; before: number; stop: number },
): boolean {
  const steps = Math.min(HORIZON_STEPS, s.target - s.committed);
  // A gain that nobody would notice, beside all that a step takes, is none.
  const least = GAIN_MIN *
    Math.max(before, ...s.planning.lastS.length > 0 ? [Math.min(...s.planning.lastS)] : []);
  return gain >= least && gain * steps >= PAYBACK * stop;
}

function cutAnew(
  turn: Turn,
  { next, before, peers }: { next: Plan; before: number; peers: readonly PeerRecord[] },
): void {
  const { s } = turn;
  const now = followedSchedule(s.view!);
  const step = (seconds: number) => `${seconds.toPrecision(3)} s`;
  const what = now === next.schedule
    ? `The ${now} order is placed anew`
    : `The schedule becomes ${next.schedule} instead of ${now}`;
  const why = `${what}. A step is expected to take ${step(before)} before, ${step(next.seconds)} after.`;
  s.planning.prepared = { key: planKey(s, peers), answer: next, why };
  s.planning.balancer = { ...s.planning.balancer, movedAt: turn.now };
  s.replanDue = why;
  tell(turn, why);
  promise(s, { what, before: s.planning.stepS ?? before, expected: next.seconds, peer: null });
}
