// Looks for stop texts in text that comes in pieces, and lets through only what can no longer be the beginning of one.
// Pure. What it let through and the stop text together are always what came in, up to the stop text's end.

export class StopFinder {
  readonly #stops: readonly string[];
  #held = "";
  /** True once a stop text came; everything after it is dropped. */
  found = false;

  /** @param stops Empty texts are ignored: they would stop before the first piece. */
  constructor(stops: readonly string[]) {
    this.#stops = stops.filter((stop) => stop !== "");
  }

  /** The text that is certain after this piece. */
  push(piece: string): string {
    if (this.found) return "";
    const text = this.#held + piece;
    const first = this.#firstStop(text);
    if (first >= 0) {
      this.found = true;
      this.#held = "";
      return text.slice(0, first);
    }
    const held = this.#openLength(text);
    this.#held = text.slice(text.length - held);
    return text.slice(0, text.length - held);
  }

  /** What was held back and turned out to be no stop text, once nothing more comes. */
  rest(): string {
    const rest = this.#held;
    this.#held = "";
    return rest;
  }

  /** Where the stop text begins that is complete first, the longest of those that end together; -1 if there is none. */
  #firstStop(text: string): number {
    let begin = -1, end = Infinity;
    for (const stop of this.#stops) {
      const at = text.indexOf(stop), after = at + stop.length;
      if (at >= 0 && (after < end || (after === end && at < begin))) [begin, end] = [at, after];
    }
    return begin;
  }

  /** Length of the longest end of the text with which a stop text may begin. */
  #openLength(text: string): number {
    const longest = Math.max(0, ...this.#stops.map((stop) => stop.length - 1));
    for (let length = Math.min(longest, text.length); length > 0; length--) {
      const end = text.slice(text.length - length);
      if (this.#stops.some((stop) => stop.startsWith(end))) return length;
    }
    return 0;
  }
}
