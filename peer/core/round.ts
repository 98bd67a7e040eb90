// One round of one stage instance: how it begins, which operation is next over all instances, and what follows from a
// finished one. Training rounds follow the schedule's executor; evaluation rounds run forward only. Mutates the plain state
// it is given; sends nothing that a data dependency does not ask for.
import type { Pass } from "../wire/control.ts";
import { assert } from "../wire/errors.ts";
import { isDelayed, ownerOf, roundOrder } from "../wire/view.ts";
import {
  activationArrived,
  dueRank,
  gradientArrived,
  KIND_RANK,
  type NextOp,
  nextOp,
  opDone,
  progressFromView,
  takeOver,
} from "../schedule/executor.ts";
import type {
  Arrived,
  FrameOut,
  Instance,
  Job,
  JobResult,
  PeerEffect,
  PeerState,
  StepWork,
} from "./peer_state.ts";

type OpJob = Job & { job: "op" };

/** Begins what the instance is due for: the open round, or a committed step that it has not got yet. */
export function beginIfDue(state: PeerState, instance: Instance, out: PeerEffect[]): void {
  const { open } = state;
  const { step, work } = instance;
  if (step === null || instance.applying) return;
  if (work?.step === step) return beginAheadIfDue(state, instance);
  const behind = step < state.committed;
  if (!behind && !isOpen(state, step)) return;
  if (!behind && open?.pass === "eval") return beginEvaluation(state, instance, out);
  instance.evaluation = null;
  const begun = instance.ahead?.step === step ? instance.ahead : null;
  instance.work = begun ?? createWork(state, instance, { step, compute: !behind });
  instance.ahead = null;
  out.push({ do: "begin", stage: instance.plan.index, pass: "train", step });
  forgetBefore(state, instance, roundOrder("train", step));
  for (const frame of state.arrived) deliver(state, instance, frame);
}

/** With the schedule 2bw the step before the one that was opened last may be open, too. */
function isOpen({ open, view }: PeerState, step: number): boolean {
  if (open === null) return false;
  return open.step === step || (isDelayed(view!) && open.pass === "train" && open.step === step + 1);
}

/** The step after the instance's own, if it is open and not committed yet: its weights are there, since they are a step older. */
function beginAheadIfDue(state: PeerState, instance: Instance): void {
  const { open, committed, view } = state;
  const step = instance.step! + 1;
  if (instance.ahead !== null || instance.microBatches.length === 0 || !isDelayed(view!)) return;
  if (open?.pass !== "train" || open.step < step || step < committed) return;
  instance.ahead = createWork(state, instance, { step, compute: true });
  for (const frame of state.arrived) deliver(state, instance, frame);
}

function createWork(
  state: PeerState,
  instance: Instance,
  { step, compute }: { step: number; compute: boolean },
): StepWork {
  const computes = compute && instance.microBatches.length > 0;
  const progress = computes ? progressFromView(state.view!, instance.plan.index, state.id) : null;
  // Others had begun when the view was amended, and finish the step in the dynamic order.
  if (progress !== null && state.open?.gen !== state.gen) takeOver(progress, []);
  return {
    ...{ step, progress, takenOver: [], losses: {}, lossesTold: 0, parts: [], partGen: -1 },
    ...{ shards: [], reducingGen: -1, shardGen: -1 },
    ...{
      total: "none",
      hash: "",
      facts: { gradNormSq: 0, saturated: 0, nonFinite: 0 },
      tiedFrom: null,
      tiedGen: -1,
      wanted: null,
    },
  };
}

function beginEvaluation(state: PeerState, instance: Instance, out: PeerEffect[]): void {
  const { config, id, open } = state;
  const step = instance.step!;
  if (instance.evaluation?.step === step && instance.evaluation.gen === open!.gen) return;
  const all = Array.from({ length: config.eval_iters }, (_, m) => m);
  const left = all.filter((m) => ownerOf(instance.plan, m, config.gradient_accumulation_steps) === id);
  const ready = instance.plan.embed ? [...left] : [];
  instance.evaluation = { step, gen: open!.gen, left, ready, done: [], losses: {} };
  out.push({ do: "begin", stage: instance.plan.index, pass: "eval", step });
  forgetBefore(state, instance, roundOrder("eval", step));
  for (const frame of state.arrived) deliver(state, instance, frame);
}

