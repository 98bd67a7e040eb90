// Two links in one process, with delay, rate and death. For tests and simulations; never the path of a real
// run. What it injects is what networks do to a reliable channel: it is late, narrow, or dead. It never
// corrupts silently.
import { type Channel, ChannelLink } from "./channel_link.ts";
import { type Clock, systemClock } from "./clock.ts";

export interface LoopbackOptions {
  /** One way; default 0. */
  delayMs?: number;
  /** Default: no limit. */
  bytesPerS?: number;
  /** Each direction dies silently with its n-th message; default: never. */
  lossEvery?: number;
  /** Default: the system's clock. */
  clock?: Clock;
}

export interface LoopbackPair {
  a: ChannelLink;
  b: ChannelLink;
  /** Puts bytes on the wire from a to b, past a's queue, as a broken or hostile sender would. */
  inject(bytes: Uint8Array<ArrayBuffer>): void;
  /** From now on that direction swallows what is sent, and what is not sent yet stays in the channel. */
  cut(way: "ab" | "ba"): void;
}

/** Opens at once: both links are open when this returns, and onstate is not called for it. */
export function loopbackPair(options: LoopbackOptions = {}): LoopbackPair {
  const clock = options.clock ?? systemClock;
  // An end that tears down tells the other one, as a closed data channel does.
  const teardownOf = (wire: () => LoopbackWire, other: () => ChannelLink) => () => {
    if (wire().dead) return;
    clock.after(options.delayMs ?? 0, () => other().failed("link-closed", "the channel closed"));
  };
  const a: ChannelLink = new ChannelLink({
    remote: "b",
    path: "loopback",
    clock,
    teardown: teardownOf(() => ab, () => b),
  });
  const b: ChannelLink = new ChannelLink({
    remote: "a",
    path: "loopback",
    clock,
    teardown: teardownOf(() => ba, () => a),
  });
  const ab = new LoopbackWire((bytes) => b.receive(bytes), clock, options);
  const ba = new LoopbackWire((bytes) => a.receive(bytes), clock, options);
  a.opened(ab);
  b.opened(ba);
  return { a, b, inject: (bytes) => ab.send(bytes), cut: (way) => (way === "ab" ? ab : ba).dead = true };
}

/** One direction: a queue that drains at the given rate into a pipe of the given delay. */
export class LoopbackWire implements Channel {
  bufferedAmount = 0;
  bufferedAmountLowThreshold = 0;
  dead = false;
  onbufferedamountlow: ((event: never) => void) | null = null;
  #deliver: (bytes: Uint8Array) => void;
  #clock: Clock;
  #options: LoopbackOptions;
  #busyUntil = 0;
  #sent = 0;

  constructor(deliver: (bytes: Uint8Array) => void, clock: Clock, options: LoopbackOptions) {
    this.#deliver = deliver;
    this.#clock = clock;
    this.#options = options;
  }

  send(bytes: Uint8Array<ArrayBuffer>): void {
    const { bytesPerS = Infinity, delayMs = 0, lossEvery = Infinity } = this.#options;
    this.#sent++;
    const lost = this.#sent >= lossEvery;
    const now = this.#clock.now();
    this.#busyUntil = Math.max(now, this.#busyUntil) + (bytes.length * 1000) / bytesPerS;
    this.bufferedAmount += bytes.length;
    this.#clock.after(this.#busyUntil - now, () => {
      if (this.dead) return;
      if (!lost) this.#clock.after(delayMs, () => this.#deliver(bytes));
      this.#drained(bytes.length);
    });
  }

  #drained(bytes: number): void {
    const before = this.bufferedAmount;
    this.bufferedAmount -= bytes;
    const threshold = this.bufferedAmountLowThreshold;
    if (before > threshold && this.bufferedAmount <= threshold) {
      this.onbufferedamountlow?.(undefined as never);
    }
  }
}
