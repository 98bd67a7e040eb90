// One turn of the run's core: the state, the time, and the effects gathered so far; with the few helpers all parts use.
import type { RunState } from "../../peer/wire/status.ts";
import { currentHolders } from "./holders.ts";
import type { Phase, RunCoreState, RunEffect } from "./run_state.ts";

/** Most event lines kept for the admin page; the whole log is in the store. */
const EVENTS_MAX = 200;

export interface Turn {
  s: RunCoreState;
  now: number;
  out: RunEffect[];
}

/** A line for the event log, the admin page and the store. */
export function note(turn: Turn, kind: string, text: string, data?: Record<string, unknown>): void {
  const { s } = turn;
  // Hundreds of commits would push what a person looks for off the page; the store keeps them all.
  if (kind !== "commit") s.events.push({ seq: s.eventSeq++, atMs: turn.now, kind, text });
  if (s.events.length > EVENTS_MAX) s.events.shift();
  turn.out.push(data === undefined ? { do: "log", kind, text } : { do: "log", kind, text, data });
}

export function setPhase(turn: Turn, phase: Phase): void {
  turn.s.phase = phase;
  turn.s.phaseSince = turn.now;
}

export function setStatus(turn: Turn, status: RunState, reason: string): void {
  const { s } = turn;
  if (s.status === status && s.reason === reason) return;
  const changed = s.status !== status;
  Object.assign(s, { status, reason });
  if (changed) turn.out.push({ do: "report", line: { event: "state", state: status, reason } });
  turn.out.push({ do: "log", kind: "state", text: `${status}: ${reason}` });
}

/** Asks one live holder of every stage for its state at `committed`. */
export function requestSnapshots(turn: Turn): void {
  turn.s.pending = { step: turn.s.committed, files: [] };
  requestMissing(turn);
}

/** Asks again for what has not come, after somebody left. */
export function requestMissing(turn: Turn): void {
  const { s } = turn;
  for (const stage of s.view?.stages ?? []) {
    const [holder] = currentHolders(s, stage);
    if (holder === undefined || s.pending!.files.some((file) => file.stage === stage.index)) continue;
    const message = {
      type: "snapshot" as const,
      cut: s.view!.cut,
      step: s.pending!.step,
      stage: stage.index,
    };
    turn.out.push({ do: "send", peer: holder.peer, message });
  }
}
