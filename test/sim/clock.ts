// Virtual time of a simulation: a heap of due callbacks, first by time, then in the order in which they were asked for.
// Not a clock of this machine; nothing here waits. The same calls in the same order always run in the same order.

type Due = { at: number; order: number; run: () => void | Promise<void> };

export class Clock {
  /** Virtual milliseconds since the world began. */
  now = 0;
  #heap: Due[] = [];
  #order = 0;

  get pending(): number {
    return this.#heap.length;
  }

  /** Runs `run` in `ms` virtual milliseconds; a negative wait counts as none. */
  after(ms: number, run: Due["run"]): void {
    this.#push({ at: this.now + Math.max(0, ms), order: this.#order++, run });
  }

  /** Runs the next callback; false if there is none. Only jobs of an engine are asynchronous, so most cost no promise. */
  async step(): Promise<boolean> {
    const next = this.#pop();
    if (next === undefined) return false;
    this.now = next.at;
    const running = next.run();
    if (running !== undefined) await running;
    return true;
  }

  #push(due: Due): void {
    const heap = this.#heap;
    let i = heap.length;
    heap.push(due);
    while (i > 0) {
      const above = (i - 1) >> 1;
      if (!isBefore(due, heap[above]!)) break;
      heap[i] = heap[above]!;
      i = above;
    }
    heap[i] = due;
  }

  #pop(): Due | undefined {
    const heap = this.#heap;
    const first = heap[0];
    const last = heap.pop();
    if (first === undefined || last === undefined || heap.length === 0) return first;
    let i = 0;
    for (let child = 1; child < heap.length; child = 2 * i + 1) {
      if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child++;
      if (!isBefore(heap[child]!, last)) break;
      heap[i] = heap[child]!;
      i = child;
    }
    heap[i] = last;
    return first;
  }
}

function isBefore(a: Due, b: Due): boolean {
  return a.at < b.at || (a.at === b.at && a.order < b.order);
}
