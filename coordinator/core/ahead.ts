// Two training steps open at once, with the schedule 2bw: while step k is computed and committed, k+1 may be computed already, since
// its weights are a step older. Pure; mutates the turn's state. What must stay true: a second step is opened only if nothing but
// that step can follow the first, so that whatever else is to happen between two steps finds the peers with none begun.
import { isDelayed, peersOf } from "../../peer/wire/view.ts";
import type { RunCoreState } from "./run_state.ts";
import type { Turn } from "./turn.ts";

/** Committed steps when something else than a step may happen next. */
export function nextBoundary({ round, committed }: Pick<RunCoreState, "round" | "committed">): number {
  if (round?.pass !== "train") return committed;
  return committed + (round.ahead === true ? 2 : 1);
}

/**
 * Opens the step after the open one, if nothing can come between. `certain`: peers may have it open from before a restart, so that
 * only what the configuration says counts, which was known then as it is now.
 */
export function openAhead(turn: Turn, { certain = false } = {}): void {
  const { s } = turn;
  if (s.round?.pass !== "train" || s.round.ahead === true || s.view === null || !mayFollow(s)) return;
  if (!certain && (s.replanDue !== null || s.tidyDue || s.paused || s.planning.boundaryDue)) return;
  s.round.ahead = true;
  const message = {
    ...{ type: "open" as const, gen: s.gen, step: s.committed + 1, pass: "train" as const, ahead: true },
  };
  for (const peer of peersOf(s.view)) turn.out.push({ do: "send", peer, message });
}

/** Whether the configuration has nothing to be done between the open step and the next. */
function mayFollow({ view, config, committed, target, changes }: RunCoreState): boolean {
  const next = committed + 1;
  const evaluates = config.eval_iters > 0 && next % config.eval_interval === 0;
  const changing = changes.some((change) => change.was === undefined && change.step <= next);
  return isDelayed(view!) && next < target && !evaluates && !changing;
}
