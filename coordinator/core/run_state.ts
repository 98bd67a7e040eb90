// What the coordinator knows of its run, what it hears and what it asks for: plain data, so that a simulation can hold it and
// a snapshot can be printed. No behaviour here; run_core.ts decides.
import type {
  CoordinatorMessage,
  Pass,
  PeerMessage,
  StateFile,
  StateSource,
} from "../../peer/wire/control.ts";
import type { LinkFigures, OpMs, StageTimes } from "../../peer/wire/measures.ts";
import type { Beats, Ear } from "./detect.ts";
import type { Planning } from "./planning.ts";
import type { Probing } from "./probes.ts";
import type { PersistEffect, ReturnEvent } from "./run_record.ts";
import type { ConfigChange, ConfigValues } from "../../peer/wire/changes.ts";
import type { LossScale } from "./loss_scale.ts";
import type { Restoring, Snapshots } from "./snapshot_state.ts";
import type { Texts, TextTold, TextWish } from "./text_state.ts";
import type { Traces } from "./trace.ts";
import type { ModelSpec, RunConfig, View } from "../../peer/wire/run.ts";
import type { EventLine, LossPoint, Redundancy, RunState, StageSafety } from "../../peer/wire/status.ts";

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
  /** What of it does not grow with a micro-batch's sequences; absent: not measured. All times are for the run's present size. */
  fixedMs?: number;
  /** What its operations are believed to take over what it measured when it joined; absent = 1. */
  slowdown?: number;
  /** Since when it has had no work for being slow, and how often that was forgotten. */
  idleSince?: number;
  forgiven?: number;
  memoryBytes: number;
  /** Which kernels its engine chose by measuring, in words; absent where it chooses none. */
  kernels?: string;
  /** Its engine can make a stage's steps on the GPU. */
  gpuOptimizer?: boolean;
  paused: boolean;
  leaving: boolean;
  hidden: boolean;
  /** Index of the stage that the organizer wants it to compute; absent: any. */
  pin?: number;
  stepMs: number;
  bytesUp: number;
  bytesDown: number;
  direct: number;
  relayed: number;
  /** What departures have cost this peer: micro-batches computed again, bytes sent again. */
  recomputed: number;
  recoveryBytes: number;
  /** Bytes of boundary tensors kept until their step is committed. */
  retainedBytes: number;
  /** Frames that it refused: of an older generation, from the wrong peer, or twice. */
  fenced: number;
  /** Shards of snapshots that it sent: bytes, and chunks that needed no sending. */
  snapshotBytes: number;
  snapshotSpared: number;
  /** Milliseconds of one layer and one micro-batch, without coding: the probe's, later the moving averages over what it computes. */
  opMs?: OpMs;
  /** Milliseconds in which it decodes one boundary tensor and encodes another, and in which it hands one to its link; absent: unknown. */
  codingMs?: number;
  sendMs?: number;
  /** Moving averages per micro-batch of the stages that it computes in the present cut. */
  ops?: StageTimes[];
  /** F + B + W of one micro-batch in all stages that it computes, moving average, ms; absent until some are done. */
  microBatchMs?: number;
  /** It measures a link when it is asked to, and writes texts with others. */
  probes?: boolean;
  writes?: boolean;
  /** What is known of its links, by the other peer, as long as that one is here. */
  links?: Record<string, LinkRecord>;
}

/** Seen from one end. Rates are those of large frames under way, bytes per second; 0 = none was measured yet. */
export interface LinkRecord {
  rttMs: number;
  upBytesPerS: number;
  /** As the other end tells it. */
  downBytesPerS: number;
  path: LinkFigures["path"];
  /** False: the two are not linked now; the figures are the last ones. */
  open: boolean;
  /** When they were told last. */
  at?: number;
}

/** What a peer counts begins at nothing with every socket. */
export function zeroCounters() {
  return {
    ...{ stepMs: 0, bytesUp: 0, bytesDown: 0, direct: 0, relayed: 0 },
    ...{ recomputed: 0, recoveryBytes: 0, retainedBytes: 0, fenced: 0, snapshotBytes: 0, snapshotSpared: 0 },
  };
}

/** What departures have cost the run so far. Sums that never go down, whoever goes. */
export function zeroCosts() {
  const counted = { recomputed: 0, recoveryBytes: 0, fenced: 0, snapshotBytes: 0, snapshotSpared: 0 };
  return { departures: 0, stalls: 0, stallMs: 0, ...counted };
}

export interface LoggedTotal {
  hash: string;
  gradNormSq: number;
  /** At least 1 if any value of any micro-batch was not finite, with `dtype` f16. */
  nonFinite?: number;
}

/** A holder that lacks a total, and who was asked to send it. */
export interface TotalRequest {
  peer: string;
  stage: number;
  step: number;
  holder: string | null;
  tried: string[];
  at: number;
  tries: number;
}

/** A learner and the state that is on its way to it. */
export interface Transfer {
  stage: number;
  peer: string;
  from: string;
  step: number;
  file: StateFile | null;
  at: number;
  attempts: number;
}

