// What happens between two rounds: evaluate, collect a snapshot, re-plan, pause, finish, or open the next step.
// One function decides; it is asked again whenever something it waited for has happened. Pure; mutates the turn's state.
import { peersOf } from "../../peer/wire/view.ts";
import type { Pass, StateSource } from "../../peer/wire/control.ts";
import { openAhead } from "./ahead.ts";
import { weighSchedule } from "./auto_upkeep.ts";
import { balance, watchAhead } from "./balance.ts";
import { changesDue } from "./changes.ts";
import { silentHolder } from "./disputes.ts";
import { lossScaleOf } from "./loss_scale.ts";
import { isStuck, maintain } from "./maintain.ts";
import { restart } from "./recovery.ts";
import { peersKeepEnough, snapshotIfDue } from "./snapshots.ts";
import { placementDue } from "./textbook_upkeep.ts";
import { askTrace } from "./trace.ts";
import { note, requestSnapshots, setPhase, setStatus, type Turn } from "./turn.ts";

/** Complete snapshots kept; the older one serves peers that are still downloading it. */
const SNAPSHOTS_KEPT = 2;
/** Steps between snapshots that the coordinator collects where peers keep none and none are configured. */
const COLLECTED_EVERY = 10;

/** Decides what follows at `committed`. Called with no round open and all peers of the view ready. */
export function afterBoundary(turn: Turn): void {
  const { s } = turn;
  if (s.view === null || s.status === "finished" || s.status === "failed") return;
  const finished = s.committed >= s.target;
  if (
    (finished || isDue(s.committed, s.config.eval_interval)) && s.lastEval !== s.committed &&
    s.config.eval_iters > 0
  ) {
    return openRound(turn, "eval");
  }
  if (!finished && s.replanDue === null && changesDue(s)) s.replanDue = "the configuration changes";
  if (!finished && s.replanDue === null && s.tidyDue) s.replanDue = placementDue(turn);
  if (!finished && s.replanDue === null) balance(turn);
  if (!finished && s.replanDue === null) weighSchedule(turn);
  if (finished && silentHolder(s) !== null) return setPhase(turn, "held");
  const must = finished || s.replanDue !== null;
  if (must && s.snapshots.at(-1)?.step !== s.committed && s.source?.step !== s.committed && s.committed > 0) {
    return handover(turn);
  }
  if (finished) return finish(turn);
  if (s.replanDue !== null) return restart(turn, s.replanDue);
  maintain(turn);
  if (isStuck(turn)) {
    s.replanDue = "a peer leaves and nobody else can hold its stages";
    return afterBoundary(turn);
  }
  collectIfDue(turn);
  if (s.paused) {
    setPhase(turn, "held");
    return setStatus(turn, "paused", "paused by the organizer");
  }
  openRound(turn, "train");
}

/** States are exported between two steps, whatever of the next one is computed already. */
function collectIfDue(turn: Turn): void {
  const { s } = turn;
  if (collectionDue(turn) && s.snapshots.at(-1)?.step !== s.committed && s.pending?.step !== s.committed) {
    requestSnapshots(turn);
  }
  snapshotIfDue(turn);
}

/** A step was committed and the next one is open already: it is the round now. */
export function goOn(turn: Turn): void {
  turn.s.round = { pass: "train", step: turn.s.committed };
  setPhase(turn, "round");
  collectIfDue(turn);
  watchAhead(turn);
  openAhead(turn);
}

function isDue(step: number, interval: number): boolean {
  return step > 0 && interval > 0 && step % interval === 0;
}

/** A checkpoint or a sample needs all states here; a snapshot does only while peers keep none. */
function collectionDue(turn: Turn): boolean {
  const { committed, config } = turn.s;
  const samples = config.sample_chars > 0 && isDue(committed, config.eval_interval);
  if (samples || isDue(committed, config.checkpoint_interval)) return true;
  return isDue(committed, config.snapshot_interval || COLLECTED_EVERY) && !peersKeepEnough(turn.s);
}

/** Opens a round of all peers of the view at the newest committed step. */
export function openRound(turn: Turn, pass: Pass): void {
  const { s } = turn;
  s.round = { pass, step: s.committed };
  setPhase(turn, "round");
  const wish = pass === "train" && askTrace(turn) ? { trace: true } : {};
  const scale = pass === "train" ? lossScaleOf(s) : {};
  const message = { type: "open" as const, gen: s.gen, step: s.committed, pass, ...wish, ...scale };
  for (const peer of peersOf(s.view!)) turn.out.push({ do: "send", peer, message });
  if (pass === "train") openAhead(turn);
}

/** Nobody computes until every stage's state at `committed` has arrived. */
function handover(turn: Turn): void {
  setPhase(turn, "handover");
  if (turn.s.pending?.step !== turn.s.committed) requestSnapshots(turn);
}

/** The pending snapshot has all stages: it becomes what departures fall back to. */
export function complete(turn: Turn): void {
  const { s } = turn;
  const done = s.pending!;
  done.files.sort((a, b) => a.stage - b.stage);
  s.pending = null;
  addSource(turn, done);
  const finished = done.step >= s.target;
  if (!finished && isDue(done.step, s.config.checkpoint_interval)) {
    turn.out.push({ do: "checkpoint", source: done, final: false });
  } else if (!finished) turn.out.push({ do: "save", source: done });
  const sampling = s.config.sample_chars > 0 && isDue(done.step, s.config.eval_interval);
  if (!finished && sampling && s.sampledAt < done.step) {
    s.sampledAt = done.step;
    turn.out.push({ do: "sample", source: done });
  }
  if (s.phase !== "handover" || done.step !== s.committed) return;
  if (s.broken) restart(turn, s.replanDue ?? "peers changed");
  else afterBoundary(turn);
}

/** A further complete source; the oldest one is let go of, and so are files that nobody needs. */
export function addSource(turn: Turn, source: StateSource): void {
  const { s } = turn;
  s.snapshots.push(source);
  while (s.snapshots.length > SNAPSHOTS_KEPT) s.snapshots.shift();
  // A learner may be fetching a state that is older by now; its transfer has an end.
  const learning = s.transfers.filter((it) => it.file !== null).map((it) => it.step);
  const oldest = Math.min(s.snapshots[0]!.step, s.source?.step ?? Infinity, ...learning);
  turn.out.push({ do: "forget", before: oldest });
}

/** Ends the run with what is complete: last checkpoint and sample, then "finished". */
export function finish(turn: Turn): void {
  const { s } = turn;
  if (s.ending !== null) return;
  setPhase(turn, "held");
  note(turn, "finishing", `step ${s.committed} reached; writing the last checkpoint`);
  const source = s.snapshots.at(-1) ?? s.source;
  s.ending = { checkpoint: null, checkpointBytes: 0, sample: s.config.sample_chars > 0 ? null : "" };
  if (source === null || source === undefined) {
    setStatus(turn, "finished", "stopped before the first step");
    return sayDone(turn, s.reason);
  }
  turn.out.push({ do: "checkpoint", source, final: true });
  if (s.config.sample_chars > 0) turn.out.push({ do: "sample", source });
}

/** Lets every peer go. */
export function sayDone(turn: Turn, reason: string): void {
  for (const peer of Object.keys(turn.s.peers)) {
    turn.out.push({ do: "send", peer, message: { type: "done", reason } });
  }
}
