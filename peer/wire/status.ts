// What the pages show: the coordinator's public status of a run, and a tab's own snapshot. Plain JSON data,
// produced by pure functions, so that every page state has a fixture.
import type { RunConfig, StagePlan } from "./run.ts";

export type RunState = "waiting" | "warming up" | "training" | "paused" | "finished" | "failed";

export interface LossPoint {
  step: number;
  train?: number;
  val?: number;
}

export interface PeerStatus {
  id: string;
  /** "tab" or "deno". */
  runtime: string;
  adapter: string;
  engine: string;
  /** What it does now, in words a person reads: "stage 2, layers 3-4", "spare", "joining", "paused". */
  role: string;
  stage: number | null;
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
}

export interface EventLine {
  seq: number;
  atMs: number;
  kind: string;
  text: string;
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
  losses: LossPoint[];
  stages: StagePlan[];
  peers: PeerStatus[];
  events: EventLine[];
  checkpoints: CheckpointInfo[];
  sample: { step: number; text: string } | null;
  /** Committed steps that a departure right now could lose. */
  stepsAtRisk: number;
  /** Steps redone because of departures so far. */
  stepsRedone: number;
  joinLink: string | null;
  config: RunConfig;
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
  links: { direct: number; relayed: number };
  losses: LossPoint[];
  sample: { step: number; text: string } | null;
}

/** What the first screen shows before any work is done. */
export interface TabInspection {
  webgpu: "ok" | "missing" | "no-adapter";
  adapter: string;
  /** A software adapter works, slowly. */
  software: boolean;
}

/** GET /api/invite (join token): what the first screen says about the run. */
export interface Invite {
  runName: string;
  operator: string;
  state: RunState;
  params: number;
  dataset: string;
  peers: number;
  memoryBytes: number;
  /** Estimated bytes per step, up and down together. */
  bytesPerStep: number;
  version: number;
}

/** The worker's side of Comlink; the page calls nothing else of peer/. */
export interface TabPeer {
  inspect(): Promise<TabInspection>;
  /** The click: joins the run. `onSnapshot` is called at most four times a second. */
  start(
    options: { origin: string; token: string },
    onSnapshot: (snapshot: TabSnapshot) => void,
  ): Promise<void>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  finishAndLeave(): Promise<void>;
  leaveNow(): Promise<void>;
  setHidden(hidden: boolean): Promise<void>;
}
