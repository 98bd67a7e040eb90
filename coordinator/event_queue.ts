// Events on their way to the run's core, each with the time at which it came in. While the run's log cannot be written nothing
// is taken out; then only what the core must not miss is kept. What must stay true: order, and a bound on what waits.
import type { RunEvent } from "./core/run_state.ts";
import type { ReturnEvent } from "./core/run_record.ts";

export type ShellEvent = RunEvent | ReturnEvent;

export interface TimedEvent {
  event: ShellEvent;
  /** When it happened, ms; the core judges silence by it, so time that events spent waiting counts for nobody's. */
  at: number;
}

/** Peers stand still without their commit, so honest ones say little; without a limit one of them could fill the memory. */
const EVENTS_MAX = 10_000;

export class EventQueue {
  #events: TimedEvent[] = [];

  get length(): number {
    return this.#events.length;
  }

  /**
   * @param stalled nothing is taken out for now: ticks are left out, and of a peer's heartbeats only the newest stays
   * @returns false if there is no room for it
   */
  push(next: TimedEvent, stalled: boolean): boolean {
    const { event } = next;
    if (stalled && event.type === "tick") return true;
    if (stalled && isHeartbeat(event)) {
      this.#events = this.#events.filter((it) => !isHeartbeat(it.event) || it.event.peer !== event.peer);
    }
    // That a peer is gone must be known in any case, and there are only so many peers.
    if (this.#events.length >= EVENTS_MAX && event.type === "message") return false;
    this.#events.push(next);
    return true;
  }

  shift(): TimedEvent | undefined {
    return this.#events.shift();
  }
}

function isHeartbeat(event: ShellEvent): event is RunEvent & { type: "message" } {
  return event.type === "message" && event.message.type === "heartbeat";
}
