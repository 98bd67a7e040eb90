// What the contributor's page keeps in this browser: limits, agreements, sums, the last link. Nothing else writes there.
// A browser that keeps nothing (a private window, storage switched off) only forgets: no call here ever fails.
import { type Limits, NAME_CHARS_MAX, readLimits } from "../peer/wire/limits.ts";
import { type Consent, readConsent } from "./contributor_consent.ts";
import { type Given, readGiven } from "./contributor_given.ts";

/** What is used of localStorage and sessionStorage. */
export type Place = Pick<Storage, "getItem" | "setItem" | "removeItem" | "key" | "length">;

const PREFIX = "shoal.";
/** Longer texts were not written by this page. */
const TEXT_CHARS_MAX = 4096;

export interface Traffic {
  up: number;
  down: number;
}

/** How the tab was when it was reloaded; goes with the tab. */
export interface Visit {
  run: string;
  paused: boolean;
}

export class Kept {
  readonly #long: () => Place;
  readonly #tab: () => Place;
  readonly #lastName: string;

  /**
   * @param long outlives the tab, @param tab does not; both may throw where the browser keeps nothing
   * @param place of the run among those of one coordinator, each of which has a last link of its own
   */
  constructor(long: () => Place, tab: () => Place, place = "/") {
    this.#long = long;
    this.#tab = tab;
    this.#lastName = place === "/" ? "last" : `last.${place}`;
  }

  get limits(): Limits {
    return readLimits(this.#read(this.#long, "limits"));
  }

  set limits(limits: Limits) {
    this.#write(this.#long, "limits", limits);
  }

  get name(): string {
    const name = this.#read(this.#long, "name");
    return typeof name === "string" ? name.slice(0, NAME_CHARS_MAX) : "";
  }

  set name(name: string) {
    this.#write(this.#long, "name", name.trim().slice(0, NAME_CHARS_MAX));
  }

  consent(run: string): Consent | null {
    return readConsent(this.#read(this.#long, `consent.${run}`));
  }

  agree(run: string, consent: Consent): void {
    this.#write(this.#long, `consent.${run}`, consent);
  }

  given(run: string): Given {
    return readGiven(this.#read(this.#long, `given.${run}`));
  }

  setGiven(run: string, given: Given): void {
    this.#write(this.#long, `given.${run}`, given);
  }

  /** Bytes of all tabs on this day; another day begins at nothing. */
  today(day: string): Traffic {
    const kept = this.#read(this.#long, "today") as Record<string, unknown> | null;
    if (kept === null || typeof kept !== "object" || kept["day"] !== day) return { up: 0, down: 0 };
    const { bytesUp: up, bytesDown: down } = readGiven({ bytesUp: kept["up"], bytesDown: kept["down"] });
    return { up, down };
  }

  addTraffic(day: string, { up, down }: Traffic): void {
    const before = this.today(day);
    this.#write(this.#long, "today", { day, up: before.up + up, down: before.down + down });
  }

  /** The join link's token that was last agreed to: an installed page opens without one. */
  get last(): string {
    const last = this.#read(this.#long, this.#lastName);
    return typeof last === "string" ? last : "";
  }

  set last(token: string) {
    this.#write(this.#long, this.#lastName, token);
  }

  get visit(): Visit | null {
    const visit = this.#read(this.#tab, "visit") as Record<string, unknown> | null;
    if (visit === null || typeof visit !== "object" || typeof visit["run"] !== "string") return null;
    return { run: visit["run"], paused: visit["paused"] === true };
  }

  set visit(visit: Visit | null) {
    this.#write(this.#tab, "visit", visit);
  }

  /** Deletes everything this page has ever kept. */
  forget(): void {
    for (const place of [this.#long, this.#tab]) {
      try {
        const at = place();
        const names = Array.from({ length: at.length }, (_, index) => at.key(index) ?? "");
        for (const name of names) if (name.startsWith(PREFIX)) at.removeItem(name);
      } catch {
        // Nothing is kept where nothing can be kept.
      }
    }
  }

  #read(place: () => Place, name: string): unknown {
    try {
      const text = place().getItem(PREFIX + name);
      return text === null || text.length > TEXT_CHARS_MAX ? null : JSON.parse(text);
    } catch {
      return null;
    }
  }

  #write(place: () => Place, name: string, value: unknown): void {
    try {
      place().setItem(PREFIX + name, JSON.stringify(value));
    } catch {
      // The page works without; only a reload starts afresh.
    }
  }
}

/** A short name for a run that does not give its token away to whoever reads it: 53 bits of FNV-1a. */
export function runOf(token: string): string {
  let [low, high] = [0x811c9dc5, 0x1b873593];
  for (const char of token) {
    const code = char.codePointAt(0) ?? 0;
    low = Math.imul(low ^ code, 0x01000193) >>> 0;
    high = Math.imul(high ^ low, 0x85ebca6b) >>> 0;
  }
  return (high & 0x1fffff).toString(16) + low.toString(16).padStart(8, "0");
}

/** "2026-03-14", of the local day. */
export function dayOf(date: Date): string {
  const two = (value: number) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}
