// A clock whose timers are due to a fraction of a millisecond: the system's are one to two milliseconds late, which a bench of
// 20 ms operations would take for work. It polls only in the last moment before something is due, lets everything else of
// the process run between two polls, and keeps count of how late it was: that is the event loop's lag.
import { clearImmediate, setImmediate } from "node:timers";
import type { Clock } from "../peer/net/clock.ts";

/** The system's timers may be this late; from then on the clock polls. */
const POLL_MS = 1.2;

interface Entry {
  due: number;
  task: () => void;
}

export interface Lag {
  medianMs: number;
  p95Ms: number;
  maxMs: number;
}

export class PreciseClock implements Clock {
  /** By due time; of the same time, in the order asked for. */
  #entries: Entry[] = [];
  #late: number[] = [];
  #disarm: () => void = () => {};
  #armedFor = Infinity;

  now(): number {
    return performance.now();
  }

  after(ms: number, task: () => void): () => void {
    return this.at(this.now() + Math.max(0, ms), task);
  }

  /** Runs `task` once the clock shows `due`; returns what calls it off. */
  at(due: number, task: () => void): () => void {
    const entry = { due, task };
    const later = this.#entries.findIndex(({ due }) => due > entry.due);
    this.#entries.splice(later < 0 ? this.#entries.length : later, 0, entry);
    this.#arm();
    return () => {
      const at = this.#entries.indexOf(entry);
      if (at >= 0) this.#entries.splice(at, 1);
    };
  }

  /** Resolves at `due` on this clock, or at once if that has passed. */
  until(due: number): Promise<void> {
    return new Promise((resolve) => void this.at(due, resolve));
  }

  /** How late the timers since the last call were. */
  takeLag(): Lag {
    const late = this.#late.splice(0).sort((a, b) => a - b);
    const at = (share: number) => late[Math.min(late.length - 1, Math.floor(late.length * share))] ?? 0;
    return { medianMs: at(0.5), p95Ms: at(0.95), maxMs: at(1) };
  }

  #arm(): void {
    const next = this.#entries[0];
    if (next === undefined || next.due >= this.#armedFor) return;
    this.#disarm();
    this.#armedFor = next.due;
    const left = next.due - this.now();
    const wake = () => this.#wake();
    if (left > POLL_MS) {
      const timer = setTimeout(wake, Math.floor(left - POLL_MS));
      this.#disarm = () => clearTimeout(timer);
    } else {
      const poll = setImmediate(wake);
      this.#disarm = () => clearImmediate(poll);
    }
  }

  /** Runs what is due, one task after the other; a task may ask for more. */
  #wake(): void {
    this.#armedFor = Infinity;
    const now = this.now();
    while (this.#entries[0] !== undefined && this.#entries[0].due <= now) {
      const { due, task } = this.#entries.shift()!;
      this.#late.push(this.now() - due);
      task();
    }
    this.#arm();
  }
}
