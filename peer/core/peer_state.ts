// What a peer's core knows, what it hears and what it asks for: plain data only, so that a simulation can hold many peers
// in one thread and a snapshot of the state can be printed. No behaviour here; peer_core.ts is the one that decides.
import type { Pass, PeerMessage, StateFile, StateSource } from "../wire/control.ts";
import type { FrameHeader } from "../wire/frame.ts";
import type { ModelSpec, OptimizerId, RunConfig, StagePlan, View } from "../wire/run.ts";
import type { Progress } from "../schedule/executor.ts";

export type OpKind = "F" | "B" | "W";

/** Where a part comes from; its generation says which share of the step it holds. */
export interface PartFrom {
  from: string;
  gen: number;
}

/** A summed shard and where it comes from. */
export interface ShardFrom extends PartFrom {
  range: [start: number, end: number];
}

/** Work for the bench; one at a time per peer. `cut` fences results of an earlier cut of the layers. */
export type Job =
  | { job: "load"; cut: number; view: View; source: StateSource | null; stages: number[] }
  /** Builds the stage's engine if there is none, and uploads the parameters. */
  | { job: "engine"; cut: number; stage: number; plan: StagePlan; view: View }
  | {
    job: "op";
    cut: number;
    gen: number;
    pass: Pass;
    step: number;
    stage: number;
    kind: OpKind;
    microBatch: number;
    slot: number | null;
    /** Exponent of the stage's loss scale in this step, where there is one. */
    lossScale?: number;
  }
  /** Adds up one's own shard of the stage's gradient. */
  | {
    job: "reduce";
    cut: number;
    gen: number;
    step: number;
    stage: number;
    range: [start: number, end: number];
    parts: PartFrom[];
  }
  /** Makes the total, of whole parts or of the shards that others have summed. */
  | { job: "sum"; cut: number; step: number; stage: number; parts: PartFrom[]; shards: ShardFrom[] | null }
  | { job: "seal"; cut: number; step: number; stage: number; tied: PartFrom | null; countTied: boolean }
  /** Makes a fetched total the step's, if it has this hash. */
  | {
    job: "install";
    cut: number;
    step: number;
    stage: number;
    from: string;
    hash: string;
    countTied: boolean;
  }
  /** `upload`: the engine computes and needs the new parameters; `keep`: how many steps' totals stay in the log. */
  | {
    job: "apply";
    cut: number;
    step: number;
    stage: number;
    gradNormSq: number;
    upload: boolean;
    keep: number;
    /** The step is passed over: it changes neither parameters nor moments. */
    skip?: boolean;
  }
  | { job: "export"; cut: number; step: number; stage: number }
  /** Takes the state back from the GPU's optimizer; the result's hash is the state's. */
  | { job: "exact"; cut: number; step: number; stage: number }
  /** Makes a fetched state the learner's. */
  | { job: "adopt"; cut: number; step: number; stage: number; plan: StagePlan; view: View; file: StateFile };

export interface JobResult {
  /** op F in the last stage: mean loss of the micro-batch, nats. */
  loss?: number;
  /** seal and install: hash of the step's total; apply, adopt and exact: hash of the state. */
  hash?: string;
  gradNormSq?: number;
  saturated?: number;
  nonFinite?: number;
  /** export: the stage's state as a safetensors file, with its state hash. */
  file?: { bytes: Uint8Array; hash: string };
}

/** A frame to send; the bench holds the payload under the same description. */
export interface FrameOut {
  to: string;
  kind: FrameHeader["kind"];
  cut: number;
  gen: number;
  pass: Pass;
  step: number;
  fromStage: number;
  toStage: number;
  microBatch: number;
  set: number[];
  /** Values [start, end) of the stage's gradient that a part or a summed shard holds; null = all. */
  range: [start: number, end: number] | null;
  /** It was sent before, or is a fetched total: bytes that only a departure costs. */
  recovery: boolean;
}

export type PeerEvent =
  | { type: "view"; view: View; source: StateSource | null }
  | { type: "open"; gen: number; step: number; pass: Pass; lossScale?: number[] }
  | { type: "commit"; cut: number; step: number; gradNormSq: number; hashes: string[]; skip?: boolean }
  | { type: "snapshot"; cut: number; step: number; stage: number }
  | { type: "adopt"; cut: number; step: number; stage: number; hash: string }
  | { type: "send-total"; cut: number; step: number; stage: number; to: string }
  | { type: "state"; cut: number; step: number; stage: number; file: StateFile }
  /** The bytes of a state asked for by a "fetch" effect are on the bench, or did not come. */
  | { type: "fetched"; cut: number; step: number; stage: number; file: StateFile; problem: string | null }
  | { type: "frame"; from: string; header: FrameHeader }
  | { type: "link"; peer: string; open: boolean; reason: string }
  /** A restarted coordinator has taken this peer back: what it may not have heard is said again. */
  | { type: "resumed" }
  | { type: "finished"; job: Job; result: JobResult };

