// A peer's part in snapshots: exports that are asked for, shards to send and to keep, own copies of its stages' states, and
// restores. Pure: orders, bytes and time come in, effects go out; what a snapshot message may do is SnapshotCore's to say.
// What must stay true: an own copy is let go of only when a newer one replaces it, by the coordinator's word.
import { cutShards } from "../exact/parity.ts";
import type { PeerMessage } from "../wire/control.ts";
import type { KeepOrder, SnapshotOrder } from "../wire/snapshots.ts";
import type { StagePlan } from "../wire/run.ts";
import { SnapshotCore, type SnapshotEffect } from "./keeper_core.ts";

/** Exports that may be asked for and not yet done: a peer's few stages, twice. */
const EXPORTS_MAX = 64;
/** Attempts in a row to reach somebody who keeps for us, or for whom we keep. */
const LINK_TRIES_MAX = 3;
/** Longest reason that a message carries. */
const REASON_CHARS_MAX = 500;

/** A state of one's own at a step, beside the one that is trained. */
export interface OwnCopy {
  firstLayer: number;
  endLayer: number;
  step: number;
  /** Of the state, as holders report it. */
  hash: string;
  /** The state file. */
  file: Uint8Array;
}

type SnapshotOut = Extract<SnapshotOrder, { type: "snapshot-out" }>;
type RestoreOrder = Extract<SnapshotOrder, { type: "restore" }>;

export type DeskEffect =
  | { do: "say"; message: PeerMessage }
  /** The payload of a frame of kind "snapshot". */
  | { do: "send"; to: string; bytes: Uint8Array }
  | { do: "connect"; peer: string }
  /** To the coordinator, which has asked for it. */
  | { do: "upload"; cut: number; step: number; stage: number; hash: string; file: Uint8Array }
  /** These own copies are the newest restorable ones: worth a place on disk. */
  | { do: "save"; copy: OwnCopy };

export class SnapshotDesk {
  readonly core: SnapshotCore;
  readonly #self: string;
  readonly #ownBytesMax: number;
  #exports: SnapshotOut[] = [];
  #own: OwnCopy[] = [];
  #restores: RestoreOrder[] = [];
  /** Peers that a link is needed to, by the newest step that needs it. */
  #partners = new Map<string, { step: number; tries: number }>();
  #open = new Set<string>();

  /** @param bytesMax memory lent to other stages' shards, and as much to own copies */
  constructor({ self, bytesMax }: { self: string; bytesMax: number }) {
    this.#self = self;
    this.#ownBytesMax = bytesMax;
    this.core = new SnapshotCore({ bytesMax });
  }

  /** Bytes of shards and own copies. */
  get bytes(): number {
    return this.core.keptBytes + this.#ownBytes;
  }

  /** Messages that changed nothing. */
  get refused(): number {
    return Object.values(this.core.refused).reduce((sum, count) => sum + count, 0);
  }

