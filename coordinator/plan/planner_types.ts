// What the planner is asked and what it answers, as plain data and two questions that the caller answers (links, memory).
// No behaviour here. Every time is in seconds, every size in bytes, unless a name says otherwise.
import type {
  BoundaryCodecs,
  ModelSpec,
  RecomputeId,
  RunConfig,
  ScheduleId,
  StageSpec,
} from "../../peer/wire/run.ts";

/** What a peer measured of one engine: seconds of one layer and one micro-batch of the run's batch size. */
export interface EngineSpeed {
  engine: string;
  forward: number;
  backward: number;
  weightGrad: number;
  /** Seconds that each operation takes on top, whatever its size: submits, readback. Default 0. */
  overhead?: number;
  /** Share of the three that does not grow with the sequences of a micro-batch. Default 0. */
  fixedShare?: number;
  /** Seconds in which a tensor of a boundary is decoded, and another encoded: half of it belongs to F, half to B. Default 0. */
  coding?: number;
}

export interface PlannerPeer {
  id: string;
  /** What people know it by, such as "tab 3"; used in reasons. Default: the id. */
  name?: string;
  /** At least one; the fastest is used. */
  engines: readonly EngineSpeed[];
  memoryBytes: number;
  /** A tab in the background: browsers slow it down at will, so it counts half. */
  hidden: boolean;
}

/** One direction between two peers. */
export interface PeerLink {
  latency: number;
  /** What it may be where it was not measured: slots, which a cut keeps for good, are judged by it. Default: `latency`. */
  latencyMost?: number;
  bytesPerS: number;
}

/** How a stage is run, as far as its memory is concerned. */
export interface HolderRun {
  slots: number;
  recompute: RecomputeId;
}

export interface PlanRequest {
  spec: ModelSpec;
  /** Micro-batches, batch size, codecs, n_stage, shadows and recompute are read; its schedule is the default below. */
  config: RunConfig;
  peers: readonly PlannerPeer[];
  /** Null if the two cannot reach one another. Asked once per pair and direction. */
  link(from: string, to: string): PeerLink | null;
  /** Everything that a holder of the stage allocates; must not shrink with more slots or layers. */
  memory(stage: StageSpec, run: HolderRun, engine: string): number;
  /** Default: the configuration's. auto: the fastest of all that peers run, by simulation. */
  schedule?: ScheduleId | "auto";
  /** auto: per boundary and direction, the finer codec where the link has room for it. Default: the configuration's. */
  codecs?: "auto";
  /** Seconds from the last sum to the commit: round trip to the coordinator, clip, AdamW. Default 0. */
  commitSeconds?: number;
  /**
   * Seconds for which everybody stops if the layers are cut as in `next`: states handed over, engines built anew. A change that
   * leaves the cut alone does not cost them. Default: nothing but the transfers.
   */
  cutSeconds?(next: Pick<Plan, "stages">): number;
  /** Whether tabs in the background may be a stage's only computing peers, if others could be. Default true. */
  hiddenAlone?: boolean;
  /** Each computing peer holds two stages, and n_stage counts peers in a line. Default: where n_stage asks for it, or if it pays. */
  twoEach?: boolean;
  /** Simulated operations that the search may spend; see planner.ts. */
  simulatedOps?: number;
}

export interface PlannedReplica {
  peer: string;
  engine: string;
  /** Ascending, of each step. */
  microBatches: number[];
}

export interface PlannedStage extends StageSpec {
  replicas: PlannedReplica[];
  /** Peers that hold the stage and compute nothing. */
  shadows: string[];
  /** Forwards in flight per replica, and activation slots. */
  inflight: number;
  recompute: RecomputeId;
  /** Most that one holder of the stage allocates for it. */
  bytes: number;
}

export type { BoundaryCodecs };

export interface Plan {
  kind: "plan";
  stages: PlannedStage[];
  /** Peers without work: they would not make a step shorter, or have no room for any stage. */
  spares: string[];
  schedule: ScheduleId;
  /** One per boundary, in pipeline order. */
  codecs: BoundaryCodecs[];
  /** Predicted seconds of a step, exchange of sums and commit included. */
  seconds: number;
  /** Idle share of the computing peers, 0 .. 1. */
  bubble: number;
  /** Predicted seconds of every schedule that was tried, the chosen one included. */
  schedules: { schedule: ScheduleId; seconds: number }[];
  /** A batch size that would take less time per sequence, or null. Changing it changes the training, so it is only said. */
  batchSuggestion: BatchSuggestion | null;
  /** Why the plan is as it is, one sentence each. */
  reasons: string[];
}

export interface BatchSuggestion {
  batchSize: number;
  microBatches: number;
}

export interface Infeasible {
  kind: "infeasible";
  /** A sentence that says how much is missing. */
  reason: string;
  missingLayers: number;
  missingBytes: number;
}
