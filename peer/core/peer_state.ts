// What a peer's core knows, what it hears and what it asks for: plain data only, so that a simulation can hold many peers
// in one thread and a snapshot of the state can be printed. No behaviour here; peer_core.ts is the one that decides.
import type { Pass, PeerMessage, StateSource } from "../wire/control.ts";
import type { FrameHeader } from "../wire/frame.ts";
import type { ModelSpec, RunConfig, StagePlan, View } from "../wire/run.ts";
import type { Progress } from "../schedule/executor.ts";

export type OpKind = "F" | "B" | "W";

/** Work for the bench; one at a time per peer. `gen` fences results of an older view. */
export type Job =
  | { job: "load"; gen: number; view: View; source: StateSource | null; stages: number[] }
  | {
    job: "op";
    gen: number;
    pass: Pass;
    step: number;
    stage: number;
    kind: OpKind;
    microBatch: number;
    slot: number | null;
  }
  | { job: "sum"; gen: number; step: number; stage: number; parts: string[] }
  | { job: "seal"; gen: number; step: number; stage: number; tied: boolean; countTied: boolean }
  | { job: "apply"; gen: number; step: number; stage: number; gradNormSq: number }
  | { job: "export"; gen: number; step: number; stage: number };

export interface JobResult {
  /** op F in the last stage: mean loss of the micro-batch, nats. */
  loss?: number;
  /** seal: hash of the step's total; apply: hash of the new state. */
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
  gen: number;
  pass: Pass;
  step: number;
  fromStage: number;
  toStage: number;
  microBatch: number;
  set: number[];
}

export type PeerEvent =
  | { type: "view"; view: View; source: StateSource | null }
  | { type: "open"; gen: number; step: number; pass: Pass }
  | { type: "commit"; gen: number; step: number; gradNormSq: number }
  | { type: "snapshot"; gen: number; step: number; stage: number }
  | { type: "frame"; from: string; header: FrameHeader }
  | { type: "link"; peer: string; open: boolean; reason: string }
  | { type: "finished"; job: Job; result: JobResult };

export type PeerEffect =
  | { do: "say"; message: PeerMessage }
  | { do: "job"; job: Job }
  | { do: "send"; frame: FrameOut }
  /** The frame of this very event is wanted: its payload goes to the bench. Without it the payload is dropped. */
  | { do: "keep" }
  /** A round begins: payloads of rounds before it are garbage. */
  | { do: "round"; pass: Pass; step: number }
  | { do: "connect"; peers: { peer: string; initiator: boolean }[] }
  | { do: "unload" };

export interface Arrived {
  order: number;
  kind: FrameHeader["kind"];
  stage: number;
  microBatch: number;
  from: string;
}

/** One stage instance on this peer and how far its round is. */
export interface Instance {
  plan: StagePlan;
  /** Own micro-batches of a training step, ascending. */
  microBatches: number[];
  progress: Progress | null;
  losses: Record<number, number>;
  /** Forward-only micro-batches of an evaluation still to run. */
  evalLeft: number[];
  evalReady: number[];
  parts: string[];
  tiedArrived: boolean;
  phase: "computing" | "summing" | "awaiting tied" | "sealing" | "logged" | "applying" | "applied";
}

export interface PeerState {
  id: string;
  config: RunConfig;
  spec: ModelSpec;
  view: View | null;
  gen: number;
  /** Committed steps contained in the states held. */
  committed: number;
  loaded: boolean;
  readySent: boolean;
  links: string[];
  neighbours: string[];
  instances: Instance[];
  round: { pass: Pass; step: number; order: number } | null;
  arrived: Arrived[];
  jobs: Job[];
  busy: Job | null;
  pendingOpen: { step: number; pass: Pass } | null;
  pendingSnapshots: { step: number; stage: number }[];
  /** Frames refused: stale generation, wrong sender, duplicate, out of window. */
  fenced: number;
}

export function createPeerState(id: string, config: RunConfig, spec: ModelSpec): PeerState {
  return {
    id,
    config,
    spec,
    view: null,
    gen: -1,
    committed: 0,
    loaded: false,
    readySent: false,
    links: [],
    neighbours: [],
    instances: [],
    round: null,
    arrived: [],
    jobs: [],
    busy: null,
    pendingOpen: null,
    pendingSnapshots: [],
    fenced: 0,
  };
}
