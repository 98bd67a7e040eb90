// The run's plan as data: why the work is shared as it is, what would be done without one computer, and the dry run of a new
// plan. Pure; draws and fetches nothing. What must stay true: nothing is offered to be applied that would change nothing.
import type { PlanStage, PlanStatus, PlanTransfer, ReplanPreview, RunStatus } from "../peer/wire/status.ts";
import { bytes, count, duration, layers, NOT_YET, percent, plural } from "./format.ts";
import { scheduleWarning } from "./schedule_words.ts";
import type { Tone } from "./view_model_notice.ts";
import type { Fact } from "./view_model_tab.ts";

/** A step that gets shorter by less than this share is as long as before: predictions are not better than that. */
export const GAIN_LEAST = 0.01;
/** Rows of a table on the page; a plan for two hundred computers moves more. */
export const MOVES_SHOWN_MAX = 40;

/** How far the organizer's question for a new plan has come. */
export type Replan =
  | { phase: "asking" }
  | { phase: "shown"; preview: ReplanPreview }
  /** `gen` when it was ordered: the view after it has another one. */
  | { phase: "applied"; preview: ReplanPreview; gen: number }
  | { phase: "failed"; message: string };

export interface MoveRow {
  key: string;
  peer: string;
  what: string;
  from: string;
  size: string;
  takes: string;
}

export interface StageRow {
  key: number;
  stage: string;
  holds: string;
  computes: string;
  keeps: string;
}

/** What the dry run found. */
export interface PreviewView {
  tone: Tone;
  /** The answer in one sentence. */
  verdict: string;
  facts: Fact[];
  moves: MoveRow[];
  /** How many more there are. */
  movesLeftOut: number;
  stages: StageRow[];
  reasons: string[];
  /** What the organizer reads before it is applied; null: there is nothing to apply. */
  cost: string | null;
}

export interface PlanView {
  facts: Fact[];
  reasons: string[];
  changes: string[];
  standBy: string[];
  mayAsk: boolean;
  asking: boolean;
  /** What became of the question or the order, in one sentence; empty: nothing to tell. */
  said: { tone: Tone; text: string } | null;
  preview: PreviewView | null;
}

/** Null before the first view: there is no plan yet. */
export function planView(status: RunStatus, replan: Replan | null): PlanView | null {
  const { plan, state } = status;
  if (plan === undefined) return null;
  const over = state === "finished" || state === "failed";
  return {
    facts: factsOf(plan, status.config),
    reasons: plan.reasons,
    changes: [...plan.changes].reverse(),
    standBy: plan.standBy.map(({ sentence }) => sentence),
    mayAsk: !over && replan?.phase !== "asking",
    asking: replan?.phase === "asking",
    said: saidOf(replan, status.gen),
    preview: replan?.phase === "shown" && !over ? previewView(replan.preview) : null,
  };
}

function factsOf(
  { schedule, seconds, bubble, spares }: PlanStatus,
  { batch_size, gradient_accumulation_steps }: RunStatus["config"],
): Fact[] {
  return [
    { label: "Order within a step", value: orderOf(schedule) },
    {
      label: "Micro-batches of a step",
      value: `${count(gradient_accumulation_steps)} of ${plural(batch_size, "sequence")}`,
    },
    { label: "A step should take", value: step(seconds) },
    { label: "Computers wait", value: bubble === null ? NOT_YET : `${percent(bubble, 1)} of it` },
    { label: "Without a part", value: spares.length === 0 ? "nobody" : spares.join(", ") },
  ];
}

function orderOf(schedule: string): string {
  return scheduleWarning(schedule) === null ? schedule : `${schedule}, asynchronous: weights one step old`;
}

function step(seconds: number | null): string {
  return seconds === null ? NOT_YET : duration(seconds * 1000);
}

