// A stage's state back from its keepers: asks k of them for their shards at once, goes to another when one is gone, silent,
// without it or damaged, and gives out a file only if it has the hash that the coordinator knows. Pure; time is an argument.
import { restoreFile, type ShardId, type SnapshotId } from "../exact/parity.ts";
import {
  type KeptShard,
  Reception,
  type Refusal,
  refusalOf,
  sameShard,
  shardText,
} from "./keeper_reception.ts";
import type { SnapshotMessage } from "./keeper_wire.ts";

/**
 * A keeper that sends nothing for so long is passed over; the run stands still meanwhile. Longer than a link takes that has to go
 * over the relay in the end.
 */
export const KEEPER_SILENCE_MS = 12_000;

export interface RestoreRequest {
  snapshot: SnapshotId;
  /** Who keeps which shard; the first k that answer are used. */
  keepers: { peer: string; index: number }[];
  /** Shards of the snapshot that this peer keeps itself. */
  own?: readonly KeptShard[];
}

export type RestoreEffect =
  | { do: "send"; to: string; message: SnapshotMessage }
  /** `damagedShard`: index of a shard that was found damaged and left out. */
  | { do: "restored"; snapshot: SnapshotId; file: Uint8Array; damagedShard: number | null }
  | { do: "restore-failed"; snapshot: SnapshotId; reason: string }
  | { do: "refused"; from: string; refusal: Refusal };

interface Source {
  peer: string;
  id: ShardId;
  state: "spare" | "asked" | "done" | "failed";
  reception: Reception | null;
  heardAt: number;
}

export class Restore {
  readonly snapshot: SnapshotId;
  #sources: Source[];
  #shards: KeptShard[];
  /** Number of shards of the last attempt to put them together. */
  #tried = 0;
  #problems: string[] = [];
  #over = false;
  #effects: RestoreEffect[] = [];

