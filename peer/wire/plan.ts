// What the pages show of a run's plan: why it is as it is, and what a new one would change. Plain JSON data; the coordinator's
// planner makes it. Seconds are seconds, sizes bytes; null stands for what cannot be said.

/** A stage as it is planned. */
export interface PlanStage {
  /** First layer and one past the last. */
  firstLayer: number;
  endLayer: number;
  /** Who computes, and how many micro-batches of each step. */
  replicas: { peer: string; microBatches: number }[];
  /** Who only keeps its state. */
  shadows: string[];
}

/** Part of GET /api/status. */
export interface PlanStatus {
  /** The order that peers follow now. */
  schedule: string;
  /** Predicted seconds of a step as the work is shared now, links and speeds as they are believed. */
  seconds: number | null;
  /** Predicted idle share of the peers that compute, 0 .. 1. */
  bubble: number | null;
  /** Why the present cut is as it is, one sentence each. */
  reasons: string[];
  /** Peers without any stage that could be given one. */
  spares: string[];
  /** What was changed since, why, what it was to gain and what it gained; newest last. */
  changes: string[];
  /** What would be done without one peer, worked out beforehand. */
  standBy: { peer: string; sentence: string }[];
}

/** Layers that a peer would begin to hold. */
export interface PlanTransfer {
  peer: string;
  /** A holder of them now; null if only a snapshot has them. */
  from: string | null;
  firstLayer: number;
  endLayer: number;
  bytes: number;
  seconds: number | null;
}

/** POST /api/replan {apply: boolean}: what the planner would do now, and what that would change. */
export interface ReplanPreview {
  /** False: there is nothing to plan, or no plan fits; `reason` says why. */
  possible: boolean;
  reason: string;
  /** Predicted seconds of a step. */
  before: number | null;
  after: number | null;
  /** Of all transfers; and the seconds for which the run stands still. */
  bytes: number;
  seconds: number | null;
  /** Steps after which the change has paid for itself; null if it never does. */
  paysAfter: number | null;
  transfers: PlanTransfer[];
  /** The same in words. */
  sentences: string[];
  /** Why the new plan would be as it is. */
  reasons: string[];
  stages: PlanStage[];
  spares: string[];
}
