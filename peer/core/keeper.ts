// What a peer keeps for stages that it does not hold: at most two shards per stage, one complete and one on its way. Pure
// state machine: events in, effects out, no clock. The order that keeps a snapshot restorable: receive beside the old one,
// say "kept", and let the old one go only when the coordinator says that every keeper has the new one (flip).
import { chunkHashes } from "../exact/chunk_hashes.ts";
import { shardBytes, type ShardId } from "../exact/parity.ts";
import {
  type KeptShard,
  Reception,
  type Refusal,
  type RefusalKind,
  refusalOf,
  sameShard,
  shardText,
} from "./keeper_reception.ts";
import type { SnapshotMessage } from "./keeper_wire.ts";

/** Stages that one peer may be asked to keep; a run has at most as many stages as layers. */
export const STAGES_KEPT_MAX = 64;

/** The coordinator's word about a shard to come; length and hash are the sender's to say. */
export interface Expectation {
  firstLayer: number;
  endLayer: number;
  step: number;
  k: number;
  index: number;
  /** The holder that sends it. */
  from: string;
}

export type StageRange = Pick<Expectation, "firstLayer" | "endLayer">;

export type KeeperEvent =
  | { type: "expect"; expectation: Expectation }
  | { type: "message"; from: string; message: SnapshotMessage }
  /** Every keeper of the stage has this snapshot: it replaces the one before. */
  | ({ type: "flip"; step: number } & StageRange)
  /** Nobody will need what is kept of this stage. */
  | ({ type: "drop" } & StageRange)
  | { type: "clear" };

export type KeeperEffect =
  | { do: "send"; to: string; message: SnapshotMessage }
  /** To the coordinator: this shard is here, whole and sound; how much of it travelled. */
  | { do: "kept"; id: ShardId; bytes: number; spared: number }
  /** The shard is now the one that a restore would use. */
  | { do: "flipped"; id: ShardId }
  /** To the coordinator: told to flip what is not here. */
  | ({ do: "lacking"; step: number } & StageRange)
  /** Send this shard to somebody who restores. */
  | { do: "serve"; to: string; shard: KeptShard }
  /** A kept shard had rotted: it is deleted, the coordinator must not count on it. */
  | { do: "damaged"; id: ShardId }
  | { do: "refused"; from: string; refusal: Refusal };

interface StageSlot {
  /** Restorable together with the other keepers' shards of the same step. */
  current: KeptShard | null;
  expectation: Expectation | null;
  reception: Reception | null;
  /** Received whole, waiting for the flip. */
  next: KeptShard | null;
}

export class Keeper {
  readonly #bytesMax: number;
  readonly #stages = new Map<string, StageSlot>();
  #effects: KeeperEffect[] = [];

  /** @param bytesMax memory that this peer lends to other stages' snapshots */
  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** Bytes taken by shards, those on their way included. */
  get bytes(): number {
    return [...this.#stages.values()].reduce((sum, slot) => sum + slotBytes(slot), 0);
  }

  /** Shards that a restore may use. Those not yet flipped are among them: a coordinator may know that all are there. */
  get shards(): KeptShard[] {
    return [...this.#stages.values()].flatMap(({ current, next }) =>
      [current, next].filter((it) => it !== null)
    );
  }

  step(event: KeeperEvent): KeeperEffect[] {
    this.#effects = [];
    switch (event.type) {
      case "expect":
        this.#expect(event.expectation);
        break;
      case "message":
        this.#message(event.from, event.message);
        break;
      case "flip":
        this.#flip(event);
        break;
      case "drop":
        this.#stages.delete(keyOf(event));
        break;
      case "clear":
        this.#stages.clear();
        break;
    }
    return this.#effects;
  }

  /** A newer snapshot replaces one that is still on its way; another sender of the same one goes on where it was. */
  #expect(expectation: Expectation): void {
    const key = keyOf(expectation);
    const slot = this.#stages.get(key) ?? { current: null, expectation: null, reception: null, next: null };
    const known = Math.max(slot.current?.id.step ?? -1, (slot.expectation?.step ?? 0) - 1);
    if (expectation.step <= known) return;
    if (!this.#stages.has(key) && this.#stages.size >= STAGES_KEPT_MAX) {
      return this.#deny(expectation.from, "over-limit", `${STAGES_KEPT_MAX} stages are kept here already`);
    }
    this.#stages.set(key, slot);
    if (!sameTask(slot.expectation, expectation)) slot.reception = slot.next = null;
    slot.expectation = expectation;
  }