function saidOf(replan: Replan | null, gen: number): PlanView["said"] {
  if (replan === null || replan.phase === "shown") return null;
  if (replan.phase === "asking") return { tone: "info", text: "The planner is thinking…" };
  if (replan.phase === "failed") return { tone: "bad", text: `No plan was made: ${replan.message}` };
  return replan.gen === gen
    ? { tone: "info", text: "The new plan begins at the next step boundary." }
    : { tone: "good", text: "The new plan is in force." };
}

function previewView(preview: ReplanPreview): PreviewView {
  const { transfers, stages, reasons } = preview;
  const moves = transfers.slice(0, MOVES_SHOWN_MAX).map(moveRow);
  return {
    ...verdictOf(preview),
    facts: preview.possible ? previewFacts(preview) : [],
    moves,
    movesLeftOut: transfers.length - moves.length,
    stages: stages.map(stageRow),
    reasons,
  };
}

function verdictOf(preview: ReplanPreview): Pick<PreviewView, "tone" | "verdict" | "cost"> {
  const { possible, reason, before, after, transfers } = preview;
  if (!possible || after === null) {
    return { tone: "warn", verdict: `There is no new plan. ${reason}`, cost: null };
  }
  const gain = before === null ? 0 : (before - after) / before;
  const unchanged = transfers.length === 0 && Math.abs(gain) < GAIN_LEAST;
  if (unchanged) {
    return { tone: "good", verdict: "The planner would share the work as it is shared now.", cost: null };
  }
  const cost = costOf(preview);
  if (before === null) return { tone: "info", verdict: `A step would take ${step(after)}.`, cost };
  const times = `${step(after)} instead of ${step(before)}`;
  if (gain >= GAIN_LEAST) {
    return { tone: "good", verdict: `A step would take ${times}, ${percent(gain, 1)} less.`, cost };
  }
  return { tone: "warn", verdict: `Nothing is gained: a step would take ${times}.`, cost };
}

function costOf({ bytes: moved, seconds, paysAfter }: ReplanPreview): string {
  const stands = seconds === null
    ? "It is not known how long the run stands still meanwhile."
    : `The run stands still for about ${step(seconds)} meanwhile.`;
  const pays = paysAfter === null
    ? "It does not pay for itself."
    : paysAfter === 0
    ? "It costs no time that has to be won back."
    : `It has paid for itself after ${plural(paysAfter, "step")}.`;
  const what = moved === 0
    ? "Nothing has to be moved."
    : `${bytes(moved)} of weights and moments move between computers.`;
  return `${what} ${stands} ${pays} No step is lost.`;
}

function previewFacts({ before, after, bytes: moved, seconds, paysAfter, spares }: ReplanPreview): Fact[] {
  return [
    { label: "A step now", value: step(before) },
    { label: "A step then", value: step(after) },
    { label: "Moves", value: moved === 0 ? "nothing" : bytes(moved) },
    { label: "Stands still for", value: seconds === null ? "not known" : step(seconds) },
    { label: "Pays after", value: paysAfter === null ? "never" : plural(paysAfter, "step") },
    { label: "Without a part", value: spares.length === 0 ? "nobody" : spares.join(", ") },
  ];
}

function moveRow({ peer, from, firstLayer, endLayer, bytes: size, seconds }: PlanTransfer): MoveRow {
  return {
    key: `${peer}/${firstLayer}/${endLayer}`,
    peer,
    what: layers(firstLayer, endLayer),
    from: from ?? "a snapshot",
    size: bytes(size),
    takes: seconds === null ? "not known" : step(seconds),
  };
}

function stageRow({ firstLayer, endLayer, replicas, shadows }: PlanStage, index: number): StageRow {
  const work = replicas.map(({ peer, microBatches }) => `${peer} (${plural(microBatches, "micro-batch")})`);
  return {
    key: index,
    stage: `Stage ${count(index + 1)}`,
    holds: layers(firstLayer, endLayer),
    computes: work.join(", "),
    keeps: shadows.length === 0 ? "nobody else" : shadows.join(", "),
  };
}
