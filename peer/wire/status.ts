// What the pages show: the coordinator's public status of a run, and a tab's own snapshot. Plain JSON data,
// produced by pure functions, so that every page state has a fixture.
import type { ConfigChange } from "./changes.ts";
import type { Limits } from "./limits.ts";
import type { StageTimes } from "./measures.ts";
import type { PlanStatus } from "./plan.ts";
import type { RunConfig, StagePlan } from "./run.ts";

export type { PlanStage, PlanStatus, PlanTransfer, ReplanPreview } from "./plan.ts";

export type RunState = "waiting" | "warming up" | "training" | "paused" | "finished" | "failed";

export interface LossPoint {
  step: number;
  train?: number;
  val?: number;
}

export interface PeerStatus {
  id: string;
  /** What its owner calls it; absent where they did not say, and for everybody but the organizer. */
  name?: string;
  /** "tab" or "deno". */
  runtime: string;
  adapter: string;
  engine: string;
  /** Which kernels for matrix products it chose by measuring, in words; absent where its engine chooses none. */
  kernels?: string;
  /** What it does now, in words a person reads: "stage 2, layers 3-4", "spare", "joining", "paused". */
  role: string;
  stage: number | null;
  /** Index of the stage that the organizer wants it to compute; absent: any. */
  pin?: number;
  /** Milliseconds of one synthetic block (F+B+W), measured at admission; 0 = not measured yet. */
  blockMs: number;
  /** Moving average of this peer's own compute per step, ms. */
  stepMs: number;
  bytesUp: number;
  bytesDown: number;
  links: { direct: number; relayed: number };
  hidden: boolean;
  /** Milliseconds since the last heartbeat. */
  silentMs: number;
  /** Bytes of boundary tensors kept until their step is committed, to be sent again if somebody leaves. */
  retainedBytes: number;
  /** How often its total of a stage was another than the first; it took the first one over each time. */
  suspect: number;
  /** Committed steps that would be done again if it vanished now; 0 if every stage it holds has another holder. */
  stepsAtRisk: number;
  /** Moving averages per micro-batch of each stage that it computes; absent before the first. */
  ops?: StageTimes[];
  /** Its links as they were measured, for the organizer; a rate of 0 is not known yet. */
  linkFigures?: LinkStatus[];
  /** To so many other measured peers the link was measured by neither end: plans presume what such links are like. */
  linksPresumed?: number;
}

/** One link, seen from one end; bytes per second of large frames under way. */
export interface LinkStatus {
  peer: string;
  rttMs: number;
  upBytesPerS: number;
  downBytesPerS: number;
  path: "direct" | "turn" | "relay" | "loopback";
}

/** One operation of a traced step; milliseconds since the coordinator opened the round. */
export interface TraceOp {
  kind: "F" | "B" | "W";
  stage: number;
  microBatch: number;
  startMs: number;
  endMs: number;
  /** Before its start the peer had nothing to do for so long. */
  waitMs: number;
  /** The last part of that, in which what it waited for was on its way. */
  linkWaitMs: number;
}

/** What one peer did in a traced step. */
export interface TraceLane {
  peer: string;
  /** In the order of their starts. */
  ops: TraceOp[];
  /** Operations that found no room, the earliest ones. */
  dropped: number;
  busyMs: number;
  waitMs: number;
  /** The part of `waitMs` that was for links: latency and transfer. */
  linkWaitMs: number;
}

/** Predicted and measured: what a step took, and for what. */
export interface StepSummary {
  /** Committed steps with it. */
  step: number;
  /** From the round's opening to its commit, ms. */
  measuredMs: number;
  /** What the simulator made of the times measured before, exchange of sums and commit as they were lately; null = nothing yet. */
  predictedMs: number | null;
  /** Idle share of the peers that compute, from the first operation to the last, 0 .. 1. */
  bubble: number;
  waits: Pick<TraceLane, "peer" | "waitMs" | "linkWaitMs">[];
}

/** GET /api/trace: the newest step of which every peer has told its operations. */
export interface StepTrace extends Omit<StepSummary, "waits"> {
  gen: number;
  stages: number;
  microBatches: number;
  /** First start and last end of an operation. */
  startMs: number;
  endMs: number;
  /** In the order of the stages. */
  lanes: TraceLane[];
}

