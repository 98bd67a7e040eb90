// A view by the planner: its plan, made to fit what a view can say. Pure; what the planner is asked stands in plan_request.ts,
// the schedules with an order of their own are textbook_view.ts's. What must stay true: whatever a peer is given fits what
// it offers.
import type { View } from "../../peer/wire/run.ts";
import { asksTwoEach, plan as planAnew, PLANNED_PEERS_MAX } from "../plan/planner.ts";
import { type Pin, withPins } from "../plan/pins.ts";
import type { Infeasible, Plan, PlanRequest } from "../plan/planner_types.ts";
import { viewOf } from "../plan/planner_view.ts";
import { bestSchedule } from "./auto_schedule.ts";
import { type Fit, roomOf } from "./fit.ts";
import { withOptimizers } from "./placed_view.ts";
import { blockMsOf, requestOf, type RequestOptions } from "./plan_request.ts";
import type { PeerRecord } from "./run_state.ts";
import type { ViewRequest } from "./view_builder.ts";

export type PlannedView = { view: View; missing: null; plan: Plan } | { view: null; missing: string };

/**
 * Whether the planner decides: the order within a step is its own, or its to choose, and there is a peer for each stage that is
 * asked for, or for each two of them.
 */
export function isPlanned({ config, peers }: Pick<ViewRequest, "config" | "peers">): boolean {
  const enough = peers.length >= config.n_stage || asksTwoEach(config, peers.length);
  return ["dynamic", "2bw", "auto"].includes(config.schedule) && enough;
}

/** `prepared`: the answer for these very peers, if it was worked out beforehand. */
export function plannedView(request: ViewRequest, fit: Fit, prepared?: Plan | Infeasible): PlannedView {
  const { gen, baseStep, config } = request;
  const peers = plannable(request.peers);
  const answer = prepared === undefined
    ? planned({ ...request, peers })
    : pinned({ ...request, peers }, prepared);
  if (answer.kind === "infeasible") return { view: null, missing: answer.reason };
  const codecs = { forward: config.codec_forward, backward: config.codec_backward };
  const view = viewOf(answer, { gen, baseStep, codecs });
  // The planner knows the order within a step; whether steps overlap is the run's to say.
  const schedule = config.schedule === "2bw" ? "2bw" : view.schedule;
  const stages = config.optimizer === "auto"
    ? withOptimizers(fit, { config, peers }, { schedule, stages: view.stages })
    : view.stages;
  return { view: { ...view, stages, schedule }, missing: null, plan: answer };
}

/** What the planner makes of these peers, their pins and, where the run leaves it open, the schedule included. */
export function planned(
  of: RequestOptions,
  request: PlanRequest = requestOf(of),
): Plan | Infeasible {
  return bestSchedule(pinned(of, planAnew(request), request), { ...of, request });
}

function pinned(of: RequestOptions, found: Plan | Infeasible, request?: PlanRequest): Plan | Infeasible {
  const pins = pinsOf(of.peers);
  if (found.kind === "infeasible" || pins.length === 0) return found;
  return withPins(request ?? requestOf(of), found, pins);
}

/** What the organizer wants of these peers, whoever came first first. */
export function pinsOf(peers: readonly PeerRecord[]): Pin[] {
  return peers.flatMap(({ id, pin }) => pin === undefined ? [] : [{ peer: id, stage: pin }]);
}

/** The planner has a limit; beyond it those that give least stay spares. */
export function plannable(peers: readonly PeerRecord[]): PeerRecord[] {
  if (peers.length <= PLANNED_PEERS_MAX) return [...peers];
  const worth = (peer: PeerRecord) => roomOf(peer) / blockMsOf(peer) / (peer.hidden ? 2 : 1);
  const best = new Set(peers.toSorted((a, b) => worth(b) - worth(a)).slice(0, PLANNED_PEERS_MAX));
  return peers.filter((peer) => best.has(peer));
}
