// What becomes of a placed schedule when peers come and go: told when its order is lost, cut anew when peers allow it again. Pure;
// mutates the turn's state. What must stay true: a new cut gives the schedule at least as many peers as compute now, so that a
// swarm whose peers come and go is not cut anew for less than it has.
import { isPlaced } from "../../peer/schedule/catalogue.ts";
import { placedOf } from "../../peer/schedule/placed.ts";
import type { StagePlan } from "../../peer/wire/run.ts";
import { createFit } from "./fit.ts";
import { weightOf } from "./plan_request.ts";
import type { RunCoreState } from "./run_state.ts";
import { planTextbook, type Textbook } from "./textbook_view.ts";
import { note, type Turn } from "./turn.ts";
import { usablePeers } from "./view_builder.ts";

/** Whether peers follow the order of the configured schedule, which other shares would end. */
export function keepsOrder(s: RunCoreState, stages: StagePlan[]): boolean {
  return s.view !== null && placedOf({ schedule: s.view.schedule, stages }) !== null;
}

/** Why the layers are to be cut anew for the configured schedule, or null. */
export function placementDue({ s }: Turn): string | null {
  const { config, view } = s;
  if (view === null || !isPlaced(config.schedule)) return null;
  const { devices } = textbookNow(s);
  const computing = computingPeers(view.stages);
  const kept = view.schedule === config.schedule && keepsOrder(s, view.stages);
  if (kept ? devices <= computing : devices === 0 || devices < computing) return null;
  return `${devices} peers can follow ${config.schedule}`;
}

/** The order was lost with a peer, or with what it computed. */
export function orderLost(turn: Turn): void {
  const { s } = turn;
  s.tidyDue = true;
  s.planning.scheduleDue = true;
  note(turn, "schedule", `${s.view!.schedule} has lost its order: the dynamic one is followed for now`);
}

/** A new cut follows another schedule than the configured one: says why. What the planner chose is in its plan's reasons. */
export function tellFallback(turn: Turn): void {
  const { s } = turn;
  if (s.view === null || [s.view.schedule, "auto"].includes(s.config.schedule)) return;
  note(turn, "schedule", `the ${s.view.schedule} order is followed: ${textbookNow(s).missing}`);
}

function textbookNow(s: RunCoreState): Textbook {
  const { config, spec } = s;
  const peers = usablePeers(Object.values(s.peers)).sort((a, b) => a.joinedAt - b.joinedAt);
  return planTextbook({ config, spec, peers, fit: createFit(spec, config), speedOf: weightOf });
}

function computingPeers(stages: StagePlan[]): number {
  const computing = stages.flatMap((stage) => stage.replicas.filter((it) => it.microBatches.length > 0));
  return new Set(computing.map((replica) => replica.peer)).size;
}
