// One shard on its way in, for a keeper and for a peer that restores alike: what is still missing, and how often damage may
// be asked for again. Pure; who may send is decided by the caller.
import { Assembly, type Hashed } from "../exact/chunk_hashes.ts";
import { sameSnapshot, shardBytes, type ShardId } from "../exact/parity.ts";
import { type ErrorCode, refuse, type Result } from "../wire/errors.ts";

/** Damaged chunks asked for again, per shard. A link's checksum makes one rare; more come from a sender that is broken. */
export const RETRIES_MAX = 8;

/** A shard that is whole and sound. */
export interface KeptShard extends Hashed {
  id: ShardId;
}

/** Why a message changed nothing; each is counted by itself. */
export const REFUSAL_KINDS = [
  "malformed",
  "forged",
  "damaged",
  "repeated",
  "old",
  "wrong-stage",
  "over-limit",
] as const;
export type RefusalKind = (typeof REFUSAL_KINDS)[number];

export interface Refusal {
  kind: RefusalKind;
  code: ErrorCode;
  reason: string;
}

export function refusalOf(kind: RefusalKind, reason: string): Refusal {
  if (kind === "over-limit") return { kind, code: "keeper-full", reason };
  const stale = kind === "old" || kind === "repeated";
  return { kind, code: stale ? "stale-snapshot" : "bad-snapshot", reason };
}

export function sameShard(a: ShardId, b: ShardId): boolean {
  return a.index === b.index && sameSnapshot(a, b);
}

/** "shard 1 of layers 0-4 at step 40", for sentences. */
export function shardText({ index, firstLayer, endLayer, step }: ShardId): string {
  return `shard ${index} of layers ${firstLayer}-${endLayer} at step ${step}`;
}

export class Reception {
  readonly id: ShardId;
  #assembly: Assembly;
  #retries = 0;
  /** What travelled; the other chunks were here already. */
  #arrived = { chunks: 0, bytes: 0 };

  /** `base`: an earlier version of the same shard, whose unchanged chunks need not travel. */
  constructor(id: ShardId, hashes: readonly string[], base: Hashed | null) {
    this.id = id;
    this.#assembly = new Assembly(shardBytes(id.totalBytes, id.k), hashes, base);
  }

  get missing(): number[] {
    return this.#assembly.missing;
  }

  get bytes(): number {
    return this.#assembly.length;
  }

  /** True if the offer is of what is being received already, so that its chunks go on counting. */
  matches(id: ShardId, hashes: readonly string[]): boolean {
    const mine = this.#assembly.hashes;
    return sameShard(this.id, id) && mine.length === hashes.length &&
      mine.every((hash, i) => hash === hashes[i]);
  }

  /** Takes one chunk in; see Assembly.put for the refusals. */
  put(chunk: number, payload: Uint8Array): Result<null> {
    const taken = this.#assembly.put(chunk, payload);
    if (taken.ok) {
      this.#arrived.chunks++;
      this.#arrived.bytes += payload.length;
    }
    return taken;
  }

  /** Bytes that travelled and chunks that did not need to. */
  get traffic(): { bytes: number; spared: number } {
    return { bytes: this.#arrived.bytes, spared: this.#assembly.hashes.length - this.#arrived.chunks };
  }

  /** The whole shard, or null while something is missing. */
  finish(): KeptShard | null {
    const done = this.#assembly.finish();
    return done === null ? null : { id: this.id, ...done };
  }

  /** Whether one more chunk may be asked for again; refuses after RETRIES_MAX times. */
  retry(): Result<null> {
    this.#retries++;
    if (this.#retries <= RETRIES_MAX) return { ok: true, value: null };
    return refuse("bad-snapshot", `${RETRIES_MAX} chunks of ${shardText(this.id)} were damaged`);
  }
}
