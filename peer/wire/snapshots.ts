// What peers and coordinator say to each other about snapshots in peers' memory: parts of the control messages. The grammar is
// in docs/protocol.md; control.ts encodes and decodes. Shards themselves travel between peers, see peer/core/keeper_wire.ts.
import * as v from "valibot";
import { count, COUNT_MAX, id, measure, small, text } from "./values.ts";

/** This shard is here, whole and sound; `bytes` of it travelled, `spared` chunks were here already. */
export const Kept = v.object({
  type: v.literal("kept"),
  step: count,
  firstLayer: small,
  endLayer: small,
  k: small,
  index: small,
  totalBytes: count,
  hash: id,
  bytes: measure,
  spared: measure,
});
/** A shard that was counted on is not here, or will not come. */
export const Unkept = v.object({
  type: v.literal("unkept"),
  step: count,
  firstLayer: small,
  endLayer: small,
  reason: text,
});
/** The state of that step is exported; `own`: a copy of it stays here. */
export const Exported = v.object({
  type: v.literal("exported"),
  cut: count,
  step: count,
  stage: small,
  hash: id,
  own: v.boolean(),
});
/** No state can be put together here. */
export const RestoreFailed = v.object({
  type: v.literal("restore-failed"),
  cut: count,
  step: count,
  stage: small,
  reason: text,
});
/** States that a peer which has joined anew still has. */
export const Offer = v.object({
  type: v.literal("offer"),
  states: v.pipe(
    v.array(v.object({ firstLayer: small, endLayer: small, step: count, hash: id })),
    v.maxLength(COUNT_MAX),
  ),
});

/** A stage's state file at one step, as its shards name it; see peer/exact/parity.ts. */
export interface SnapshotFile {
  step: number;
  firstLayer: number;
  endLayer: number;
  k: number;
  totalBytes: number;
  hash: string;
}

/** Who keeps which shard. */
export interface Keeping {
  peer: string;
  index: number;
}

/**
 * expect: that peer will send you this shard. flip: every keeper of the stage has this step's. own: of the states that you
 * hold beside the one you train, this step's replaces older ones. link: that peer restores and will ask you. gone: that peer
 * will bring you nothing, whatever your link to it looks like. clear: nothing that you keep is needed any more.
 */
export type KeepOrder =
  | {
    order: "expect";
    firstLayer: number;
    endLayer: number;
    step: number;
    k: number;
    index: number;
    from: string;
  }
  | { order: "flip" | "own"; firstLayer: number; endLayer: number; step: number }
  | { order: "link" | "gone"; peer: string }
  | { order: "clear" };

/**
 * What a peer lends of its memory to shards of other stages, and as much again to states of its own stages at the newest
 * snapshot. Both sides must agree, or keepers would refuse what they are asked to keep.
 */
export const SNAPSHOT_MEMORY_SHARE = 1 / 8;

/** What the coordinator says about snapshots. */
export type SnapshotOrder =
  | { type: "keep"; order: KeepOrder }
  /** Export the state of exactly this step, keep it, and send its shards to these peers. */
  | { type: "snapshot-out"; cut: number; step: number; stage: number; k: number; keepers: Keeping[] }
  /** Upload the stage's state of this step: from your own copy, or put together from shards. */
  | {
    type: "restore";
    cut: number;
    step: number;
    stage: number;
    firstLayer: number;
    endLayer: number;
    /** Of the state, as holders reported it. */
    hash: string;
    snapshot: SnapshotFile | null;
    keepers: Keeping[];
  };

/** For whoever hands messages on. */
export function isSnapshotOrder(message: { type: string }): message is SnapshotOrder {
  return message.type === "keep" || message.type === "snapshot-out" || message.type === "restore";
}
