// The order of everything that a peer computes in a step, over all of its stages, read from the view alone: every peer derives
// the same schedule. Pure; not an executor. What must stay true: it is an order only while the view is exactly the schedule's
// placement; of any other view there is none, and peers follow the dynamic order, which cannot deadlock.
import type { ScheduleId, View } from "../wire/run.ts";
import { emitSchedule, isPlaced } from "./catalogue.ts";
import type { StageOp } from "./executor.ts";
import { parts, type Schedule, type SingleOp } from "./ir.ts";

/** One operation of a peer, on one of its stages; micro-batches are numbered over the whole step. */
export interface PlacedOp extends StageOp {
  stage: number;
}

export interface Placed {
  schedule: Schedule;
  /** The peer that is each device. */
  peers: string[];
  /** Per device: B and W of a joined backward follow one another. */
  orders: PlacedOp[][];
}

type PlacedView = Pick<View, "schedule" | "stages">;
type Stages = PlacedView["stages"];

/** Every replica of every operation asks. Only a memo: views are never changed in place. */
const known = new WeakMap<Stages, { schedule: View["schedule"]; placed: Placed | null }>();

/**
 * The placed schedule that the view is, or null: another kind of schedule, a placement that departures have changed, micro-batches
 * dealt out otherwise, or fewer slots than the order holds activations. Shadows and learners do not count.
 */
export function placedOf({ schedule, stages }: PlacedView): Placed | null {
  const before = known.get(stages);
  if (before?.schedule === schedule) return before.placed;
  const placed = matchView({ schedule, stages });
  known.set(stages, { schedule, placed });
  return placed;
}

/** The part of a peer's order at one stage, with the place of each operation in the whole; null if the view is not placed. */
export function placedOrder(
  view: PlacedView,
  stage: number,
  peer: string,
): { order: StageOp[]; ranks: number[] } | null {
  const placed = placedOf(view);
  if (placed === null) return null;
  const order: StageOp[] = [];
  const ranks: number[] = [];
  placed.orders[placed.peers.indexOf(peer)]?.forEach((op, rank) => {
    if (op.stage !== stage) return;
    order.push({ kind: op.kind, microBatch: op.microBatch });
    ranks.push(rank);
  });
  return { order, ranks };
}

/** Micro-batches of one pipeline: they are dealt out in turn, so that each pipeline's are spread over the step. */
export function pipelineShare(direction: number, directions: number, microBatches: number): number[] {
  return Array.from({ length: microBatches / directions }, (_, m) => m * directions + direction);
}

/** The schedule as peers run it: one operation at a time, a joined backward as B and then W, so that the gradient goes on at once. */
export function asRun(schedule: Schedule): Schedule {
  const single = (op: SingleOp): SingleOp[] =>
    op.kind === "BW" ? [{ ...op, kind: "B" }, { ...op, kind: "W" }] : [op];
  return { ...schedule, ops: schedule.ops.map((list) => list.flatMap(parts).flatMap(single)) };
}

/** Per device, the same with micro-batches numbered over the whole step. */
export function flatOrders(schedule: Schedule): PlacedOp[][] {
  const directions = schedule.placement.length;
  const flat = (op: SingleOp): PlacedOp => ({
    // asRun leaves no joined backward.
    kind: op.kind as StageOp["kind"],
    stage: op.stage,
    microBatch: op.microBatch * directions + op.direction,
  });
  return asRun(schedule).ops.map((list) => list.flatMap(parts).map(flat));
}

/** The schedule that peers of a view really follow: the dynamic order where the view's own is lost. */
export function followedSchedule(view: PlacedView): ScheduleId {
  return isPlaced(view.schedule) && placedOf(view) === null ? "dynamic" : view.schedule;
}

/** Per stage, the most activations that any of its replicas holds at once: the slots that it needs. */
export function slotsNeeded(orders: readonly PlacedOp[][], stages: number): number[] {
  const most = new Array<number>(stages).fill(1);
  for (const order of orders) {
    const held = new Array<number>(stages).fill(0);
    for (const { kind, stage } of order) {
      if (kind === "F") most[stage] = Math.max(most[stage]!, ++held[stage]!);
      else if (kind === "W") held[stage]!--;
    }
  }
  return most;
}

/** The same of a schedule whose orders nobody needs: writing a large one down takes a while. */
export function slotsOf({ ops, stages }: Schedule): number[] {
  const most = new Array<number>(stages).fill(1);
  for (const order of ops) {
    const held = new Array<number>(stages).fill(0);
    for (const op of order) {
      const forward = op.kind === "FB" ? op.forward : op.kind === "F" ? op : null;
      const backward = op.kind === "FB" ? op.backward : op;
      if (forward !== null) most[forward.stage] = Math.max(most[forward.stage]!, ++held[forward.stage]!);
      if (backward.kind === "W" || backward.kind === "BW") held[backward.stage]!--;
    }
  }
  return most;
}

function matchView({ schedule, stages }: PlacedView): Placed | null {
  if (!isPlaced(schedule) || stages.length === 0) return null;
  const shares = stages.map((stage) => stage.replicas.filter(({ microBatches }) => microBatches.length > 0));
  const size = {
    devices: new Set(shares.flat().map((replica) => replica.peer)).size,
    stages: stages.length,
    microBatches: shares[0]!.reduce((sum, { microBatches }) => sum + microBatches.length, 0),
    directions: shares[0]!.length,
  };
  if (size.directions === 0 || shares.some((replicas) => replicas.length !== size.directions)) return null;
  const emitted = emitSchedule(schedule, size);
  if (typeof emitted === "string") return null;
  const peers = matchPeers(emitted, shares);
  if (peers === null) return null;
  const orders = flatOrders(emitted);
  const held = slotsNeeded(orders, stages.length);
  const roomy = stages.every((stage, s) => stage.inflight >= held[s]!);
  return roomy ? { schedule: emitted, peers, orders } : null;
}

/** Which peer is which device; null if the replicas are not one peer per device with the pipelines' micro-batches. */
function matchPeers(
  { placement, microBatches }: Schedule,
  shares: readonly { peer: string; microBatches: readonly number[] }[][],
): string[] | null {
  const peers: string[] = [];
  for (const [direction, of] of placement.entries()) {
    const share = pipelineShare(direction, placement.length, microBatches);
    for (const [stage, device] of of.entries()) {
      const replica = shares[stage]!.find((it) => sameList(it.microBatches, share));
      if (replica === undefined || (peers[device] ?? replica.peer) !== replica.peer) return null;
      peers[device] = replica.peer;
    }
  }
  return peers;
}

function sameList(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((value, i) => value === b[i]);
}
