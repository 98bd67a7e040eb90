// Changes of the configuration in the middle of a run: which keys may change, from which step on, and what follows. A change
// begins a new cut from the state that is there, so that every peer computes a step under one configuration. Pure; mutates the
// turn's state. What must stay true: a step that is done again is done with the configuration that it had the first time.
import { CHANGEABLE_KEYS, type ChangeableKey, type ConfigValues } from "../../peer/wire/changes.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { nextBoundary } from "./ahead.ts";
import type { RunCoreState } from "./run_state.ts";
import { resizePeers } from "./sized_peer.ts";
import { note, type Turn } from "./turn.ts";

/** Changes that a run remembers; more than a person makes in a day. */
export const CHANGES_MAX = 64;

/** A change as people read it: "learning_rate 0.003 -> 0.001". */
export function changeText(set: ConfigValues, config: RunConfig): string {
  return keysOf(set).map((key) => `${key} ${String(config[key])} -> ${String(set[key])}`).join(", ");
}

export function keysOf(set: ConfigValues): ChangeableKey[] {
  return CHANGEABLE_KEYS.filter((key) => set[key] !== undefined);
}

/** Notes a change that counts from `step` on, or from the next step if that is past; `by` ends the line of the log. */
export function planChange(turn: Turn, change: { step: number; set: ConfigValues }, by = ""): void {
  const { s } = turn;
  const step = Math.max(change.step, nextBoundary(s));
  s.changes.push({ step, set: change.set });
  s.changes.sort((a, b) => a.step - b.step);
  s.changed = true;
  note(turn, "admin", `from step ${step} on: ${changeText(change.set, s.config)}${by}`);
  remember(turn);
}

/** Whether a change counts from `committed` on that has not come into force. */
export function changesDue(s: RunCoreState): boolean {
  return s.changes.some((change) => change.was === undefined && change.step <= s.committed);
}

/** Changes that count from `committed` on become the configuration; the words for what changed, or null. */
export function beginChanges(turn: Turn): string | null {
  const { s } = turn;
  const due = s.changes.filter((change) => change.was === undefined && change.step <= s.committed);
  if (due.length === 0) return null;
  const texts = due.map((change) => {
    const text = changeText(change.set, s.config);
    const { config } = s;
    change.was = Object.fromEntries(keysOf(change.set).map((key) => [key, config[key]]));
    adopt(s, { ...config, ...change.set });
    return text;
  });
  remember(turn);
  return texts.join(", ");
}

/** The planner's change of what is nobody else's to say: it counts from the present step on, whose cut is about to begin. */
export function changeNow(turn: Turn, set: ConfigValues): void {
  const { s } = turn;
  const last = s.changes.filter((change) => change.was !== undefined).at(-1);
  // Another attempt at the same step's cut: its first change is the one that is undone.
  if (last?.planned && last.step === s.committed) last.set = { ...last.set, ...set };
  else {
    const { config } = s;
    const was = Object.fromEntries(keysOf(set).map((key) => [key, config[key]]));
    s.changes.push({ step: s.committed, set, was, planned: true });
    s.changes.sort((a, b) => a.step - b.step);
  }
  s.changed = true;
  adopt(s, { ...s.config, ...set });
  remember(turn);
}

/**
 * The log ends between a change and the cut that was to begin with it: peers compute under the view before it, so it is still to
 * come. What the planner had decided for that cut is decided anew with the next.
 */
export function setAsideChanges(s: RunCoreState): void {
  const before = s.view?.config;
  const outlived = s.changes.filter(({ step, set, was }) =>
    was !== undefined && step === s.committed && keysOf(set).some((key) => before?.[key] !== set[key])
  );
  for (const change of outlived.toReversed()) {
    adopt(s, { ...s.config, ...change.was });
    delete change.was;
  }
  s.changes = s.changes.filter((change) => !(change.planned && outlived.includes(change)));
}

/** The run goes back to `base` committed steps: what came into force after it is to come again. */
export function undoChanges(turn: Turn, base: number): void {
  const { s } = turn;
  s.planning.furthest = Math.max(s.planning.furthest, s.committed);
  const undone = s.changes.filter((change) => change.was !== undefined && change.step > base);
  for (const change of undone.toReversed()) {
    adopt(s, { ...s.config, ...change.was });
    delete change.was;
  }
  if (undone.length > 0) remember(turn);
}

/** The run is set back on purpose, to another history: what came into force after `base`, or was to come, is forgotten. */
export function dropChanges(turn: Turn, base: number): void {
  const { s } = turn;
  undoChanges(turn, base);
  s.planning.furthest = base;
  s.changes = s.changes.filter((change) => change.was !== undefined);
  if (s.changed) remember(turn);
}

/** max_iters is the run's target unless it was stopped before. */
function adopt(s: RunCoreState, config: RunConfig): void {
  if (config.max_iters !== s.config.max_iters) s.target = config.max_iters;
  resizePeers(s, s.config.batch_size, config.batch_size);
  s.config = config;
}

function remember({ s, out }: Turn): void {
  out.push({
    do: "persist",
    record: { kind: "config", config: s.config, changes: structuredClone(s.changes) },
  });
}
