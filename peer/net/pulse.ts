// Whether a link still lives: judged by silence, against what the same link has shown to need. It sends nothing and keeps
// no time; the link tells it what it hears and when it looks. What must stay true: a thread that was stopped itself
// never takes that for the other end's silence.

/** Pause between two looks, each with a ping: four fit into the shortest limit, so that no single delay decides. */
export const PING_INTERVAL_MS = 500;
/** Never less: a burst of compiling or of bulk data on a slow line holds an answer back for a second or more. */
export const SILENCE_LEAST_MS = 2_000;
/** Until the link has a past: a peer that computes on its only thread answers in the pauses of its work. */
export const SILENCE_UNKNOWN_MS = 4_000;
/** A past so long shows how long the other end's stalls are. */
export const PAST_NEEDED_MS = 15_000;
/** Never more, whatever the link has been like: the run waits for what was sent into a dead path. */
export const SILENCE_MOST_MS = 8_000;
/** A silence of the past after which the other end did speak may come again, and be twice as long. */
const STALL_FACTOR = 2;
/** Stalls older than this no longer say anything of the other end. */
const STALL_KEPT_MS = 60_000;
/** A look that comes so much too late: this thread was stopped, and what arrived meanwhile is still to be read. */
const OWN_STALL_MS = 500;

export class Pulse {
  readonly #bornAt: number;
  #heardAt: number;
  #lookedAt: number;
  #stalls: { at: number; ms: number }[] = [];
  #backlog = 0;
  #drained = 0;

  /** @param now milliseconds, monotonic; the link opens */
  constructor(now: number) {
    this.#bornAt = now;
    this.#heardAt = now;
    this.#lookedAt = now;
  }

  /** Anything at all came from the other end. */
  heard(now: number): void {
    const ms = now - this.#heardAt;
    this.#heardAt = now;
    if (ms > PING_INTERVAL_MS) this.#stalls.push({ at: now, ms });
  }

  /**
   * To be called every PING_INTERVAL_MS. Milliseconds of silence if they are too many, else null.
   * @param sent bytes handed to the channel so far
   * @param buffered how many of them still wait in it: that a backlog shrinks is a sign of life, because it takes answers
   */
  look(now: number, sent: number, buffered: number): number | null {
    const late = now - this.#lookedAt - PING_INTERVAL_MS;
    this.#lookedAt = now;
    if (late > OWN_STALL_MS) this.#heardAt = now;
    const drained = sent - buffered;
    if (this.#backlog > 0 && drained > this.#drained) this.heard(now);
    [this.#backlog, this.#drained] = [buffered, drained];
    const silence = now - this.#heardAt;
    return silence > this.limitMs(now) ? silence : null;
  }

  /** The silence after which the link counts as dead. */
  limitMs(now: number): number {
    this.#stalls = this.#stalls.filter(({ at }) => now - at < STALL_KEPT_MS);
    const longest = this.#stalls.reduce((most, { ms }) => Math.max(most, ms), 0);
    const least = now - this.#bornAt < PAST_NEEDED_MS ? SILENCE_UNKNOWN_MS : SILENCE_LEAST_MS;
    return Math.min(SILENCE_MOST_MS, Math.max(least, STALL_FACTOR * longest));
  }
}
