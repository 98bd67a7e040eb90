// How fast this peer can send, learned from what it does send. Pure: time is an argument. A peer hardly ever fills its uplink, so
// what is seen is a lower bound; only while round trips are far longer than usual is the line full, and what is sent then is
// what it can carry. Neither is exact, and a tenth of either is little.

/** A window shorter than this tells more of timers than of lines. */
const WINDOW_MS = 1_000;
/** Round trips this many times, and so much, above the shortest mean that queues are full. */
const FULL_FACTOR = 4;
const FULL_MS = 200;
/** Below this nothing is believed: 1 Mbit/s. A busy thread lengthens round trips, too. */
export const UPLINK_LEAST_BYTES_PER_S = 125_000;

export interface LinkSample {
  bytesUp: number;
  rttMs: number;
}

export class UplinkMeter {
  #at: number | null = null;
  #bytes = 0;
  #shortest = new Map<string, number>();
  #estimate: number;

  constructor(priorBytesPerS: number) {
    this.#estimate = priorBytesPerS;
  }

  get bytesPerS(): number {
    return this.#estimate;
  }

  /** The counters of all links, as often as they are read. Links that came or went meanwhile tell nothing. */
  observe(links: Readonly<Record<string, LinkSample>>, now: number): void {
    const bytes = Object.values(links).reduce((sum, link) => sum + link.bytesUp, 0);
    const passed = this.#at === null ? 0 : now - this.#at;
    if (this.#at !== null && passed >= 0 && passed < WINDOW_MS) return;
    const rate = passed > 0 ? (bytes - this.#bytes) / (passed / 1000) : 0;
    this.#at = now;
    this.#bytes = bytes;
    const full = this.#isFull(links);
    if (rate <= 0) return;
    const seen = Math.max(rate, UPLINK_LEAST_BYTES_PER_S);
    this.#estimate = full ? seen : Math.max(this.#estimate, seen);
  }

  #isFull(links: Readonly<Record<string, LinkSample>>): boolean {
    let full = false;
    for (const [peer, { rttMs }] of Object.entries(links)) {
      if (!(rttMs > 0)) continue;
      const shortest = Math.min(rttMs, this.#shortest.get(peer) ?? Infinity);
      this.#shortest.set(peer, shortest);
      if (rttMs > shortest * FULL_FACTOR && rttMs > shortest + FULL_MS) full = true;
    }
    for (const peer of this.#shortest.keys()) if (links[peer] === undefined) this.#shortest.delete(peer);
    return full;
  }
}
