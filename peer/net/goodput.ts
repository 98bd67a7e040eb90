// How quickly a link carries what is sent: measured on frames under way, so idle time does not count. Pure; it sends nothing
// and keeps no time: the link tells it what leaves and when answers come. A ping right behind a frame's last chunk cannot
// overtake it, so its answer says when the whole frame had arrived. What must stay true: one measurement at a time.
import type { Chunk } from "./chunks.ts";

/** Below this a frame's time is that of timers and threads rather than of the line. */
export const GOODPUT_FRAME_BYTES = 4_096;
/** Pause between two measurements: a ping and its answer cost 32 bytes, which small frames would notice. */
const PAUSE_MS = 20;
/** Shorter spans are not told apart from none; what takes less is no bottleneck. */
const SPAN_LEAST_MS = 1;
/** Of so many measurements the quickest counts: a busy thread at the other end makes the others long, never short. */
const MEASUREMENTS_KEPT = 32;
/** Round trips kept for the shortest, which is the part of an answer that is no transfer. */
const ROUND_TRIPS_KEPT = 32;

interface Measurement {
  /** Number of the frame within its priority. */
  id: number;
  priority: number;
  at: number;
  /** Bytes that had left or were in the channel when the frame began. */
  before: number;
  /** Until the answer comes: bytes that lay before the ping. Null: the frame is not sent yet. */
  bytes: number | null;
}

export class Goodput {
  #now: Measurement | null = null;
  #nextAt = -Infinity;
  #rates: number[] = [];
  #roundTrips: number[] = [];

  /** Bytes per second; 0 while nothing was measured. */
  get bytesPerS(): number {
    return this.#rates.length === 0 ? 0 : Math.max(...this.#rates);
  }

  /** The answer to a ping of its own came, which had no frame before it or had to wait for one. */
  roundTrip(ms: number): void {
    this.#roundTrips.push(ms);
    if (this.#roundTrips.length > ROUND_TRIPS_KEPT) this.#roundTrips.shift();
  }

  /**
   * A chunk is handed to the channel. True: send a ping now and tell answered() when its answer comes.
   * @param sent bytes handed over so far, without this chunk
   * @param buffered how many of them still wait in the channel
   */
  leaves(chunk: Chunk, { now, sent, buffered }: { now: number; sent: number; buffered: number }): boolean {
    if (chunk.type !== "data") return false;
    if (
      chunk.offset === 0 && this.#now === null && now >= this.#nextAt && chunk.total >= GOODPUT_FRAME_BYTES
    ) {
      const { id, priority } = chunk;
      this.#now = { id, priority, at: now, before: sent - buffered, bytes: null };
    }
    const own = this.#now;
    if (own === null || own.bytes !== null || own.id !== chunk.id || own.priority !== chunk.priority) {
      return false;
    }
    if (chunk.offset + chunk.payload.length < chunk.total) return false;
    own.bytes = sent + chunk.payload.length - own.before;
    return true;
  }

  answered(now: number): void {
    const own = this.#now;
    if (own === null || own.bytes === null) return;
    this.#now = null;
    this.#nextAt = now + PAUSE_MS;
    // Without a known round trip the transfer cannot be told from it.
    if (this.#roundTrips.length === 0) return;
    const span = Math.max(SPAN_LEAST_MS, now - own.at - Math.min(...this.#roundTrips));
    this.#rates.push(own.bytes / (span / 1000));
    if (this.#rates.length > MEASUREMENTS_KEPT) this.#rates.shift();
  }
}