  #message(from: string, message: SnapshotMessage): void {
    if (message.type === "fetch") return this.#fetch(from, message.id);
    if (message.type !== "offer" && message.type !== "chunk") {
      return this.#deny(from, "forged", `nobody here asked for a ${message.type}`);
    }
    const slot = this.#stages.get(keyOf(message.id));
    const kind = misplaced(slot, from, message.id);
    if (slot === undefined || kind !== null) {
      const why = `${message.type} of ${shardText(message.id)} from ${from} is not expected`;
      return this.#deny(from, kind ?? "wrong-stage", why);
    }
    if (message.type === "offer") this.#offer(slot, from, message);
    else this.#chunk(slot, from, message);
  }

  #offer(slot: StageSlot, from: string, offer: SnapshotMessage & { type: "offer" }): void {
    const { id, hashes } = offer;
    if (slot.next !== null && sameShard(slot.next.id, id)) return this.#send(from, { type: "kept", id });
    if (slot.reception?.matches(id, hashes) !== true) {
      slot.reception = slot.next = null;
      const needed = shardBytes(id.totalBytes, id.k);
      const free = this.#bytesMax - this.bytes;
      if (needed > free) {
        const reason = `${shardText(id)} needs ${needed} bytes, ${free} of ${this.#bytesMax} are free`;
        this.#send(from, { type: "refusal", id, reason });
        return this.#deny(from, "over-limit", reason);
      }
      slot.reception = new Reception(id, hashes, slot.current);
    }
    this.#advance(slot, from, slot.reception);
  }

  #chunk(slot: StageSlot, from: string, message: SnapshotMessage & { type: "chunk" }): void {
    const { id, chunk, payload } = message;
    if (slot.next !== null && sameShard(slot.next.id, id)) {
      return this.#deny(from, "repeated", `${shardText(id)} is complete`);
    }
    const { reception } = slot;
    if (reception === null || !sameShard(reception.id, id)) {
      return this.#deny(from, "forged", `a chunk of ${shardText(id)}, which was not offered`);
    }
    const taken = reception.put(chunk, payload);
    if (taken.ok) {
      if (reception.missing.length === 0) this.#advance(slot, from, reception);
      return;
    }
    if (taken.code === "stale-snapshot") return this.#deny(from, "repeated", taken.reason);
    this.#deny(from, "damaged", taken.reason);
    this.#again(slot, from, reception, [chunk]);
  }

  /** Finishes the shard if it is whole, else asks for what is missing. */
  #advance(slot: StageSlot, from: string, reception: Reception): void {
    const { id } = reception;
    if (reception.missing.length > 0) {
      return this.#send(from, { type: "want", id, chunks: reception.missing });
    }
    const done = reception.finish();
    // What came from the older shard had rotted in memory.
    if (done === null) return this.#again(slot, from, reception, reception.missing);
    slot.next = done;
    slot.reception = null;
    this.#send(from, { type: "kept", id });
    this.#effects.push({ do: "kept", id, ...reception.traffic });
  }

  #again(slot: StageSlot, from: string, reception: Reception, chunks: number[]): void {
    const { id } = reception;
    const allowed = reception.retry();
    if (allowed.ok) return this.#send(from, { type: "want", id, chunks });
    slot.reception = null;
    this.#send(from, { type: "refusal", id, reason: allowed.reason });
  }

  #flip({ firstLayer, endLayer, step }: StageRange & { step: number }): void {
    const slot = this.#stages.get(keyOf({ firstLayer, endLayer }));
    if (slot?.current?.id.step === step) return;
    if (slot?.next?.id.step !== step) {
      this.#effects.push({ do: "lacking", firstLayer, endLayer, step });
      return;
    }
    slot.current = slot.next;
    slot.next = slot.expectation = null;
    this.#effects.push({ do: "flipped", id: slot.current.id });
  }

  /** Memory that lay still for minutes is hashed again before anybody builds on it. */
  #fetch(from: string, id: ShardId): void {
    const slot = this.#stages.get(keyOf(id));
    const found = [slot?.current, slot?.next].find((it) => it && sameShard(it.id, id)) ?? null;
    if (slot === undefined || found === null) {
      const reason = `${shardText(id)} is not kept here`;
      this.#send(from, { type: "refusal", id, reason });
      return this.#deny(from, slot === undefined ? "wrong-stage" : "old", reason);
    }
    const actual = chunkHashes(found.bytes);
    if (actual.every((hash, i) => hash === found.hashes[i])) {
      this.#effects.push({ do: "serve", to: from, shard: found });
      return;
    }
    if (slot.current === found) slot.current = null;
    else slot.next = null;
    this.#send(from, { type: "refusal", id, reason: `${shardText(id)} was damaged in memory` });
    this.#effects.push({ do: "damaged", id });
  }

  #send(to: string, message: SnapshotMessage): void {
    this.#effects.push({ do: "send", to, message });
  }

  #deny(from: string, kind: RefusalKind, reason: string): void {
    this.#effects.push({ do: "refused", from, refusal: refusalOf(kind, reason) });
  }
}

function keyOf({ firstLayer, endLayer }: StageRange): string {
  return `${firstLayer}-${endLayer}`;
}

function slotBytes({ current, reception, next }: StageSlot): number {
  return (current?.bytes.length ?? 0) + (reception?.bytes ?? 0) + (next?.bytes.length ?? 0);
}

/** The same shard, whoever sends it: holders of a stage have the same bytes. */
function sameTask(a: Expectation | null, b: Expectation): boolean {
  return a !== null && a.step === b.step && a.k === b.k && a.index === b.index;
}

/** Why an offer or a chunk is not the one that is expected here, or null if it is. */
function misplaced(slot: StageSlot | undefined, from: string, id: ShardId): RefusalKind | null {
  if (slot === undefined) return "wrong-stage";
  const { expectation, current } = slot;
  if (id.step <= (current?.id.step ?? -1) || id.step < (expectation?.step ?? 0)) return "old";
  if (expectation === null || expectation.from !== from) return "forged";
  return sameTask(expectation, { ...id, from }) ? null : "forged";
}
