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

/** What a frame took from its begin to the answer, a round trip included. */
interface Timed {
  bytes: number;
  ms: number;
}

export class Goodput {
  #now: Measurement | null = null;
  #nextAt = -Infinity;
  #timed: Timed[] = [];
  #roundTrips: number[] = [];
  /** Frames whose time was taken so far. */
  count = 0;

  /** Bytes per second; 0 while nothing was measured. A round trip that was long at first must not make the line look quick. */
  get bytesPerS(): number {
    // Without a known round trip the transfer cannot be told from it.
    if (this.#roundTrips.length === 0) return 0;
    const roundTrip = Math.min(...this.#roundTrips);
    return this.#timed.reduce((most, { bytes, ms }) => {
      return Math.max(most, bytes / (Math.max(SPAN_LEAST_MS, ms - roundTrip) / 1000));
    }, 0);
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
    this.count++;
    this.#timed.push({ bytes: own.bytes, ms: now - own.at });
    if (this.#timed.length > MEASUREMENTS_KEPT) this.#timed.shift();
  }
}