/** What keeps a stage's state if a holder goes: nothing, a copy that computes nothing, or another that computes. */
export type Redundancy = "none" | "shadow" | "replica";

/** How a stage would survive a departure; a list of them stands beside the stages, in the same order. */
export interface StageSafety {
  redundancy: Redundancy;
  /** What other stages' peers keep of its newest snapshot: nothing, all of it once, or shards of which any one may go. */
  snapshot: "none" | "copy" | "parity";
  /** Peers that have its state; those who compute, as the plan says, and those who only keep it. */
  holders: string[];
  /** Peers that are still fetching it. */
  learning: string[];
  /** Committed steps that would be done again if the holder it depends on vanished now; 0 if it depends on none. */
  stepsAtRisk: number;
}

/** Somebody who had a part in the run and vanished, and what it cost. */
export interface DepartureStatus {
  peer: string;
  /** In words: "connection closed", "silent for 3 s", "said goodbye". */
  how: string;
  atMs: number;
  /** Committed steps when it went. */
  step: number;
  /** How much later than usual the next commit came, ms; null until it has come. */
  stallMs: number | null;
  /** Micro-batches that others did instead. */
  reassigned: number;
  /** Committed steps that were done again, because nobody else had the state. */
  lost: number;
}

/** Stalls of the recent departures, ms; null while none is known. */
export interface StallSummary {
  last: number;
  median: number;
  p95: number;
  worst: number;
}

/** What departures have cost so far; sums count since the coordinator started and never go down. */
export interface RecoveryStatus {
  /** The newest last; older ones are in metrics.jsonl. */
  departures: DepartureStatus[];
  departuresTotal: number;
  stall: StallSummary | null;
  /** Micro-batches that somebody had to compute again. */
  recomputed: number;
  /** States sent to new holders, frames and totals sent again. */
  bytes: number;
  /** Frames that peers refused: of an older generation, from the wrong peer, or twice. */
  fenced: number;
  /** Peers whose total differed, those that are gone included; the last ones only. */
  suspects: { peer: string; count: number }[];
  /** Step of the newest complete snapshot, which the run falls back to; 0 = the seed. */
  snapshotStep: number;
}

export interface EventLine {
  seq: number;
  atMs: number;
  kind: string;
  text: string;
}

/** Room on the disk that the run's folder is on. */
export interface DiskStatus {
  freeBytes: number;
  sizeBytes: number;
  /** Little enough that the organizer should do something. */
  low: boolean;
}

export interface CheckpointInfo {
  step: number;
  name: string;
  bytes: number;
  valLoss: number | null;
  files: string[];
}

/** GET /api/status (admin: whole; join token: without links, event log and checkpoints). */
export interface RunStatus {
  state: RunState;
  /** Why it is in this state, one sentence. */
  reason: string;
  runName: string;
  /** Who runs the coordinator, as they named themselves. */
  operator: string;
  gen: number;
  step: number;
  maxIters: number;
  trainLoss: number | null;
  valLoss: number | null;
  lr: number;
  gradNorm: number | null;
  tokensPerS: number;
  tokensTotal: number;
  params: number;
  /** Of the frozen model beside which adapters are trained; absent: the model itself is. */
  baseParams?: number;
  losses: LossPoint[];
  stages: StagePlan[];
  /** As many as stages. */
  safety: StageSafety[];
  peers: PeerStatus[];
  events: EventLine[];
  checkpoints: CheckpointInfo[];
  sample: { step: number; text: string } | null;
  /** Committed steps that a departure right now could lose: that of the peer which matters most. */
  stepsAtRisk: number;
  recovery: RecoveryStatus;
  /** Why the work is shared as it is; absent before the first view. */
  plan?: PlanStatus;
  /** The newest step that was traced; absent before the first. */
  lastStep?: StepSummary;
  /** Changes of the configuration, in force or to come, by step; absent: none. */
  changes?: ConfigChange[];
  /** Time since the newest commit, and what a step usually takes, ms; absent unless it trains. */
  pace?: { sinceCommitMs: number; stepMs: number };
  /** Steps redone because of departures so far. */
  stepsRedone: number;
  /** Steps passed over because a gradient overflowed, since the coordinator started; absent unless `dtype` is f16. */
  stepsSkipped?: number;
  joinLink: string | null;
  config: RunConfig;
  /** For the organizer; absent where the coordinator's system does not say. */
  disk?: DiskStatus;
}

