// What the coordinator knows of the snapshots that peers keep in their memory: plain data and questions about it. No
// behaviour here; snapshots.ts makes them, restore.ts goes back to them.
import type { StateFile } from "../../peer/wire/control.ts";
import type { StageSpec } from "../../peer/wire/run.ts";
import { type Departures, NO_DEPARTURES } from "./cadence.ts";
import type { Placement, Protection } from "./placement.ts";

/** One stage in a snapshot. Somebody who is gone is in none of its lists. */
export interface KeptStage {
  stage: StageSpec;
  protection: Protection;
  /** Data shards; 0 = nobody else keeps any. */
  k: number;
  /** The holder that sends the shards; its state has been exported once `hash` is known. */
  from: string;
  keepers: { peer: string; index: number; kept: boolean }[];
  /** Peers that have the whole state of that step, beside the one that is trained or on disk. */
  owners: string[];
  /** Of the state, as holders report it. */
  hash: string | null;
  /** The state file, as its keepers report it. */
  file: { totalBytes: number; hash: string } | null;
}

export interface PeerSnapshot {
  /** Committed steps in it. */
  step: number;
  cut: number;
  /** When it was begun, ms. */
  at: number;
  /** Bytes of chunks that travelled, and chunks that did not need to. */
  bytes: number;
  spared: number;
  stages: KeptStage[];
}

export interface Snapshots {
  /** The newest complete one, as long as it can be restored. */
  current: PeerSnapshot | null;
  pending: PeerSnapshot | null;
  /** Snapshots begun: decides who gets the parity this time. */
  turns: number;
  /** Step of the last one begun, or with which the cut began. */
  lastStep: number;
  placed: Placement[];
  seen: Departures;
  /** How long the last complete one took, ms. */
  tookMs: number;
}

export function noSnapshots(): Snapshots {
  const none = { current: null, pending: null, placed: [], turns: 0, lastStep: 0, tookMs: 0 };
  return { ...none, seen: NO_DEPARTURES };
}

/** Going back to a snapshot that peers keep: one live peer per stage uploads the state. */
export interface Restoring {
  /** Why the run has to go back. */
  reason: string;
  snapshot: PeerSnapshot;
  stages: { stage: number; peer: string; tried: string[]; at: number; file: StateFile | null }[];
}

/** Whether the stage's state can still be had. */
export function isRestorable({ k, keepers, owners }: KeptStage): boolean {
  return owners.length > 0 || (k > 0 && keepers.filter((it) => it.kept).length >= k);
}

/** What survives beside the holders: all shards but one may go, or each of them is needed. */
export function protectionNow({ k, keepers, protection }: KeptStage): Protection {
  const kept = keepers.filter((it) => it.kept).length;
  if (k === 0 || kept < k) return "none";
  return protection === "parity" && kept > k ? "parity" : "copy";
}

/** Committed steps in the newest snapshot that peers can give back; 0 = there is none. */
export function keptStep({ current }: Snapshots): number {
  return current?.step ?? 0;
}
