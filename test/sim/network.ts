// The network of a simulation: directed pairs, each first in first out with a delay of its own, and faults as data. A reliable
// channel never loses inside: while a pair is clogged nothing moves, then everything arrives in order, or the link is cut and
// what was under way is gone. Not a link's protocol; chunks of a frame travel whole. All randomness comes from the world's seed.
import { decodeFrame, encodeFrame } from "../../peer/wire/frame.ts";
import type { Random } from "../support/random.ts";
import type { Clock } from "./clock.ts";
import type { Sent } from "./types.ts";

/** The coordinator's name among the ends of a pair. */
export const COORDINATOR = "C";
/** One way, milliseconds: least, and how much more by chance. */
const DELAY_LEAST_MS = 2;
const DELAY_SPREAD_MS = 40;
/** Keeps two messages of a pair apart, so that the heap's order is theirs. */
const FIFO_GAP_MS = 0.001;

/** Messages to and from the coordinator (sockets), uploads of state, and frames between peers (links) fail separately. */
export type Path = "control" | "store" | "frames";

interface Pair {
  from: string;
  to: string;
  path: Path;
  /** When the newest message arrives; the next one comes later. */
  lastAt: number;
  /** Clogs in force. Several may overlap; the pair moves again when all are gone. */
  clogs: Set<number>;
  waiting: (() => void)[];
  spikeMs: number;
  /** How often it was cut: what was sent before and has not arrived yet never does. */
  cuts: number;
}

/** Which pairs a fault touches. */
export type Match = (pair: { from: string; to: string; path: Path }) => boolean;

export class Network {
  /** Messages that arrived; those that went down with a link are not in it. */
  delivered = 0;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #pairs = new Map<string, Pair>();
  /** Clogs in force also catch pairs that talk for the first time while they last. */
  readonly #clogs = new Map<number, Match>();
  #clogSeq = 0;
  #spikes: { match: Match; ms: number }[] = [];

  constructor(clock: Clock, random: Random) {
    this.#clock = clock;
    this.#random = random;
  }

  /** Sends: `arrive` runs after the pair's delay, behind everything sent before it over the same pair. */
  send(from: string, to: string, path: Path, arrive: () => void): void {
    const pair = this.#pair(from, to, path);
    const delay = DELAY_LEAST_MS + this.#random() * (DELAY_SPREAD_MS + pair.spikeMs);
    this.#schedule(pair, this.#clock.now + delay, arrive);
  }

  /** Nothing moves over the matching pairs for a while; then all of it arrives, in order. Returns the clog's number. */
  clog(match: Match, ms: number): number {
    const id = this.#clogSeq++;
    this.#clogs.set(id, match);
    for (const pair of this.#pairs.values()) if (match(pair)) pair.clogs.add(id);
    if (Number.isFinite(ms)) this.#clock.after(ms, () => this.release(id));
    return id;
  }

  release(id: number): void {
    this.#clogs.delete(id);
    for (const pair of this.#pairs.values()) {
      if (pair.clogs.delete(id) && pair.clogs.size === 0) this.#drain(pair);
    }
  }

  /** Delays grow by up to `ms` over the matching pairs, until the spike ends. */
  spike(match: Match, ms: number, lastsMs: number): void {
    const spike = { match, ms };
    this.#spikes.push(spike);
    for (const pair of this.#pairs.values()) if (match(pair)) pair.spikeMs += ms;
    this.#clock.after(lastsMs, () => {
      if (!this.#spikes.includes(spike)) return;
      this.#spikes = this.#spikes.filter((it) => it !== spike);
      for (const pair of this.#pairs.values()) if (match(pair)) pair.spikeMs -= ms;
    });
  }

  /** What is under way between two ends, both ways, is lost. Only a link or socket that breaks may do this. */
  cut(a: string, b: string): void {
    this.lose(({ from, to }) => (from === a && to === b) || (from === b && to === a));
  }

  /** What is under way over the matching pairs never arrives: its sender's computer lost power. */
  lose(match: Match): void {
    for (const pair of this.#pairs.values()) {
      if (match(pair)) Object.assign(pair, { cuts: pair.cuts + 1, waiting: [] });
    }
  }

  /** All clogs and spikes end now. */
  heal(): void {
    for (const id of [...this.#clogs.keys()]) this.release(id);
    this.#spikes = [];
    for (const pair of this.#pairs.values()) pair.spikeMs = 0;
  }

  #pair(from: string, to: string, path: Path): Pair {
    const key = `${from}>${to}/${path}`;
    const known = this.#pairs.get(key);
    if (known !== undefined) return known;
    const pair: Pair = {
      ...{ from, to, path, lastAt: 0, clogs: new Set<number>(), waiting: [], spikeMs: 0, cuts: 0 },
    };
    for (const [id, match] of this.#clogs) if (match(pair)) pair.clogs.add(id);
    for (const { match, ms } of this.#spikes) if (match(pair)) pair.spikeMs += ms;
    this.#pairs.set(key, pair);
    return pair;
  }

  #schedule(pair: Pair, at: number, arrive: () => void): void {
    pair.lastAt = Math.max(at, pair.lastAt + FIFO_GAP_MS);
    const { cuts } = pair;
    this.#clock.after(pair.lastAt - this.#clock.now, () => {
      if (pair.cuts !== cuts) return;
      if (pair.clogs.size > 0) pair.waiting.push(arrive);
      else this.#arrive(arrive);
    });
  }

  /** What waited goes first; what is still under way comes behind it. */
  #drain(pair: Pair): void {
    const waiting = pair.waiting;
    pair.waiting = [];
    for (const arrive of waiting) this.#arrive(arrive);
  }

  #arrive(arrive: () => void): void {
    this.delivered++;
    arrive();
  }
}

/** A frame as it comes out of the bytes it is sent as. */
export function asBytes({ header, payload }: Sent): Pick<Sent, "header" | "payload"> {
  const frame = decodeFrame(encodeFrame(header, payload));
  if (!frame.ok) throw new Error(`own frame refused: ${frame.reason}`);
  return frame.value;
}
