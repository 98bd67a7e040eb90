// How many bytes a peer has moved on one day, over restarts where there is a place for it. For the command line; a page counts
// in its own storage. It ends nothing: its owner does, at the limit.
import type { Notes } from "./store/notes.ts";

const NAME = "traffic of a day";
/** Written after so many more bytes: a crash forgets less than this. */
const NOTE_BYTES = 1_000_000;

export class DayCount {
  readonly #notes: Notes | null;
  readonly #today: () => string;
  #day = "";
  #before = 0;
  /** What the counter stood at when the day began. */
  #from = 0;
  #noted = 0;

  /** @param today names the day, "2026-03-14" */
  constructor(notes: Notes | null, today: () => string) {
    this.#notes = notes;
    this.#today = today;
  }

  /** Reads what this day has seen already. */
  async open(): Promise<void> {
    this.#day = this.#today();
    const kept = readNote(await this.#notes?.get(NAME) ?? null);
    this.#before = kept !== null && kept.day === this.#day ? kept.bytes : 0;
    this.#noted = this.#before;
  }

  /** Bytes of this day, when a counter that began at nothing stands at `total`. */
  count(total: number): number {
    const day = this.#today();
    if (day !== this.#day) [this.#day, this.#before, this.#from, this.#noted] = [day, 0, total, 0];
    const bytes = this.#before + total - this.#from;
    if (bytes - this.#noted >= NOTE_BYTES) void this.keep(total);
    return bytes;
  }

  async keep(total: number): Promise<void> {
    this.#noted = this.#before + total - this.#from;
    await this.#notes?.set(NAME, JSON.stringify({ day: this.#day, bytes: this.#noted }));
  }
}

function readNote(text: string | null): { day: string; bytes: number } | null {
  try {
    const { day, bytes } = JSON.parse(text ?? "null") ?? {};
    return typeof day === "string" && typeof bytes === "number" && bytes >= 0 ? { day, bytes } : null;
  } catch {
    return null;
  }
}