/** The line of a step, until all of its losses are known. */
export interface StepReport {
  step: number;
  losses: Record<number, number>;
  committed: boolean;
  lr: number;
  gradNorm: number;
  tokensPerS: number;
  peers: number;
  /** What else its line tells. */
  figures: { step_s: number; predicted_s?: number; bubble?: number; wait_s?: number; boundary_s?: number };
}

export interface Departure {
  peer: string;
  /** In words: connection closed, silent for 3 s, said goodbye. */
  how: string;
  step: number;
  at: number;
  /** From when the stall counts: the commit before; null = from when the run stood still for another reason. */
  from: number | null;
  /** Excess of the commit over a usual step, detection included, ms; null until it is known. */
  stallMs: number | null;
  /** Micro-batches that others had to do. */
  reassigned: number;
  /** Committed steps that were done again because nobody else had the state. */
  lost: number;
  /** The run's sums when it was noted; null once what followed is counted above. */
  before: { reassigned: number; stepsRedone: number } | null;
}

/**
 * idle: no view. loading: a view was sent, not all of its peers are ready. round: a training or evaluation round is open.
 * restoring: a stage is lost; the newest snapshot that peers keep is being collected.
 * handover: nobody computes; every stage's state at `committed` is being collected. held: paused between rounds.
 * regathering: the coordinator has restarted, the peers of its view come back and go on with the open step.
 */
export type Phase = "idle" | "loading" | "round" | "handover" | "held" | "regathering" | "restoring";

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
  /** `ahead`: the step after it is open, too (schedule 2bw), and follows whatever comes. */
  round: { pass: Pass; step: number; ahead?: boolean } | null;
  ready: string[];
  logged: Record<number, Record<string, LoggedTotal>>;
  evaluated: Record<string, { lossSum: number; lossCount: number }>;
  /** Of recent steps: the state hash of each stage, as its first holder or most of them told it (I4). */
  stateHashes: Record<number, Record<number, string>>;
  /** What each holder told, by step, stage and peer. */
  stateTold: Record<number, Record<number, Record<string, string>>>;
  /** Holders differ, and it is open who is right (disputes.ts). */
  dispute: { step: number; stage: number } | null;
  /** How often a peer was among those of whom nobody could say who was right. */
  disputes: Record<string, number>;
  /** Newest step that a holder has applied, by peer and stage. */
  applied: Record<string, Record<number, number>>;
  /** Stages for which a peer's engine is built. */
  warm: Record<string, number[]>;
  /** Who logged recent steps, by step and stage: they can send the total. */
  loggers: Record<number, Record<number, string[]>>;
  /** How often a peer had another total than the first. */
  suspects: Record<string, number>;
  /** Generation with which a peer became one of a stage's replicas in this cut, by "stage/peer"; absent: with the cut. */
  replicaSince: Record<string, number>;
  /** Newest state hash that each learner told, by "stage/peer": it may speak before the holders do. */
  learnerHashes: Record<string, { step: number; hash: string }>;
  totalRequests: TotalRequest[];
  transfers: Transfer[];
  /** The newest commit as it was sent. */
  lastCommit: CoordinatorMessage & { type: "commit" } | null;
  /** Newest changes of the loss scales, ascending by step. */
  lossScales: LossScale[];
  report: StepReport | null;
  /** Step during which the view was last amended because somebody left. */
  amendedStep: number;
  /** Somebody came, wants to go, or has learned a stage: the next step boundary looks after it. */
  tidyDue: boolean;
  /** Learners as the peers know them from the newest view. */
  toldLearners: string;
  /** Committed steps with which this cut began. */
  cutBase: number;
  /** How often each pair of peers could not be linked in this cut. */
  lostLinks: Record<string, number>;
  departures: Departure[];
  costs: ReturnType<typeof zeroCosts>;
  /** Holders and redundancy of the stages as they were told last. */
  toldHolders: string;
  /** Who told what it did in a step, and the newest step of which all is known. */
  traces: Traces;
  texts: Texts;
  /** Micro-batches that went to other holders because of departures. */
  reassigned: number;
  /** Bytes of states moved to learners through the coordinator. */
  recoveryBytes: number;
  /** How often a further holder of a stage told the same state hash as the first. */
  agreements: number;
  /** Changes of the configuration, in force or to come, by step. */
  changes: ConfigChange[];
  /** Peers may have joined under another configuration: views carry it. */
  changed: boolean;
  pending: StateSource | null;
  snapshots: StateSource[];
  /** What peers keep in their memory. */
  kept: Snapshots;
  restoring: Restoring | null;
  replanDue: string | null;
  planning: Planning;
  probing: Probing;
  /** The present view cannot go on (a peer or a link of it is gone); set until the next view. */
  broken: boolean;
  paused: boolean;
  peers: Record<string, PeerRecord>;
  /** The coordinator's own clock of listening, for the detector. */
  ear: Ear | null;
  /** Peers silent for longer than usual. */
  suspected: string[];
  /** Heartbeats of each peer, in listening time. */
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
  /** Steps passed over because a gradient overflowed (`dtype` f16), since the coordinator started. */
  stepsSkipped: number;
  tokensTotal: number;
  /** Failed generations in a row without a commit; planned changes of the view do not count. */
  barren: number;
  ending: { checkpoint: string | null; sample: string | null; checkpointBytes: number } | null;
  sample: { step: number; text: string } | null;
  sampledAt: number;
  events: EventLine[];
  eventSeq: number;
}

