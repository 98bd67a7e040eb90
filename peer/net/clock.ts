// Time for links, as a value that tests replace: nothing in peer/net calls setTimeout or performance.now by
// itself. Not a scheduler: equal deadlines run in the order they were asked for, and nothing more is
// promised.

export interface Clock {
  /** Milliseconds, monotonic. */
  now(): number;
  /** Runs `task` once after `ms`; the returned function cancels it and may be called at any time. */
  after(ms: number, task: () => void): () => void;
}

export const systemClock: Clock = {
  now: () => performance.now(),
  after: (ms, task) => {
    const id = setTimeout(task, ms);
    return () => clearTimeout(id);
  },
};

interface Entry {
  at: number;
  order: number;
  task: () => void;
}

/** A clock that moves only when told to. */
export class ManualClock implements Clock {
  #now = 0;
  #order = 0;
  #entries: Entry[] = [];

  now(): number {
    return this.#now;
  }

  after(ms: number, task: () => void): () => void {
    const entry = { at: this.#now + Math.max(0, ms), order: this.#order++, task };
    this.#entries.push(entry);
    return () => {
      this.#entries = this.#entries.filter((other) => other !== entry);
    };
  }

  /** Moves time by `ms` and runs what falls due on the way, each at its own time. */
  advance(ms: number): void {
    const end = this.#now + ms;
    for (let next = this.#next(end); next !== null; next = this.#next(end)) {
      this.#entries = this.#entries.filter((other) => other !== next);
      this.#now = next.at;
      next.task();
    }
    this.#now = end;
  }

  #next(end: number): Entry | null {
    let best: Entry | null = null;
    for (const entry of this.#entries) {
      if (entry.at > end) continue;
      if (best === null || entry.at < best.at || (entry.at === best.at && entry.order < best.order)) {
        best = entry;
      }
    }
    return best;
  }
}
