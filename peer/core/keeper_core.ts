// Everything that a peer does about snapshots in memory, behind one door: keeps shards for others, sends those of its own
// stages, restores. Pure: bytes and time come in, bytes to send and facts to tell go out. Routing and counting only; what a
// message may do is decided by Keeper, SnapshotSender and Restore.
import { chunkHashes } from "../exact/chunk_hashes.ts";
import type { Shard, ShardId, SnapshotId } from "../exact/parity.ts";
import { Keeper, type KeeperEffect, type KeeperEvent } from "./keeper.ts";
import { type Refusal, REFUSAL_KINDS, type RefusalKind } from "./keeper_reception.ts";
import { Restore, type RestoreEffect, type RestoreRequest } from "./keeper_restore.ts";
import { type Outcome, type Parcel, SnapshotSender } from "./keeper_sender.ts";
import { decodeSnapshot, encodeSnapshot, type SnapshotMessage } from "./keeper_wire.ts";

/** Restores at a time on one peer: it may take over several stages, never more than a run can lose at once. */
export const RESTORES_MAX = 16;
/** How often a restore looks for keepers that have fallen silent. */
const RESTORE_TICK_MS = 250;

export type SnapshotEffect =
  | ({ do: "send" } & Parcel)
  /** A keeper has confirmed or refused a shard of ours, or has left. */
  | ({ do: "outcome" } & Outcome)
  | Exclude<KeeperEffect, { do: "send" } | { do: "serve" }>
  | Exclude<RestoreEffect, { do: "send" } | { do: "refused" }>;

export class SnapshotCore {
  /** Messages that changed nothing, by reason. */
  readonly refused: Record<RefusalKind, number>;
  readonly sender = new SnapshotSender();
  readonly #keeper: Keeper;
  #restores: Restore[] = [];

  /** @param bytesMax memory lent to other stages' snapshots */
  constructor({ bytesMax }: { bytesMax: number }) {
    this.#keeper = new Keeper(bytesMax);
    this.refused = Object.fromEntries(REFUSAL_KINDS.map((kind) => [kind, 0])) as Record<RefusalKind, number>;
  }

  /** Bytes of other stages' shards. */
  get keptBytes(): number {
    return this.#keeper.bytes;
  }

  get keptShards(): ShardId[] {
    return this.#keeper.shards.map(({ id }) => id);
  }

  /** What is kept of one stage at one step, for checks; not to be changed. */
  shardsOf({ step, firstLayer, endLayer }: { step: number; firstLayer: number; endLayer: number }): Shard[] {
    return this.#keeper.shards.filter(({ id }) =>
      id.step === step && id.firstLayer === firstLayer && id.endLayer === endLayer
    );
  }

  /** The coordinator's word: expect, flip, drop, clear. */
  keep(event: Exclude<KeeperEvent, { type: "message" }>): SnapshotEffect[] {
    return this.#fromKeeper(this.#keeper.step(event));
  }

  /** Sends shards of an own stage, each to its keeper. */
  send(shards: readonly { to: string; shard: Shard }[]): void {
    for (const { to, shard } of shards) this.sender.add(to, { ...shard, hashes: chunkHashes(shard.bytes) });
  }

  /** Fetches a state back; `own` shards are added by itself. Another restore of the same stage is given up. */
  restore(request: Omit<RestoreRequest, "own">, now: number): SnapshotEffect[] {
    const { snapshot } = request;
    this.#restores = this.#restores.filter((it) => !sameRange(it.snapshot, snapshot));
    if (this.#restores.length >= RESTORES_MAX) {
      return [{ do: "restore-failed", snapshot, reason: `${RESTORES_MAX} restores are under way` }];
    }
    const own = this.#keeper.shards.filter(({ id }) =>
      id.hash === snapshot.hash && id.step === snapshot.step
    );
    const restore = new Restore({ ...request, own });
    this.#restores.push(restore);
    return this.#fromRestore(restore.start(now));
  }

  /** A snapshot message from a peer, whatever it may contain. */
  receive(from: string, bytes: Uint8Array, now: number): SnapshotEffect[] {
    const decoded = decodeSnapshot(bytes);
    if (!decoded.ok) {
      return [this.#refuse(from, { kind: "malformed", code: decoded.code, reason: decoded.reason })];
    }
    const message = decoded.value;
    const restore = this.#restores.find((it) => it.owns(from, message));
    if (restore !== undefined) return this.#fromRestore(restore.message(from, message, now));
    if (message.type === "want" || message.type === "kept" || message.type === "refusal") {
      return this.#answer(from, message);
    }
    return this.#fromKeeper(this.#keeper.step({ type: "message", from, message }));
  }

  linkOpened(peer: string): void {
    this.sender.linkOpened(peer);
  }

  /** A peer has left for good. */
  gone(peer: string, now: number): SnapshotEffect[] {
    this.sender.gone(peer);
    return this.#fromRestore(this.#restores.flatMap((it) => it.gone(peer, now)));
  }

  /** What to send now; see SnapshotSender.take and waitMs. */
  tick(now: number, congested?: ReadonlySet<string>): SnapshotEffect[] {
    const effects = this.#fromRestore(this.#restores.flatMap((it) => it.tick(now)));
    return [...effects, ...this.sender.take(now, congested).map((it) => ({ do: "send" as const, ...it }))];
  }

  /** Milliseconds until tick() may have something to do, or null if it waits for an event. */
  waitMs(now: number, congested?: ReadonlySet<string>): number | null {
    const sending = this.sender.waitMs(now, congested);
    return this.#restores.length === 0 ? sending : Math.min(sending ?? RESTORE_TICK_MS, RESTORE_TICK_MS);
  }

  #answer(from: string, message: SnapshotMessage): SnapshotEffect[] {
    const outcome = this.sender.message(from, message);
    if (outcome === null) return [];
    return ["kind" in outcome ? this.#refuse(from, outcome) : { do: "outcome", ...outcome }];
  }

  #fromKeeper(effects: readonly KeeperEffect[]): SnapshotEffect[] {
    return effects.flatMap((effect): SnapshotEffect[] => {
      if (effect.do === "send") return [sending(effect)];
      if (effect.do === "refused") return [this.#refuse(effect.from, effect.refusal)];
      if (effect.do !== "serve") return [effect];
      this.sender.add(effect.to, effect.shard, { urgent: true });
      return [];
    });
  }

  #fromRestore(effects: readonly RestoreEffect[]): SnapshotEffect[] {
    this.#restores = this.#restores.filter((it) => !it.over);
    return effects.map((effect): SnapshotEffect => {
      if (effect.do === "send") return sending(effect);
      return effect.do === "refused" ? this.#refuse(effect.from, effect.refusal) : effect;
    });
  }

  #refuse(from: string, refusal: Refusal): SnapshotEffect {
    this.refused[refusal.kind]++;
    return { do: "refused", from, refusal };
  }
}

function sending({ to, message }: { to: string; message: SnapshotMessage }): SnapshotEffect {
  return { do: "send", to, bytes: encodeSnapshot(message) };
}

function sameRange(a: SnapshotId, b: SnapshotId): boolean {
  return a.firstLayer === b.firstLayer && a.endLayer === b.endLayer;
}
