// What the parts of a simulation share: a world's options, a peer in it, and who may look on. Types only.
import type { RunCore } from "../../coordinator/core/run_core.ts";
import type { RunEffect, RunEvent } from "../../coordinator/core/run_state.ts";
import type { PeerCore } from "../../peer/core/peer_core.ts";
import type { Job, JobResult, PeerEvent } from "../../peer/core/peer_state.ts";
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import type { Holder } from "../../peer/holder.ts";
import type { Corpus } from "../../peer/model/data.ts";
import type { Seen } from "../../peer/reconnect.ts";
import type { PeerSnapshots } from "../../peer/snapshots.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import type { FrameHeader } from "../../peer/wire/frame.ts";
import type { Writer } from "../../peer/writer.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";

export interface WorldOptions {
  config: RunConfig;
  spec: ModelSpec;
  corpus: Corpus;
  seed: number;
  peers: number;
  /** Default: the CPU engine. */
  createEngine?: (build: StageBuild) => Promise<StageEngine>;
  /** Peers say that their engines can make a stage's steps (StageOptimizer). Default false. */
  gpuOptimizer?: boolean;
  /** Peers measure links when they are asked to, and wait for it before they get work. Default false. */
  probes?: boolean;
  /** Frames travel as bytes, encoded, checksummed and decoded. Default true; false saves a tenth of the time. */
  bytes?: boolean;
}

export interface SimPeer {
  id: string;
  core: PeerCore;
  holder: Holder;
  dead: boolean;
  /** Heartbeats are lost. */
  mute: boolean;
  /** Stopped, not ended: what reaches it waits here until it thaws. */
  stalled: (() => void | Promise<void>)[] | null;
  /** What it has to say while its coordinator is away; null while it is not. */
  away: PeerMessage[] | null;
  /** How far it has seen the run come; null before it was welcomed. */
  seen: Seen | null;
  snapshots: PeerSnapshots;
  /** Its part in texts. */
  writer: Writer;
}

/** A frame as it left its sender; the nemesis keeps some to send them again. */
export interface Sent {
  from: string;
  to: string;
  header: FrameHeader;
  payload: Uint8Array;
  /** Its payload is: who takes it finds out by the hash, and takes another one. */
  wrong?: boolean;
  /** Made up or sent a second time, and how; nothing may come of it. */
  forged?: string;
}

/** Looks on; what it throws ends the world. */
export interface Observer {
  /** The coordinator is about to take an event. */
  heard?(event: RunEvent, core: RunCore): void;
  coordinator?(effect: RunEffect): void;
  /** After every step of a peer's core. */
  peer?(peer: SimPeer, event: PeerEvent): void;
  finished?(peer: SimPeer, job: Job, result: JobResult): void;
  sent?(frame: Sent): void;
  said?(peer: string, message: PeerMessage): void;
  kept?(peer: SimPeer, frame: Sent): void;
  restarted?(before: RunCore, after: RunCore): void;
}

/** When the coordinator's process ends, and for how long. */
export interface CoordinatorCrash {
  /** It ends just before it carries this effect out; absent = at once. */
  before?: (effect: RunEffect) => boolean;
  downMs: number;
  /** The newest record on disk is left half written. */
  tear: boolean;
  /** What it has just said is lost with it; else it still arrives, as from a process that was killed. */
  lose: boolean;
}