  constructor({ snapshot, keepers, own = [] }: RestoreRequest) {
    this.snapshot = snapshot;
    this.#shards = [...own];
    // Data before parity: then nothing must be computed.
    this.#sources = keepers.toSorted((a, b) => a.index - b.index).map(({ peer, index }): Source => ({
      peer,
      id: { ...snapshot, index },
      state: own.some((shard) => shard.id.index === index) ? "done" : "spare",
      reception: null,
      heardAt: 0,
    }));
  }

  /** True once it has restored or failed; it takes no more messages then. */
  get over(): boolean {
    return this.#over;
  }

  start(now: number): RestoreEffect[] {
    return this.#turn(now);
  }

  /** True if a message is for this restore and for nobody else. */
  owns(from: string, message: SnapshotMessage): boolean {
    return this.#asked(from, message.id) !== undefined;
  }

  message(from: string, message: SnapshotMessage, now: number): RestoreEffect[] {
    const source = this.#asked(from, message.id);
    if (source === undefined) {
      return [{ do: "refused", from, refusal: refusalOf("forged", "it was not asked for") }];
    }
    if (message.type === "refusal") this.#fail(source, message.reason);
    else if (message.type === "offer") this.#offer(source, message.hashes, now);
    else if (message.type === "chunk") this.#chunk(source, message, now);
    else this.#deny(source, refusalOf("forged", `a ${message.type} in answer to a fetch`));
    return this.#turn(now);
  }

  /** A keeper has left, or the link to it broke. */
  gone(peer: string, now: number): RestoreEffect[] {
    for (const source of this.#sources) if (source.peer === peer) this.#fail(source, "it left");
    return this.#turn(now);
  }

  tick(now: number): RestoreEffect[] {
    for (const source of this.#sources) {
      if (source.state !== "asked" || now - source.heardAt < KEEPER_SILENCE_MS) continue;
      this.#send(source, { type: "refusal", id: source.id, reason: "too slow" });
      this.#fail(source, `it was silent for ${KEEPER_SILENCE_MS} ms`);
    }
    return this.#turn(now);
  }

  #asked(from: string, id: ShardId): Source | undefined {
    return this.#sources.find((it) => it.state === "asked" && it.peer === from && sameShard(it.id, id));
  }

  /** The same offer again means a new link: what has arrived stays. */
  #offer(source: Source, hashes: string[], now: number): void {
    const { id, reception } = source;
    if (reception?.matches(id, hashes) !== true) {
      source.reception = new Reception(id, hashes, null);
      source.heardAt = now;
    }
    this.#send(source, { type: "want", id, chunks: source.reception!.missing });
  }

  #chunk(source: Source, { chunk, payload }: SnapshotMessage & { type: "chunk" }, now: number): void {
    const { reception, id } = source;
    if (reception === null) {
      return this.#deny(source, refusalOf("forged", `a chunk of ${shardText(id)} before its offer`));
    }
    const taken = reception.put(chunk, payload);
    if (taken.ok) {
      // Only progress counts as a sign of life.
      source.heardAt = now;
      return this.#finish(source, reception);
    }
    if (taken.code === "stale-snapshot") return this.#deny(source, refusalOf("repeated", taken.reason));
    this.#deny(source, refusalOf("damaged", taken.reason));
    const again = reception.retry();
    if (again.ok) this.#send(source, { type: "want", id, chunks: [chunk] });
    else this.#fail(source, again.reason);
  }

  #finish(source: Source, reception: Reception): void {
    const shard = reception.missing.length > 0 ? null : reception.finish();
    if (shard === null) return;
    source.state = "done";
    source.reception = null;
    this.#shards.push(shard);
    this.#send(source, { type: "kept", id: source.id });
  }

  #fail(source: Source, reason: string): void {
    if (source.state === "done" || source.state === "failed") return;
    source.state = "failed";
    source.reception = null;
    this.#problems.push(`${source.peer}: ${reason}`);
  }

  /** The one place that decides: enough shards, another keeper to ask, or no way left. */
  #turn(now: number): RestoreEffect[] {
    const { length } = this.#shards;
    if (!this.#over && length >= this.snapshot.k && length > this.#tried) this.#restore();
    if (!this.#over) this.#ask(now);
    const effects = this.#effects;
    this.#effects = [];
    return effects;
  }

  #restore(): void {
    this.#tried = this.#shards.length;
    const restored = restoreFile(this.#shards);
    if (restored.ok) {
      const { file, damaged } = restored.value;
      this.#over = true;
      for (const source of this.#sources) {
        if (source.state === "asked") {
          this.#send(source, { type: "refusal", id: source.id, reason: "restored" });
        }
      }
      this.#effects.push({ do: "restored", snapshot: this.snapshot, file, damagedShard: damaged });
    } else this.#problems.push(restored.reason);
  }

  /** With k shards that do not fit together one more is needed, to find the damaged one. */
  #ask(now: number): void {
    const { k } = this.snapshot;
    const needed = this.#shards.length < k ? k : this.#shards.length + 1;
    for (const source of this.#sources) {
      if (this.#shards.length + this.#count("asked") >= needed) break;
      if (source.state !== "spare") continue;
      Object.assign(source, { state: "asked", heardAt: now });
      this.#send(source, { type: "fetch", id: source.id });
    }
    if (this.#count("asked") > 0) return;
    this.#over = true;
    const reason = `${this.#shards.length} of ${k} shards; ${this.#problems.join("; ")}`;
    this.#effects.push({ do: "restore-failed", snapshot: this.snapshot, reason });
  }

  #count(state: Source["state"]): number {
    return this.#sources.filter((source) => source.state === state).length;
  }

  #deny({ peer }: Source, refusal: Refusal): void {
    this.#effects.push({ do: "refused", from: peer, refusal });
  }

  #send({ peer }: Source, message: SnapshotMessage): void {
    this.#effects.push({ do: "send", to: peer, message });
  }
}