function forgetBefore(state: PeerState, instance: Instance, order: number): void {
  const { index } = instance.plan;
  state.arrived = state.arrived.filter((frame) => frame.stage !== index || frame.order >= order);
}

/** Tells an instance of a frame that was accepted, if it is of the round that the instance is in. */
export function deliver(state: PeerState, instance: Instance, frame: Arrived): void {
  if (frame.stage !== instance.plan.index) return;
  const { work, evaluation } = instance;
  if (frame.pass === "eval") {
    if (evaluation === null || frame.order !== roundOrder("eval", evaluation.step)) return;
    if (frame.gen === evaluation.gen) evaluation.ready.push(frame.microBatch);
    return;
  }
  const { ahead } = instance;
  if (ahead !== null && frame.order === roundOrder("train", ahead.step)) deliverBoundary(ahead, frame);
  if (work === null || frame.order !== roundOrder("train", work.step)) return;
  if (deliverBoundary(work, frame) || frame.gen !== state.gen) return;
  if (frame.kind === "part") work.parts.push({ from: frame.from, gen: frame.gen, set: frame.set });
  else if (frame.kind === "shard") {
    work.shards.push({ from: frame.from, gen: frame.gen, index: frame.microBatch });
  } else if (frame.kind === "tied") work.tiedFrom = { from: frame.from, gen: frame.gen };
}

/** Whether it was a boundary tensor, and so none of the step's sums. */
function deliverBoundary({ progress }: StepWork, { kind, microBatch }: Arrived): boolean {
  if (kind === "activation" && progress !== null) activationArrived(progress, microBatch);
  if (kind === "gradient" && progress !== null) gradientArrived(progress, microBatch);
  return kind === "activation" || kind === "gradient";
}

/** The next operation of this peer, or null while everything waits for a frame. */
export function chooseOp(state: PeerState): OpJob | null {
  const found: OpJob[] = [];
  const able = state.instances.filter((it) => it.engine === "ready" && !it.applying && it.step !== null);
  const due = Math.min(...able.map((it) => rankOf(it) ?? Infinity));
  for (const instance of able) {
    const base = { job: "op" as const, cut: state.view!.cut, gen: state.gen, step: instance.step! };
    const stage = instance.plan.index;
    const evaluation = nextEvaluation(instance);
    const next = evaluation ?? nextTraining(instance, due);
    const pass = evaluation === null ? "train" as const : "eval" as const;
    if (next !== null) found.push({ ...base, pass, stage, ...next, ...scaleOf(state, stage, pass) });
    const later = nextAhead(instance);
    if (later !== null) found.push({ ...base, pass: "train", stage, ...later });
  }
  // Of two open steps the older one is the more urgent: the next but one is opened when it is committed.
  const delayed = state.view !== null && isDelayed(state.view);
  const since = (op: OpJob) => delayed ? op.step : 0;
  found.sort((a, b) =>
    KIND_RANK[a.kind] - KIND_RANK[b.kind] || since(a) - since(b) || a.microBatch - b.microBatch
  );
  return found[0] ?? null;
}

function nextAhead({ ahead }: Instance): (NextOp & { step: number }) | null {
  const next = ahead?.progress ? nextOp(ahead.progress) : null;
  return next === null ? null : { ...next, step: ahead!.step };
}

/** The loss scale is a training round's, and said when it is opened. */
function scaleOf({ open }: PeerState, stage: number, pass: Pass): Pick<OpJob, "lossScale"> {
  const lossScale = pass === "train" ? open?.lossScale?.[stage] : undefined;
  return lossScale === undefined ? {} : { lossScale };
}

