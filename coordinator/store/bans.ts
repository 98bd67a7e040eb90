// Computers that may not come in, for a time or without end, by the mark that a page or a peer's folder keeps. Kept in the run's
// folder. Not a wall: whoever clears their browser has another mark, and then a closed public link helps.
import * as v from "valibot";
import { KeptList } from "./kept_list.ts";

/** Bans of one run; those that have ended are dropped first. */
export const BANS_MAX = 500;
/** A year: longer is without end. */
export const MINUTES_MAX = 366 * 24 * 60;
/** Longest reason that is told to a peer that has to go. */
export const REASON_CHARS_MAX = 200;
/** What a peer's own mark looks like: random, made by the peer, meant for nothing else. */
export const MARK = /^[A-Za-z0-9_-]{16,64}$/;

const TIME = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(Number.MAX_SAFE_INTEGER));
const BAN = v.strictObject({
  id: v.pipe(v.string(), v.regex(/^b[0-9]{1,6}$/)),
  mark: v.pipe(v.string(), v.regex(MARK)),
  /** The peer that was put out, as it was called. */
  peer: v.pipe(v.string(), v.maxLength(120)),
  reason: v.pipe(v.string(), v.maxLength(REASON_CHARS_MAX)),
  /** ms since 1970; null = without end. */
  until: v.nullable(TIME),
  /** Who ordered it. */
  by: v.pipe(v.string(), v.maxLength(80)),
});

export type Ban = v.InferOutput<typeof BAN>;

export class Bans {
  readonly #list: KeptList<Ban>;
  readonly #now: () => number;

  constructor(runDir: string, now: () => number) {
    this.#now = now;
    this.#list = new KeptList<Ban>({
      ...{ runDir, name: "bans.json", letter: "b", most: BANS_MAX, entry: BAN },
      remedy: { damaged: "remove it and everybody may come in again", full: "lift some of the bans first" },
    });
  }

  /** Those in force, oldest first. */
  get all(): readonly Ban[] {
    return this.#list.all.filter((ban) => this.#holds(ban));
  }

  /** The ban of the mark that holds longest; null = it may come in. */
  of(mark: string | undefined): Ban | null {
    if (mark === undefined) return null;
    const held = this.all.filter((ban) => ban.mark === mark);
    return held.find((ban) => ban.until === null) ?? held.sort((a, b) => b.until! - a.until!)[0] ?? null;
  }

  /** @throws {ShoalError} usage if there are too many. */
  add(what: Omit<Ban, "id">): Ban {
    this.#list.removeWhere((ban) => !this.#holds(ban));
    return this.#list.add(what);
  }

  lift(id: string): boolean {
    return this.#list.removeWhere((ban) => ban.id === id).length > 0;
  }

  /** "for 12 more minutes", or "for good". */
  left({ until }: Pick<Ban, "until">): string {
    return until === null ? "for good" : `for ${spanOf(until - this.#now())} more`;
  }

  #holds({ until }: Ban): boolean {
    return until === null || until > this.#now();
  }
}

/** "25 minutes", "3 hours", "2 days": rounded up, so that coming back by then is never too early. */
export function spanOf(ms: number): string {
  const minutes = Math.max(1, Math.ceil(ms / 60_000));
  if (minutes <= 120) return minutes === 1 ? "1 minute" : `${minutes} minutes`;
  const hours = Math.ceil(minutes / 60);
  return hours <= 48 ? `${hours} hours` : `${Math.ceil(hours / 24)} days`;
}