  get #ownBytes(): number {
    return this.#own.reduce((sum, { file }) => sum + file.length, 0);
  }

  /** Whether the link must stay although the view does not need it. */
  needs(peer: string): boolean {
    return this.#partners.has(peer);
  }

  order(message: SnapshotOrder, now: number): DeskEffect[] {
    switch (message.type) {
      case "keep":
        return this.#keep(message.order, now);
      case "snapshot-out":
        this.#exports = [...this.#exports, message].slice(-EXPORTS_MAX);
        return this.#partner(message.keepers.map(({ peer }) => peer), message.step);
      case "restore":
        return this.#restore(message, now);
    }
  }

  /** Whether an export that has just been made was for a snapshot, and not for an upload. */
  wants(job: { cut: number; step: number; stage: number }): boolean {
    return this.#exports.some((it) => isSame(it, job));
  }

  /** The state that was wanted: kept beside, and its shards sent. */
  exported(
    job: { cut: number; step: number; stage: number },
    { plan, hash, file, now }: {
      plan: Pick<StagePlan, "firstLayer" | "endLayer">;
      hash: string;
      file: Uint8Array;
      now: number;
    },
  ): DeskEffect[] {
    const order = this.#exports.find((it) => isSame(it, job));
    this.#exports = this.#exports.filter((it) => it !== order);
    if (order === undefined) return [];
    const { firstLayer, endLayer } = plan;
    const { step, k, keepers, cut, stage } = order;
    const own = this.adopt({ firstLayer, endLayer, step, hash, file });
    if (keepers.length > 0) {
      this.core.sender.giveUp({ firstLayer, endLayer });
      const shards = cutShards(file, { step, firstLayer, endLayer, k });
      this.core.send(keepers.map(({ peer, index }) => ({ to: peer, shard: shards[index]! })));
    }
    const message = { type: "exported" as const, cut, step, stage, hash, own };
    return [{ do: "say", message }, ...this.tick(now)];
  }

  /** An own copy, made now or found on disk; false if there is no room for it. */
  adopt(copy: OwnCopy): boolean {
    const others = this.#own.filter((it) => !sameRange(it, copy));
    // The oldest is the restorable one; another that was never flipped has been overtaken.
    const [restorable] = this.#own.filter((it) => sameRange(it, copy) && it.step < copy.step)
      .toSorted((a, b) => a.step - b.step);
    const kept = restorable === undefined ? others : [...others, restorable];
    const used = kept.reduce((sum, { file }) => sum + file.length, 0);
    if (used + copy.file.length > this.#ownBytesMax) return false;
    this.#own = [...kept, copy];
    return true;
  }

  /** A frame of kind "snapshot", whatever it may contain. */
  receive(from: string, payload: Uint8Array, now: number): DeskEffect[] {
    return [...this.#perform(this.core.receive(from, payload, now)), ...this.tick(now)];
  }

  link(peer: string, open: boolean, now: number): DeskEffect[] {
    const partner = this.#partners.get(peer);
    if (open) {
      this.#open.add(peer);
      if (partner !== undefined) partner.tries = 0;
      this.core.linkOpened(peer);
      return this.tick(now);
    }
    this.#open.delete(peer);
    if (partner === undefined) return [];
    if (++partner.tries <= LINK_TRIES_MAX) return [{ do: "connect", peer }];
    this.#partners.delete(peer);
    return this.#perform(this.core.gone(peer, now));
  }

  tick(now: number): DeskEffect[] {
    return this.#perform(this.core.tick(now, this.#shut()));
  }

  /** Milliseconds until tick() may have something to do, or null if it waits for an event. */
  waitMs(now: number): number | null {
    return this.core.waitMs(now, this.#shut());
  }

  /** Needed, and not reached yet: what is meant for them waits here, not in the link's queue. */
  #shut(): Set<string> {
    return new Set([...this.#partners.keys()].filter((peer) => !this.#open.has(peer)));
  }

  #keep(order: KeepOrder, now: number): DeskEffect[] {
    switch (order.order) {
      case "expect":
        return [
          ...this.#perform(this.core.keep({ type: "expect", expectation: order })),
          ...this.#partner([order.from], order.step),
        ];
      case "flip":
        this.#release(order.step);
        return this.#perform(this.core.keep({ ...order, type: "flip" }));
      case "own":
        return this.#keepOwn(order);
      case "link":
        return this.#partner([order.peer], Infinity);
      case "gone":
        this.#partners.delete(order.peer);
        return this.#perform(this.core.gone(order.peer, now));
      case "clear":
        this.#exports = [];
        this.#own = [];
        this.#restores = [];
        this.#partners.clear();
        this.core.sender.clear();
        return [...this.#perform(this.core.keep({ type: "clear" })), ...this.tick(now)];
    }
  }

  /** Older copies of the stage go; the one of that step is worth saving. */
  #keepOwn(order: { firstLayer: number; endLayer: number; step: number }): DeskEffect[] {
    this.#release(order.step);
    const copy = this.#own.find((it) => sameRange(it, order) && it.step === order.step);
    if (copy === undefined) return [];
    this.#own = this.#own.filter((it) => !sameRange(it, order) || it.step >= order.step);
    return [{ do: "save", copy }];
  }

  /** What a snapshot that is complete needed links for is over. */
  #release(step: number): void {
    for (const [peer, partner] of this.#partners) if (partner.step <= step) this.#partners.delete(peer);
  }

  #restore(order: RestoreOrder, now: number): DeskEffect[] {
    const { cut, step, stage, hash, snapshot, keepers } = order;
    const own = this.#own.find((it) => sameRange(it, order) && it.step === step && it.hash === hash);
    if (own !== undefined) return [{ do: "upload", cut, step, stage, hash, file: own.file }];
    if (snapshot === null) return [failure(order, "it has no copy of the state and knows no shards of it")];
    this.#restores = [...this.#restores.filter((it) => !sameRange(it, order)), order];
    // Shards that are kept here need no fetching.
    const others = keepers.filter(({ peer }) => peer !== this.#self);
    const linked = this.#partner(others.map(({ peer }) => peer), Infinity);
    return [...linked, ...this.#perform(this.core.restore({ snapshot, keepers: others }, now))];
  }

  /** These peers are needed; two ends ask, and one of them is the initiator. */
  #partner(peers: string[], step: number): DeskEffect[] {
    return peers.flatMap((peer): DeskEffect[] => {
      if (peer === this.#self) return [];
      const known = this.#partners.get(peer);
      this.#partners.set(peer, { step: Math.max(step, known?.step ?? 0), tries: 0 });
      return this.#open.has(peer) ? [] : [{ do: "connect", peer }];
    });
  }

  #perform(effects: readonly SnapshotEffect[]): DeskEffect[] {
    return effects.flatMap((effect): DeskEffect[] => {
      switch (effect.do) {
        case "send":
          return [{ do: "send", to: effect.to, bytes: effect.bytes }];
        case "kept": {
          const { id, bytes, spared } = effect;
          return [{ do: "say", message: { type: "kept", ...id, bytes, spared } }];
        }
        case "damaged":
          return [unkept(effect.id, `shard ${effect.id.index} was damaged in memory`)];
        case "lacking":
          return [unkept(effect, "it was told to keep what has not come")];
        case "outcome":
          if (effect.kept || effect.urgent) return [];
          return [unkept(effect.shard.id, `${effect.to} does not keep it: ${effect.reason}`)];
        case "restored":
        case "restore-failed":
          return this.#restored(effect);
        case "flipped":
        case "refused":
          return [];
      }
    });
  }

  #restored(effect: SnapshotEffect & { do: "restored" | "restore-failed" }): DeskEffect[] {
    const { snapshot } = effect;
    const order = this.#restores.find((it) => sameRange(it, snapshot) && it.step === snapshot.step);
    this.#restores = this.#restores.filter((it) => it !== order);
    if (order === undefined) return [];
    if (effect.do === "restore-failed") return [failure(order, effect.reason)];
    const { cut, step, stage, hash } = order;
    return [{ do: "upload", cut, step, stage, hash, file: effect.file }];
  }
}

function failure({ cut, step, stage }: RestoreOrder, reason: string): DeskEffect {
  const message = { type: "restore-failed" as const, cut, step, stage };
  return { do: "say", message: { ...message, reason: reason.slice(0, REASON_CHARS_MAX) } };
}

function unkept(
  { step, firstLayer, endLayer }: { step: number; firstLayer: number; endLayer: number },
  reason: string,
): DeskEffect {
  const message = { type: "unkept" as const, step, firstLayer, endLayer };
  return { do: "say", message: { ...message, reason: reason.slice(0, REASON_CHARS_MAX) } };
}

interface Place {
  cut: number;
  step: number;
  stage: number;
}

function isSame(a: Place, b: Place): boolean {
  return a.cut === b.cut && a.step === b.step && a.stage === b.stage;
}

type Range = Pick<OwnCopy, "firstLayer" | "endLayer">;

function sameRange(a: Range, b: Range): boolean {
  return a.firstLayer === b.firstLayer && a.endLayer === b.endLayer;
}