/** A placed schedule orders all of a peer's stages together: whoever is not due waits, even for an operation that is not ready. */
function nextTraining(instance: Instance, due: number): NextOp | null {
  const progress = instance.work?.progress ?? null;
  const rank = rankOf(instance);
  return progress === null || (rank !== null && rank > due) ? null : nextOp(progress);
}

function rankOf({ work }: Instance): number | null {
  return work?.progress ? dueRank(work.progress) : null;
}

function nextEvaluation({ evaluation }: Instance): { kind: "F"; microBatch: number; slot: null } | null {
  const microBatch = evaluation?.left.find((m) => evaluation.ready.includes(m));
  return microBatch === undefined ? null : { kind: "F", microBatch, slot: null };
}

export interface OpEnd {
  instance: Instance;
  job: OpJob;
  result: JobResult;
  out: PeerEffect[];
}

/** Marks a finished operation and derives its communication from the data dependencies. */
export function finishOp(state: PeerState, end: OpEnd): void {
  const { instance, job, result, out } = end;
  const { evaluation } = instance;
  if (job.pass === "eval") {
    if (evaluation?.step === job.step && evaluation.gen === job.gen) finishEvaluation(state, end);
    return;
  }
  const work = workOf(instance, job.step);
  // The step may have been committed without this operation, or the instance be another one by now.
  if (work === null || work.progress === null || (work === instance.work && instance.applying)) return;
  opDone(work.progress, { kind: job.kind, microBatch: job.microBatch });
  if (job.kind === "F" && result.loss !== undefined) work.losses[job.microBatch] = result.loss;
  if (job.kind === "F" && work.takenOver.includes(job.microBatch)) state.recomputed++;
  const frame = boundaryFrame(state, {
    instance,
    kind: job.kind,
    microBatch: job.microBatch,
    step: work.step,
  });
  if (frame !== null) out.push({ do: "send", frame });
}

function workOf({ work, ahead }: Instance, step: number): StepWork | null {
  return [work, ahead].find((it) => it?.step === step) ?? null;
}

/** The frame with an operation's result for the neighbour stage; null if there is none. */
export function boundaryFrame(
  state: PeerState,
  what: {
    instance: Instance;
    kind: "F" | "B" | "W";
    microBatch: number;
    /** Default: the instance's own. */
    step?: number;
    recovery?: boolean;
  },
): FrameOut | null {
  const { instance, kind, microBatch, step = instance.step!, recovery = false } = what;
  const stage = instance.plan.index;
  const toStage = stage + (kind === "F" ? 1 : -1);
  const target = state.view!.stages[toStage];
  if (kind === "W" || target === undefined) return null;
  const to = ownerOf(target, microBatch, state.config.gradient_accumulation_steps);
  assert(to !== null, `nobody owns micro-batch ${microBatch} of stage ${toStage}`);
  return {
    ...{
      to,
      kind: kind === "F" ? "activation" : "gradient",
      cut: state.view!.cut,
      gen: state.gen,
      pass: "train",
    },
    ...{ step, fromStage: stage, toStage, microBatch, set: [], range: null, recovery },
  };
}

function finishEvaluation(state: PeerState, { instance, job, result, out }: OpEnd): void {
  const evaluation = instance.evaluation!;
  const { gen } = state;
  const stage = job.stage;
  evaluation.left = evaluation.left.filter((m) => m !== job.microBatch);
  evaluation.done.push(job.microBatch);
  if (result.loss !== undefined) evaluation.losses[job.microBatch] = result.loss;
  const frame = boundaryFrame(state, { instance, kind: "F", microBatch: job.microBatch });
  if (frame !== null) out.push({ do: "send", frame: { ...frame, pass: "eval" } });
  if (evaluation.left.length > 0 || !instance.plan.head) return;
  const losses = Object.values(evaluation.losses);
  const lossSum = losses.reduce((sum, loss) => sum + loss, 0);
  const base = { gen, step: evaluation.step, stage };
  out.push({ do: "say", message: { type: "evaluated", ...base, lossSum, lossCount: losses.length } });
}
