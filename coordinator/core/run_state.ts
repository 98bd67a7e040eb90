// What the coordinator knows of its run, what it hears and what it asks for: plain data, so that a simulation can hold it and
// a snapshot can be printed. No behaviour here; run_core.ts decides.
import type {
  CoordinatorMessage,
  Pass,
  PeerMessage,
  StateFile,
  StateSource,
} from "../../peer/wire/control.ts";
import type { Beats } from "./detect.ts";
import type { ModelSpec, RunConfig, View } from "../../peer/wire/run.ts";
import type { EventLine, LossPoint, RunState } from "../../peer/wire/status.ts";

export interface PeerRecord {
  id: string;
  runtime: "tab" | "deno";
  adapter: string;
  engine: string;
  name: string;
  joinedAt: number;
  heardAt: number;
  /** Milliseconds of the synthetic block; 0 until measured. A peer without it gets no work. */
  blockMs: number;
  memoryBytes: number;
  paused: boolean;
  leaving: boolean;
  hidden: boolean;
  stepMs: number;
  bytesUp: number;
  bytesDown: number;
  direct: number;
  relayed: number;
}

export interface LoggedTotal {
  hash: string;
  gradNormSq: number;
  lossSum: number;
  lossCount: number;
}

/**
 * idle: no view. loading: a view was sent, not all of its peers are ready. round: a training or evaluation round is open.
 * handover: nobody computes; every stage's state at `committed` is being collected. held: paused between rounds.
 */
export type Phase = "idle" | "loading" | "round" | "handover" | "held";

export interface RunCoreState {
  config: RunConfig;
  spec: ModelSpec;
  status: RunState;
  reason: string;
  gen: number;
  committed: number;
  /** Steps after which the run is finished; max_iters, or less once it was stopped. */
  target: number;
  phase: Phase;
  phaseSince: number;
  view: View | null;
  source: StateSource | null;
  round: { pass: Pass; step: number } | null;
  ready: string[];
  logged: Record<number, Record<string, LoggedTotal>>;
  evaluated: Record<string, { lossSum: number; lossCount: number }>;
  /** State hash of each stage after the newest commit, as its first holder told it (I4). */
  stateHashes: Record<number, string>;
  /** How often a further holder of a stage told the same state hash as the first. */
  agreements: number;
  pending: StateSource | null;
  snapshots: StateSource[];
  replanDue: string | null;
  /** The present view cannot go on (a peer or a link of it is gone); set until the next view. */
  broken: boolean;
  paused: boolean;
  peers: Record<string, PeerRecord>;
  /** Heartbeats of each peer, for the detector. */
  beats: Record<string, Beats>;
  losses: LossPoint[];
  lastEval: number;
  valLoss: number | null;
  trainLoss: number | null;
  gradNorm: number | null;
  stepMs: number;
  lastCommitAt: number;
  started: boolean;
  stepsRedone: number;
  tokensTotal: number;
  /** Failed generations in a row without a commit; planned changes of the view do not count. */
  barren: number;
  ending: { checkpoint: string | null; sample: string | null; checkpointBytes: number } | null;
  sample: { step: number; text: string } | null;
  sampledAt: number;
  events: EventLine[];
  eventSeq: number;
}

export type RunEvent =
  | { type: "join"; peer: Pick<PeerRecord, "id" | "runtime" | "adapter" | "engine" | "name"> }
  | { type: "gone"; peer: string; reason: string }
  | { type: "message"; peer: string; message: PeerMessage }
  | { type: "stored"; gen: number; step: number; file: StateFile }
  | { type: "checkpointed"; step: number; path: string; bytes: number }
  | { type: "checkpoint-failed"; step: number; reason: string }
  | { type: "sampled"; step: number; text: string }
  | { type: "admin"; action: "pause" | "resume" | "stop" }
  | { type: "evict"; peer: string; reason: string }
  | { type: "tick" };

/** One line of `--json` output and of metrics.jsonl. */
export type CoordinatorEventLine =
  | { event: "listening"; join: string; admin: string }
  | {
    event: "step";
    step: number;
    "train/loss": number;
    lr: number;
    grad_norm: number;
    tokens_per_s: number;
    peers: number;
  }
  | { event: "eval"; step: number; "val/loss": number }
  | { event: "sample"; step: number; text: string }
  | { event: "state"; state: RunState; reason: string }
  | { event: "peer"; id: string; what: string }
  | { event: "checkpoint"; step: number; path: string }
  | { event: "rollback"; step: number; steps_redone: number }
  | {
    event: "done";
    step: number;
    "train/loss": number;
    "val/loss": number;
    checkpoint: string;
    sample: string;
  };

export type RunEffect =
  | { do: "send"; peer: string; message: CoordinatorMessage }
  | { do: "drop"; peer: string; reason: string }
  | { do: "log"; kind: string; text: string; data?: Record<string, unknown> }
  | { do: "report"; line: CoordinatorEventLine }
  | { do: "checkpoint"; source: StateSource; final: boolean }
  | { do: "sample"; source: StateSource }
  /** A complete snapshot, worth keeping on disk until the next one in case the coordinator itself dies. */
  | { do: "save"; source: StateSource }
  /** State files older than this step are no longer needed in memory. */
  | { do: "forget"; before: number };
