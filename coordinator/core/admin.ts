// What the organizer orders: pause, resume, stop, drain, change, go back. Pure; mutates the turn's state. What must stay true:
// an order is noted before it has any effect, and going back on purpose is another history of the run, told as such.
import { nextBoundary } from "./ahead.ts";
import { afterBoundary, finish } from "./boundary.ts";
import { dropChanges, planChange } from "./changes.ts";
import { dismiss, restart } from "./recovery.ts";
import { replanNow } from "./replan.ts";
import type { AdminEvent } from "./run_state.ts";
import { giveUp } from "./snapshots.ts";
import { note, setStatus, type Turn } from "./turn.ts";
import { peersOf } from "../../peer/wire/view.ts";

export function administer(turn: Turn, event: AdminEvent): void {
  const { s } = turn;
  if (s.status === "finished" || s.status === "failed" || s.ending !== null) return;
  switch (event.action) {
    case "change":
      planChange(turn, event, orderedBy(event));
      return goOnIfHeld(turn);
    case "replan":
      if (event.by !== undefined) note(turn, "admin", `the next plan is a new one${orderedBy(event)}`);
      replanNow(turn);
      return goOnIfHeld(turn);
    case "drain":
      return drain(turn, event);
    case "pin":
      return pin(turn, event);
    case "rollback":
      return goBack(turn, event);
    case "pause":
      note(turn, "admin", `pause by ${nameOf(event)}`);
      s.paused = true;
      return goOnIfHeld(turn);
    case "resume":
      note(turn, "admin", `resume by ${nameOf(event)}`);
      s.paused = false;
      return goOnIfHeld(turn, "resumed");
    case "stop":
      return stop(turn, event);
  }
}

function nameOf({ by = "the organizer" }: Pick<AdminEvent, "by">): string {
  return by;
}

/** What the log says after an order; nothing where the program itself gave it. */
function orderedBy({ by }: Pick<AdminEvent, "by">): string {
  return by === undefined ? "" : ` (ordered by ${by})`;
}

/** A stop at once lets a run go on that was paused; one at a later step does not. */
function stop(turn: Turn, event: AdminEvent & { action: "stop" }): void {
  const { s } = turn;
  const { step } = event;
  const soonest = nextBoundary(s);
  const target = Math.max(soonest, step ?? soonest);
  note(
    turn,
    "admin",
    step === undefined ? `stop by ${nameOf(event)}` : `stop after step ${target}${orderedBy(event)}`,
  );
  s.target = step === undefined ? Math.min(s.target, target) : target;
  if (step !== undefined && target > s.committed) return;
  s.paused = false;
  if (s.view === null) return finish(turn);
  goOnIfHeld(turn, "stopping");
}

function goOnIfHeld(turn: Turn, reason?: string): void {
  const { s } = turn;
  if (s.phase !== "held") return;
  // The time that the run was made to wait is no step's.
  s.lastCommitAt = turn.now;
  if (reason !== undefined) setStatus(turn, "training", reason);
  afterBoundary(turn);
}

/** As if the peer itself had asked to leave after this step. */
function drain(turn: Turn, event: AdminEvent & { action: "drain" }): void {
  const { s } = turn;
  const { peer: id } = event;
  const peer = s.peers[id];
  if (peer === undefined) return;
  peer.leaving = true;
  note(turn, "admin", `${id} is to go, once others hold what it holds${orderedBy(event)}`);
  if (s.view === null || !peersOf(s.view).includes(id)) return dismiss(turn, id);
  s.tidyDue = true;
  goOnIfHeld(turn);
}

/** Nothing moves for it now: the next plan follows it, which the organizer may ask for. */
function pin(turn: Turn, event: AdminEvent & { action: "pin" }): void {
  const { peer: id, stage } = event;
  const peer = turn.s.peers[id];
  if (peer === undefined) return;
  delete peer.pin;
  if (stage !== null) peer.pin = stage;
  const what = stage === null
    ? `${id} may compute any stage again`
    : `${id} is pinned to stage ${stage + 1}, from the next plan on`;
  note(turn, "admin", `${what}${orderedBy(event)}`);
}

/** The state of a checkpoint becomes the committed one, and what came after it is forgotten. */
function goBack(turn: Turn, event: AdminEvent & { action: "rollback" }): void {
  const { s } = turn;
  const { source, name } = event;
  note(turn, "admin", `back to ${name}: step ${source.step}, from step ${s.committed}${orderedBy(event)}`);
  giveUp(turn, "the run goes back");
  Object.assign(s, { restoring: null, pending: null, snapshots: [source], source: null, barren: 0 });
  s.kept.current = null;
  // Nothing of it is owed to a departure, and none of it is a loss.
  s.committed = source.step;
  s.losses = s.losses.filter((point) => point.step <= source.step);
  s.lastEval = Math.min(s.lastEval, source.step);
  dropChanges(turn, source.step);
  s.target = s.config.max_iters;
  turn.out.push({ do: "report", line: { event: "rollback", step: source.step, steps_redone: 0 } });
  restart(turn, `back to ${name} by ${nameOf(event)}`);
}
