// What a run's log remembers and what its core asks to have remembered: plain data, so that a restarted coordinator can go on
// where the killed one stopped. No behaviour here; the store writes it, the core decides. What must stay true: whatever
// follows from a record (a COMMIT, a view) is told to nobody before the record is on disk.
import type { ModelSpec, RunConfig, View } from "../../peer/wire/run.ts";
import type { Have } from "../../peer/wire/control.ts";
import type { ConfigChange } from "../../peer/wire/changes.ts";
import type { LossScale } from "./loss_scale.ts";
import type { PeerRecord } from "./run_state.ts";

/** One committed step, with everything a holder needs to apply it that did not hear of it in time. */
export interface CommitRecord {
  /** Committed steps before this one; after it there are step + 1. */
  step: number;
  gen: number;
  /** Generation with which the cut of the layers began under which the step was made. */
  cut: number;
  /** Hash of the total of each stage, by index. */
  hashes: string[];
  /** Squared norm of the whole model's gradient. */
  gradNormSq: number;
  /** A gradient overflowed: the step is counted and changes neither parameters nor moments. */
  skip?: boolean;
  /** The loss scales from the next step on, if they change. */
  lossScale?: LossScale;
}

/** The part of a peer's record that outlives the coordinator: who it is and what was measured. */
export type PeerBasics = Pick<
  PeerRecord,
  | "id"
  | "runtime"
  | "adapter"
  | "engine"
  | "name"
  | "blockMs"
  | "fixedMs"
  | "memoryBytes"
  | "gpuOptimizer"
  | "kernels"
>;

/** A member of the newest view, with what proves that a returning peer is this one. */
export interface RestoredPeer extends PeerBasics {
  ticket: string;
  incarnation: number;
}

/** The run as its log tells it. */
export interface RunRecord {
  /** Random; another one means that the run was deliberately set back, so that peers may follow it there. */
  epoch: string;
  config: RunConfig;
  spec: ModelSpec;
  /** Changes of the configuration, in force or to come; absent: there never was one. */
  changes?: ConfigChange[];
  /** Newest changes of the loss scales; absent: none yet. */
  lossScales?: LossScale[];
  /** SHA-256 of the corpus' tokens, hex. */
  corpusHash: string;
  /** SHA-256 of what the tokens stand for: names and tokenizer; absent in logs from before there was one. */
  vocabHash?: string;
  /** Newest generation told to peers; 0 before the first. */
  gen: number;
  view: View | null;
  /** Committed steps. */
  committed: number;
  /** The newest commit; null before the first of this epoch. */
  commit: CommitRecord | null;
  /** Members of `view`. */
  peers: RestoredPeer[];
  /** Numbers up to this one may be in use as incarnations and in peers' ids. */
  idsUpTo: number;
  /** Set once the run is finished. */
  ended: { step: number; checkpoint: string } | null;
}

/** What the core asks to be made durable before the effects that follow it are carried out. */
export type PersistRecord =
  | { kind: "view"; view: View }
  | { kind: "commit" } & CommitRecord
  | { kind: "config"; config: RunConfig; changes: ConfigChange[] };

/** One of the core's effects; precedes the messages that depend on it. */
export interface PersistEffect {
  do: "persist";
  record: PersistRecord;
}

/** A member of the restored view is back, under its own id; only while the core gathers them again. */
export interface ReturnEvent {
  type: "return";
  peer: PeerBasics & Pick<PeerRecord, "pin">;
  have: Have | null;
}