export type PeerEffect =
  | { do: "say"; message: PeerMessage }
  | { do: "job"; job: Job }
  | { do: "send"; frame: FrameOut }
  /** The frame of this very event is wanted: its payload goes to the bench. Without it the payload is dropped. */
  | { do: "keep" }
  /** A round begins for a stage: payloads of rounds before it are garbage. */
  | { do: "begin"; stage: number; pass: Pass; step: number }
  | { do: "fetch"; cut: number; stage: number; step: number; file: StateFile }
  | { do: "connect"; peers: { peer: string; initiator: boolean }[] }
  | { do: "disconnect"; peers: string[] }
  /** Lets go of one stage, or of everything. */
  | { do: "release"; stage: number }
  | { do: "unload" };

export interface Arrived {
  order: number;
  kind: FrameHeader["kind"];
  fromStage: number;
  stage: number;
  microBatch: number;
  from: string;
  gen: number;
  pass: Pass;
  set: number[];
  /** Number of values. */
  cols: number;
}

/**
 * How the stage's total of a step comes to be here. none: parts are missing. summed: own sum complete, the other end of a
 * tied embedding is waited for. logged: complete, hashed and told. asked: it will come from another holder.
 */
export type TotalPhase = "none" | "summing" | "summed" | "sealing" | "logged" | "asked" | "installing";

/** One training step at one stage instance. */
export interface StepWork {
  step: number;
  /** Null in a shadow, which computes nothing. */
  progress: Progress | null;
  /** Micro-batches taken over from somebody who left during this step. */
  takenOver: number[];
  losses: Record<number, number>;
  lossesTold: number;
  parts: (PartFrom & { set: number[] })[];
  /** Generation for which the own part was last published; -1 = not yet. */
  partGen: number;
  /** Shards that their owners have summed, where sums go by shards. */
  shards: (PartFrom & { index: number })[];
  /** The own shard: being summed, or summed and sent, for a generation; -1 = not yet. */
  reducingGen: number;
  shardGen: number;
  total: TotalPhase;
  /** Hash of the own total, once logged. */
  hash: string;
  facts: { gradNormSq: number; saturated: number; nonFinite: number };
  tiedFrom: PartFrom | null;
  /** Generation for which the own end's sum was last sent; -1 = not yet. */
  tiedGen: number;
  /** Hash that the coordinator named; a total with another one is not applied. */
  wanted: string | null;
}

/** A forward-only round at one stage instance; begun anew if the view is amended meanwhile. */
export interface Evaluation {
  step: number;
  gen: number;
  left: number[];
  ready: number[];
  done: number[];
  losses: Record<number, number>;
}

/** One stage instance on this peer and how far it is. */
export interface Instance {
  plan: StagePlan;
  /** Own micro-batches of a training step under the present view, ascending. */
  microBatches: number[];
  /** Committed steps contained in the state; null while a learner has none. */
  step: number | null;
  /** ready: operations can run. stale: built, but without the newest parameters, as a shadow keeps it. */
  engine: "none" | "building" | "stale" | "ready";
  /** How its steps are made; a plan that wants another way is followed between two steps. */
  optimizer: OptimizerId;
  /** First step whose total is still in this holder's log. */
  oldest: number;
  work: StepWork | null;
  /** With the schedule 2bw: the step after that of `work`, as long as it is not this one's turn. Nothing is summed of it yet. */
  ahead: StepWork | null;
  evaluation: Evaluation | null;
  applying: boolean;
  /** The hash that the coordinator named for a step which this instance has not reached yet. */
  adopt: { step: number; hash: string } | null;
  /** A learner's state is being fetched or installed. */
  fetching: boolean;
}

/** What a commit said, kept until every own instance has applied it. */
export interface CommitInfo {
  gradNormSq: number;
  hashes: string[];
  skip?: boolean;
}

export interface PeerState {
  id: string;
  config: RunConfig;
  spec: ModelSpec;
  view: View | null;
  gen: number;
  /** Steps known to be committed. */
  committed: number;
  commits: Record<number, CommitInfo>;
  loaded: boolean;
  readySent: boolean;
  links: string[];
  neighbours: string[];
  /** Failed attempts in a row to have a link to a neighbour; gone once it is open. */
  linkFailures: Record<string, number>;
  instances: Instance[];
  /** The newest round opened. */
  open: { pass: Pass; step: number; order: number; gen: number; lossScale?: number[] } | null;
  arrived: Arrived[];
  jobs: Job[];
  /** Stages to be let go of as soon as no job runs on them; "all" = everything. */
  releases: (number | "all")[];
  busy: Job | null;
  pendingSnapshots: { step: number; stage: number }[];
  /** Frames refused: stale generation, wrong sender, duplicate, out of window. */
  fenced: number;
  /** Micro-batches computed again because somebody left. */
  recomputed: number;
}

export function createPeerState(id: string, config: RunConfig, spec: ModelSpec): PeerState {
  return {
    ...{ id, config, spec, view: null, gen: -1, committed: 0, commits: {}, loaded: false, readySent: false },
    ...{
      links: [],
      neighbours: [],
      linkFailures: {},
      instances: [],
      open: null,
      arrived: [],
      jobs: [],
      releases: [],
    },
    ...{ busy: null, pendingSnapshots: [], fenced: 0, recomputed: 0 },
  };
}