/** How the tab's own peer stands; drives every screen of the contributor's page. */
export type TabPhase =
  | "joining"
  | "measuring"
  | "spare"
  | "loading"
  | "training"
  | "paused"
  | "finishing"
  | "left"
  | "done"
  | "device-lost"
  | "kicked"
  | "offline"
  | "wrong-version";

/** What keeps a peer slower than it could be: its owner's limits, and for which share of the time lately. */
export interface HeldBack {
  by: "duty" | "up" | "down";
  share: number;
}

export interface TabSnapshot {
  phase: TabPhase;
  /** One sentence with the cause, for the phases that need a remedy. */
  reason: string;
  adapter: string;
  engine: string;
  stage: number | null;
  stageCount: number;
  /** First layer and one past the last. */
  layers: [number, number] | null;
  params: number;
  memoryBytes: number;
  step: number;
  maxIters: number;
  /** Own compute per step and the group's whole step, ms. */
  ownStepMs: number;
  groupStepMs: number;
  tokens: number;
  bytesUp: number;
  bytesDown: number;
  /** `why` the relayed ones are: what became of the direct way, of one of them. */
  links: { direct: number; relayed: number; why?: string };
  losses: LossPoint[];
  sample: { step: number; text: string } | null;
  /** How the limits of its owner hold it back; absent while they do not. */
  held?: HeldBack;
  /** It helps to write a text; absent while it does not. */
  writes?: boolean;
  /** For the phases that need a remedy: the code of docs/errors.md, where the cause has one. */
  code?: string;
  /** What was got round without harm; absent while there was nothing. */
  note?: string;
  /** Layers that no other peer holds, first and one past the last: they would be lost with this tab. */
  alone: [number, number][];
}

/** GET /api/invite (join token): what the first screen says about the run. */
export interface Invite {
  runName: string;
  operator: string;
  state: RunState;
  params: number;
  /**
   * Of the model that is fine-tuned: its parameters, about how much of it a peer fetches once, and from where besides the coordinator.
   * `trained`: it is trained itself, so that only who is there at the beginning fetches it so.
   */
  base?: { params: number; bytes: number; hosts: string[]; trained?: boolean };
  dataset: string;
  peers: number;
  memoryBytes: number;
  /** Estimated bytes per step, up and down together. */
  bytesPerStep: number;
  version: number;
  /** Whoever has this link may write text with the model. */
  text?: boolean;
}

/**
 * What may compute a peer's stages: our WebGPU kernels, tfjs on WebAssembly or on WebGPU, or the double-precision engine
 * that gives the same bits everywhere.
 */
export const ENGINES = ["wgsl", "tfjs-wasm", "tfjs-webgpu", "cpu"] as const;
export type EngineName = typeof ENGINES[number];
/** auto: the quicker of `wgsl` and `tfjs-wasm` on this computer. */
export type EngineWish = EngineName | "auto";

export function isEngineWish(text: string): text is EngineWish {
  return text === "auto" || (ENGINES as readonly string[]).includes(text);
}

export interface TabStart {
  /** Where the run's addresses begin: scheme, host and port, and behind a hub the run's place; no slash at the end. */
  origin: string;
  token: string;
  /** Default: the quickest one. */
  engine?: EngineWish;
  /** What the organizer is shown; default: nothing. */
  name?: string;
  /** Default: none. */
  limits?: Limits;
  /** Joins, and computes nothing until resume(). */
  paused?: boolean;
}

/** The worker's side of Comlink; the page calls nothing else of peer/. */
export interface TabPeer {
  /** The click: joins the run. `onSnapshot` comes at most four times a second. */
  start(options: TabStart, onSnapshot: (snapshot: TabSnapshot) => void): Promise<void>;
  /** Duty and rates hold at once; memory from the next start on. */
  setLimits(limits: Limits): Promise<void>;
  /** The page is going away: tells the coordinator and the other peers before the call returns, on every way there is. */
  goodbye(): Promise<void>;
  /** The browser gave the page back: joins again, as a new peer, if it was lending when it went. */
  comeBack(): Promise<void>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  finishAndLeave(): Promise<void>;
  leaveNow(): Promise<void>;
  setHidden(hidden: boolean): Promise<void>;
}
