// The sending side of snapshots: which chunks go to whom and when. Pure: time is an argument. Snapshots are paced by a token
// bucket to a tenth of the measured uplink, in turn over their keepers; a restore under way (urgent) is not paced, because a
// run stands still for it.
import { assert } from "../wire/errors.ts";
import { chunkOf } from "../exact/chunk_hashes.ts";
import { type KeptShard, type Refusal, refusalOf, sameShard, shardText } from "./keeper_reception.ts";
import { encodeSnapshot, type SnapshotMessage } from "./keeper_wire.ts";

/** Share of the uplink that snapshots may take; boundary tensors need the rest. */
export const UPLINK_SHARE = 0.1;
/** Until it is measured: 10 Mbit/s, a modest home connection. */
export const UPLINK_PRIOR_BYTES_PER_S = 1_250_000;
/** What the bucket holds at most, in seconds of its rate: timers of busy tabs are that late. */
const BURST_S = 0.05;
/** Chunks of a restore handed to one link at once; the link's own queue paces the rest. */
const URGENT_CHUNKS = 16;
/** Between two looks at links that may have been full; far less than the bucket's burst, so the rate is kept. */
const PAUSE_MS = 5;
/**
 * An offer that nobody has answered is made again after so long, then after twice as long each time: it may have come before the
 * coordinator's word to the keeper.
 */
const OFFER_AGAIN_FIRST_MS = 200;
const OFFER_AGAIN_MAX_MS = 10_000;
/** Shards on their way from one peer: a holder's few stages times five keepers, and restores. */
export const OUTGOING_MAX = 64;

interface Outgoing {
  to: string;
  shard: KeptShard;
  urgent: boolean;
  offered: boolean;
  /** When an offer is due, the next one included. */
  offerAt: number;
  pauseMs: number;
  /** Chunks to send, in order of sending; null until the receiver has answered. */
  wanted: Set<number> | null;
}

export interface Parcel {
  to: string;
  bytes: Uint8Array<ArrayBuffer>;
}

/** What became of a shard. */
export interface Outcome {
  to: string;
  shard: KeptShard;
  kept: boolean;
  /** Part of a restore, not of a snapshot. */
  urgent: boolean;
  reason: string;
}

export interface SenderCounts {
  bytes: number;
  chunksSent: number;
  /** Chunks that the receivers already had. */
  chunksSpared: number;
}

export class SnapshotSender {
  readonly counts: SenderCounts = { bytes: 0, chunksSent: 0, chunksSpared: 0 };
  #outgoing: Outgoing[] = [];
  #rate = UPLINK_PRIOR_BYTES_PER_S * UPLINK_SHARE;
  #tokens = 0;
  #filledAt: number | null = null;

  /** Shards that no receiver has confirmed yet. */
  get pending(): number {
    return this.#outgoing.length;
  }

  /** @param bytesPerS measured uplink; 0 or less leaves the former value */
  setUplink(bytesPerS: number): void {
    if (bytesPerS > 0 && Number.isFinite(bytesPerS)) this.#rate = bytesPerS * UPLINK_SHARE;
  }

  /** Begins to send a shard; an older one of the same stage to the same receiver is given up. */
  add(to: string, shard: KeptShard, { urgent = false } = {}): void {
    const { firstLayer, endLayer } = shard.id;
    this.#outgoing = this.#outgoing.filter((it) =>
      it.to !== to || it.urgent !== urgent || it.shard.id.firstLayer !== firstLayer ||
      it.shard.id.endLayer !== endLayer
    );
    assert(this.#outgoing.length < OUTGOING_MAX, "more shards to send than stages and keepers allow");
    this.#outgoing.push({ to, shard, urgent, ...UNOFFERED, wanted: null });
  }

  /** The link to a receiver is new: what is not confirmed is offered again, and only what it lacks is sent. */
  linkOpened(to: string): void {
    for (const it of this.#outgoing) if (it.to === to) Object.assign(it, { ...UNOFFERED, wanted: null });
  }

  /** Nothing more for this peer. */
  gone(to: string): void {
    this.#outgoing = this.#outgoing.filter((it) => it.to !== to);
  }

  /** A newer snapshot of the stage follows, to other keepers perhaps. */
  giveUp(stage: { firstLayer: number; endLayer: number }): void {
    this.#outgoing = this.#outgoing.filter(({ urgent, shard: { id } }) =>
      urgent || id.firstLayer !== stage.firstLayer || id.endLayer !== stage.endLayer
    );
  }

  clear(): void {
    this.#outgoing = [];
  }

