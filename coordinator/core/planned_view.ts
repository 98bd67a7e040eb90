// A view by the planner: its plan, made to fit what a view can say. Pure; what the planner is asked stands in plan_request.ts,
// the schedules with an order of their own are textbook_view.ts's. What must stay true: whatever a peer is given fits what
// it offers.
import type { View } from "../../peer/wire/run.ts";
import { asksTwoEach, plan as planAnew, PLANNED_PEERS_MAX } from "../plan/planner.ts";
import { type Pin, withPins } from "../plan/pins.ts";
import type { Infeasible, Plan } from "../plan/planner_types.ts";
import { viewOf } from "../plan/planner_view.ts";
import { type Fit, roomOf } from "./fit.ts";
import { chooseOptimizers } from "./gpu_optimizer.ts";
import { blockMsOf, requestOf } from "./plan_request.ts";
import type { PeerRecord } from "./run_state.ts";
import type { ViewRequest } from "./view_builder.ts";

export type PlannedView = { view: View; missing: null; plan: Plan } | { view: null; missing: string };

/**
 * Whether the planner decides: the order within a step is its own, and there is a peer for each stage that is asked for, or for
 * each two of them.
 */
export function isPlanned({ config, peers }: Pick<ViewRequest, "config" | "peers">): boolean {
  const enough = peers.length >= config.n_stage || asksTwoEach(config, peers.length);
  return ["dynamic", "2bw"].includes(config.schedule) && enough;
}

/** `prepared`: the answer for these very peers, if it was worked out beforehand. */
export function plannedView(request: ViewRequest, fit: Fit, prepared?: Plan | Infeasible): PlannedView {
  const { gen, baseStep, config } = request;
  const peers = plannable(request.peers);
  const found = prepared ?? planAnew(requestOf({ ...request, peers }));
  if (found.kind === "infeasible") return { view: null, missing: found.reason };
  const pins = pinsOf(peers);
  const answer = pins.length === 0 ? found : withPins(requestOf({ ...request, peers }), found, pins);
  const codecs = { forward: config.codec_forward, backward: config.codec_backward };
  const view = viewOf(answer, { gen, baseStep, codecs });
  const { stages } = view;
  if (config.optimizer === "auto") chooseOptimizers(fit, { config, peers }, stages);
  // The planner knows the order within a step; whether steps overlap is the run's to say.
  return { view: { ...view, stages, schedule: config.schedule }, missing: null, plan: answer };
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
