// Holds what all links of one peer send together below a rate, and counts what goes and comes. A paced channel says that it is
// full for as long as more has been sent than the rate allows, so a link's own queue, priorities and back-pressure do the rest.
// What must stay true: nothing is dropped or reordered, and pings pass at once.
import type { Channel } from "./channel_link.ts";
import { type Clock, systemClock } from "./clock.ts";

/** What may go at once after a quiet time: less would make every frame of a step wait, more would be a burst. */
const BURST_MS = 250;
/** The shortest wait worth a timer, and the longest: by then the rate may be another. */
const WAIT_MS_MIN = 4;
const WAIT_MS_MAX = 250;

/** A rate as a balance of bytes, which may go below zero: what is owed is waited for before the next bytes. */
export class TokenBucket {
  readonly #clock: Clock;
  #bytesPerS: number | null = null;
  #balance = 0;
  #at = 0;

  constructor(clock: Clock = systemClock) {
    this.#clock = clock;
  }

  get limited(): boolean {
    return this.#bytesPerS !== null;
  }

  /** Null: no limit, and nothing owed. What is owed under one rate is owed under the next. */
  setRate(bytesPerS: number | null): void {
    this.#settle();
    if (bytesPerS === null || this.#bytesPerS === null) this.#balance = 0;
    this.#bytesPerS = bytesPerS;
  }

  take(bytes: number): void {
    if (this.#bytesPerS === null) return;
    this.#settle();
    this.#balance -= bytes;
  }

  /** Bytes more than the rate allows so far. */
  get owed(): number {
    this.#settle();
    return Math.max(0, -this.#balance);
  }

  /** Until at most `bytes` are owed, ms. */
  waitMs(bytes = 0): number {
    const over = this.owed - bytes;
    return this.#bytesPerS === null || over <= 0 ? 0 : over / this.#bytesPerS * 1000;
  }

  #settle(): void {
    const now = this.#clock.now();
    const passed = Math.max(0, now - this.#at);
    this.#at = now;
    if (this.#bytesPerS === null) return;
    const most = this.#bytesPerS * BURST_MS / 1000;
    this.#balance = Math.min(most, this.#balance + passed * this.#bytesPerS / 1000);
  }
}

/** Shared by all links of one peer. */
export class Pacer {
  readonly #clock: Clock;
  readonly #bucket: TokenBucket;
  /** Bytes so far, of all links, those that are closed included. */
  up = 0;
  down = 0;

  constructor(clock: Clock = systemClock) {
    this.#clock = clock;
    this.#bucket = new TokenBucket(clock);
  }

  /** Null: no limit. */
  setRate(bytesPerS: number | null): void {
    this.#bucket.setRate(bytesPerS);
  }

  received(bytes: number): void {
    this.down += bytes;
  }

  wrap(channel: Channel): Channel {
    return new PacedChannel(channel, {
      clock: this.#clock,
      bucket: this.#bucket,
      sent: (bytes) => this.up += bytes,
    });
  }
}

interface Parts {
  clock: Clock;
  bucket: TokenBucket;
  sent: (bytes: number) => void;
}

class PacedChannel implements Channel {
  onbufferedamountlow: ((event: never) => void) | null = null;
  readonly #channel: Channel;
  readonly #parts: Parts;
  #threshold = 0;
  #stopTimer: (() => void) | null = null;

  constructor(channel: Channel, parts: Parts) {
    this.#channel = channel;
    this.#parts = parts;
    channel.onbufferedamountlow = () => this.#low();
  }

  get bufferedAmount(): number {
    return this.#channel.bufferedAmount + this.#parts.bucket.owed;
  }

  get wireAmount(): number {
    return this.#channel.bufferedAmount;
  }

  get bufferedAmountLowThreshold(): number {
    return this.#threshold;
  }

  /** Setting it is how the link says that it waits. */
  set bufferedAmountLowThreshold(bytes: number) {
    this.#threshold = bytes;
    this.#channel.bufferedAmountLowThreshold = bytes;
    const ms = this.#parts.bucket.waitMs(bytes);
    if (ms > 0 && this.#stopTimer === null) {
      this.#stopTimer = this.#parts.clock.after(Math.min(WAIT_MS_MAX, Math.max(WAIT_MS_MIN, ms)), () => {
        this.#stopTimer = null;
        this.#low();
      });
    }
  }

  send(bytes: Uint8Array<ArrayBuffer>): void {
    this.#parts.bucket.take(bytes.length);
    this.#parts.sent(bytes.length);
    this.#channel.send(bytes);
  }

  /** The link looks for itself whether it may send; if not, it sets the threshold again. */
  #low(): void {
    this.onbufferedamountlow?.(undefined as never);
  }
}