  /** A receiver's answer: want, kept or refusal. Gives what became of the shard, a coded refusal, or null. */
  message(from: string, message: SnapshotMessage): Outcome | Refusal | null {
    const found = this.#outgoing.find((it) => it.to === from && sameShard(it.shard.id, message.id));
    if (found === undefined || !found.offered) {
      const reason = `a ${message.type} from ${from} about ${shardText(message.id)}, which was not offered`;
      return refusalOf("forged", reason);
    }
    if (message.type === "want") {
      if (found.wanted === null) {
        this.counts.chunksSpared += found.shard.hashes.length - message.chunks.length;
      }
      // A later want asks again for what arrived damaged; the rest is still on its way.
      found.wanted = (found.wanted ?? new Set()).union(new Set(message.chunks));
      return null;
    }
    const kept = message.type === "kept";
    if (kept && found.wanted === null) this.counts.chunksSpared += found.shard.hashes.length;
    this.#outgoing = this.#outgoing.filter((it) => it !== found);
    const reason = message.type === "refusal" ? message.reason : "";
    return { to: from, shard: found.shard, kept, urgent: found.urgent, reason };
  }

  /**
   * What to hand to the links now.
   * @param now milliseconds, monotonic; a step back only starts the bucket anew
   * @param congested receivers whose link still has a queue
   */
  take(now: number, congested: ReadonlySet<string> = new Set()): Parcel[] {
    this.#fill(now);
    const parcels: Parcel[] = [];
    for (const it of this.#outgoing) {
      if (!it.urgent || congested.has(it.to)) continue;
      for (let i = 0; i < URGENT_CHUNKS; i++) this.#put(parcels, it, { paced: false, now });
    }
    while (this.#tokens > 0) {
      const next = this.#outgoing.find((it) => !it.urgent && !congested.has(it.to) && hasWork(it, now));
      if (next === undefined) break;
      this.#put(parcels, next, { paced: true, now });
      // In turn: a snapshot is worth something only once all of its keepers have their shards.
      this.#outgoing = [...this.#outgoing.filter((it) => it !== next), next];
    }
    return parcels;
  }

  /** Milliseconds until take() has something to send, or null if it waits for an event. */
  waitMs(now: number, congested: ReadonlySet<string> = new Set()): number | null {
    const open = this.#outgoing.filter((it) => !congested.has(it.to));
    const working = open.filter((it) => hasWork(it, now));
    if (working.length === 0) {
      const unanswered = open.filter((it) => it.wanted === null).map((it) => it.offerAt - now);
      return unanswered.length === 0 ? null : Math.max(PAUSE_MS, Math.min(...unanswered));
    }
    this.#fill(now);
    if (this.#tokens > 0 || working.some((it) => it.urgent)) return PAUSE_MS;
    return Math.max(PAUSE_MS, Math.ceil((1 - this.#tokens) / this.#rate * 1000));
  }

  /** Tokens may go below zero by one message: a chunk is never cut, and over any time the rate holds all the same. */
  #fill(now: number): void {
    const passedS = Math.max(0, now - (this.#filledAt ?? now)) / 1000;
    this.#filledAt = now;
    this.#tokens = Math.min(this.#tokens + passedS * this.#rate, Math.max(1, this.#rate * BURST_S));
  }

  #put(parcels: Parcel[], it: Outgoing, { paced, now }: { paced: boolean; now: number }): void {
    const message = nextMessage(it, now);
    if (message === null) return;
    const bytes = encodeSnapshot(message);
    parcels.push({ to: it.to, bytes });
    this.counts.bytes += bytes.length;
    if (message.type === "chunk") this.counts.chunksSent++;
    if (paced) this.#tokens -= bytes.length;
  }
}

const UNOFFERED = { offered: false, offerAt: -Infinity, pauseMs: OFFER_AGAIN_FIRST_MS };

function hasWork(it: Outgoing, now: number): boolean {
  return it.wanted === null ? now >= it.offerAt : it.wanted.size > 0;
}

function nextMessage(it: Outgoing, now: number): SnapshotMessage | null {
  const { id, hashes, bytes } = it.shard;
  if (it.wanted === null) {
    if (now < it.offerAt) return null;
    Object.assign(it, { offered: true, offerAt: now + it.pauseMs });
    it.pauseMs = Math.min(OFFER_AGAIN_MAX_MS, it.pauseMs * 2);
    return { type: "offer", id, hashes: [...hashes] };
  }
  const chunk = it.wanted.values().next().value;
  if (chunk === undefined) return null;
  it.wanted.delete(chunk);
  return { type: "chunk", id, chunk, payload: chunkOf(bytes, chunk) };
}
