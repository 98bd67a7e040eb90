// Keeps a peer within what its owner allows: rests between operations in proportion to what they took, and while more has
// gone over the network than the rates allow. It decides nothing about the run. What must stay true: without limits no timer
// is ever set, and a rest never outlasts the limit that asked for it.
import type { Job } from "./core/peer_state.ts";
import { type Clock, systemClock } from "./net/clock.ts";
import { TokenBucket } from "./net/pacer.ts";
import { type Limits, NO_LIMITS } from "./wire/limits.ts";
import type { HeldBack } from "./wire/status.ts";

/**
 * Longest rest before one operation because of traffic: others wait for this peer. What is still owed is waited for before the
 * next one, and the pacer holds the line itself back.
 */
const TRAFFIC_REST_MS_MAX = 2_000;
/** Over this time it is judged what holds the peer back. */
const WINDOW_MS = 10_000;
/** Less than this share of the time is not worth telling. */
const TOLD_SHARE = 0.02;

/** What a step is made of, as against what changes what is held. */
export function isWork({ job }: Pick<Job, "job">): boolean {
  return job === "op" || job === "seal" || job === "apply";
}

/** What a peer measures of itself, as long as the run will have to wait for it. */
export function asLimited<T extends { blockMs: number; opMs: Record<string, number>; fixedMs?: number }>(
  block: T,
  gate?: Gate,
): T {
  const stretch = 1 / (gate?.duty ?? 1);
  const opMs = Object.entries(block.opMs).map(([name, ms]) => [name, ms * stretch]);
  const fixed = block.fixedMs === undefined ? {} : { fixedMs: block.fixedMs * stretch };
  return { ...block, blockMs: block.blockMs * stretch, ...fixed, opMs: Object.fromEntries(opMs) };
}

export type Caps = Pick<Limits, "duty" | "upBytesPerS" | "downBytesPerS">;

export class Gate {
  readonly #clock: Clock;
  readonly #up: TokenBucket;
  readonly #down: TokenBucket;
  #duty = 1;
  /** When the newest operation ended, and how long it took, ms. */
  #last = { endedAt: -Infinity, busyMs: 0 };
  #rests: { at: number; ms: number; by: HeldBack["by"] }[] = [];
  #wake: (() => void) | null = null;
  /** Bytes over HTTP, both ways, for whoever counts all traffic. */
  readonly http = { up: 0, down: 0 };

  constructor(caps: Caps = NO_LIMITS, clock: Clock = systemClock) {
    this.#clock = clock;
    this.#up = new TokenBucket(clock);
    this.#down = new TokenBucket(clock);
    this.setCaps(caps);
  }

  /** Holds from now on, for a rest that is being taken too. */
  setCaps({ duty, upBytesPerS, downBytesPerS }: Caps): void {
    this.#duty = duty;
    this.#up.setRate(upBytesPerS);
    this.#down.setRate(downBytesPerS);
    this.#wake?.();
  }

  /** Share of the time in which the peer may compute. */
  get duty(): number {
    return this.#duty;
  }

  /** Null if an operation may begin at once; else settles when it may. */
  before(): Promise<void> | null {
    return this.#owed(TRAFFIC_REST_MS_MAX) === null ? null : this.#rest();
  }

  /** An operation has taken so long, ms. */
  after(busyMs: number): void {
    this.#last = { endedAt: this.#clock.now(), busyMs: Math.max(0, busyMs) };
  }

  /** A frame goes to another peer. */
  sent(bytes: number): void {
    this.#up.take(bytes);
  }

  /** A frame came from another peer. */
  received(bytes: number): void {
    this.#down.take(bytes);
  }

  /** A request's body: told when it is sent. */
  uploaded(bytes: number): void {
    this.http.up += bytes;
    this.#up.take(bytes);
  }

  /** An answer's body, read no faster than the download rate allows. */
  async read(response: Response): Promise<ArrayBuffer> {
    if (!this.#down.limited || response.body === null) {
      const whole = await response.arrayBuffer();
      this.http.down += whole.byteLength;
      return whole;
    }
    const parts: Uint8Array<ArrayBuffer>[] = [];
    for await (const part of response.body) {
      parts.push(part as Uint8Array<ArrayBuffer>);
      this.http.down += part.length;
      this.#down.take(part.length);
      const ms = this.#down.waitMs();
      if (ms > 0) await new Promise<void>((resolve) => this.#clock.after(ms, resolve));
    }
    return await new Blob(parts).arrayBuffer();
  }

  /** What has held the peer back most of late, and for which share of the time; null if nothing worth telling. */
  heldBack(): HeldBack | null {
    const now = this.#clock.now();
    this.#rests = this.#rests.filter(({ at }) => now - at < WINDOW_MS);
    const sums = new Map<HeldBack["by"], number>();
    for (const { by, ms } of this.#rests) sums.set(by, (sums.get(by) ?? 0) + ms);
    const [most] = [...sums].sort((a, b) => b[1] - a[1]);
    if (most === undefined || most[1] < WINDOW_MS * TOLD_SHARE) return null;
    return { by: most[0], share: Math.min(1, most[1] / WINDOW_MS) };
  }

  /** The longest wait that is owed, at most `trafficMs` of it for traffic, and for what. */
  #owed(trafficMs: number): { ms: number; by: HeldBack["by"] } | null {
    const { endedAt, busyMs } = this.#last;
    const dutyMs = this.#duty < 1 ? endedAt + busyMs * (1 / this.#duty - 1) - this.#clock.now() : 0;
    const upMs = Math.min(trafficMs, this.#up.waitMs());
    const downMs = Math.min(trafficMs, this.#down.waitMs());
    const ms = Math.max(dutyMs, upMs, downMs);
    if (!(ms > 0)) return null;
    return { ms, by: ms === dutyMs ? "duty" : ms === upMs ? "up" : "down" };
  }

  async #rest(): Promise<void> {
    const begun = this.#clock.now();
    while (true) {
      const at = this.#clock.now();
      const owed = this.#owed(Math.max(0, TRAFFIC_REST_MS_MAX - (at - begun)));
      if (owed === null) return;
      await this.#sleep(owed.ms);
      this.#rests.push({ at, ms: this.#clock.now() - at, by: owed.by });
    }
  }

  /** Ends early when the limits change. */
  async #sleep(ms: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const stop = this.#clock.after(ms, resolve);
      this.#wake = () => {
        stop();
        resolve();
      };
    });
    this.#wake = null;
  }
}