/** What an organizer orders; `by` is their name, absent: the first one, or the program itself. */
export type AdminEvent = Order & { by?: string };

type Order =
  | { type: "admin"; action: "pause" | "resume" }
  /** `step`: after so many committed steps; absent: after the step that is open. */
  | { type: "admin"; action: "stop"; step?: number }
  /** Lets the peer go as soon as others hold what it holds. */
  | { type: "admin"; action: "drain"; peer: string }
  /** The next plan gives the peer this stage if it can, by index; null: any again. */
  | { type: "admin"; action: "pin"; peer: string; stage: number | null }
  /** Applies what the planner would do now, at the next boundary. */
  | { type: "admin"; action: "replan" }
  | { type: "admin"; action: "change"; step: number; set: ConfigValues }
  /** Goes on from this state, which is the committed one of an earlier step; `name` of the checkpoint. */
  | { type: "admin"; action: "rollback"; source: StateSource; name: string };

/** `pin`: where the organizer wanted its computer before. */
export type Newcomer = Pick<PeerRecord, "id" | "runtime" | "adapter" | "engine" | "name" | "pin">;

export type RunEvent =
  | ReturnEvent
  | { type: "join"; peer: Newcomer }
  | { type: "gone"; peer: string; reason: string }
  | { type: "message"; peer: string; message: PeerMessage }
  | { type: "stored"; cut: number; step: number; file: StateFile }
  | { type: "checkpointed"; step: number; path: string; bytes: number }
  | { type: "checkpoint-failed"; step: number; reason: string }
  | { type: "sampled"; step: number; text: string }
  | AdminEvent
  /** Something that an organizer did round the run, for its log. */
  | { type: "noted"; text: string }
  | { type: "evict"; peer: string; reason: string; mayReturn?: boolean }
  /** Somebody wants a text of the run as it is, or no more of it; what comes of it is told by `text` effects. */
  | { type: "text"; id: number; wish: TextWish }
  | { type: "text-cancel"; id: number }
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
    /** From the commit before to this one, seconds. */
    step_s: number;
    /** Of the newest traced step: what the simulator said, the idle share, the mean wait for links of a peer. */
    predicted_s?: number;
    bubble?: number;
    wait_s?: number;
    /** Mean over the computing peers of what a step's boundary tensors take: decoding, encoding, sending. */
    boundary_s?: number;
  }
  | { event: "eval"; step: number; "val/loss": number }
  | { event: "sample"; step: number; text: string }
  | { event: "state"; state: RunState; reason: string }
  | { event: "peer"; id: string; what: string }
  | { event: "checkpoint"; step: number; path: string }
  | { event: "rollback"; step: number; steps_redone: number }
  /** Peers keep all stages of that step; bytes of chunks that travelled, chunks that did not need to. */
  | { event: "snapshot"; step: number; bytes: number; spared: number; took_ms: number }
  | {
    event: "departure";
    peer: string;
    how: string;
    /** Committed steps when it went. */
    step: number;
    stall_ms: number;
    /** Micro-batches that went to others. */
    reassigned: number;
    steps_lost: number;
    /** Sums of the run so far. */
    recomputed_total: number;
    recovery_bytes_total: number;
  }
  /** After a commit, if something has changed since the last such line. */
  | {
    event: "holders";
    step: number;
    /** Per stage: peers that have everything committed. */
    holders: number[];
    redundancy: Redundancy[];
    /** What other stages' peers keep of the newest snapshot. */
    snapshot: StageSafety["snapshot"][];
    steps_at_risk: number;
  }
  | {
    event: "done";
    step: number;
    "train/loss": number;
    "val/loss": number;
    checkpoint: string;
    sample: string;
  };

export type RunEffect =
  | PersistEffect
  | { do: "send"; peer: string; message: CoordinatorMessage }
  | { do: "drop"; peer: string; reason: string }
  | { do: "log"; kind: string; text: string; data?: Record<string, unknown> }
  | { do: "report"; line: CoordinatorEventLine }
  | { do: "checkpoint"; source: StateSource; final: boolean }
  | { do: "sample"; source: StateSource }
  | { do: "text"; id: number; told: TextTold }
  /** A complete snapshot, worth keeping on disk until the next one in case the coordinator itself dies. */
  | { do: "save"; source: StateSource }
  /** State files older than this step are no longer needed in memory. */
  | { do: "forget"; before: number };
