// One round of one peer: which operation is next over all its stage instances, and what follows from a finished one.
// Training rounds follow the schedule's executor; evaluation rounds run forward only. Mutates the plain state it is given.
import type { Pass } from "../wire/control.ts";
import { assert } from "../wire/errors.ts";
import type { StagePlan, View } from "../wire/run.ts";
import { ownerOf } from "../wire/view.ts";
import { finished, nextOp, opDone, progressFromView } from "../schedule/executor.ts";
import { partners } from "./accept.ts";
import type { FrameOut, Instance, Job, JobResult, PeerEffect, PeerState } from "./peer_state.ts";

export interface RoundContext {
  state: PeerState;
  view: View;
  round: { pass: Pass; step: number; order: number };
}

type OpJob = Job & { job: "op" };

/** Backward first (it frees memory and feeds the neighbour), then forward, then the weight gradients that fill gaps. */
const KIND_RANK = { B: 0, F: 1, W: 2 };

/** Fresh progress for every instance. */
export function beginRound(context: RoundContext): void {
  for (const instance of context.state.instances) {
    instance.phase = "computing";
    Object.assign(instance, { losses: {}, parts: [], tiedArrived: false, evalLeft: [], evalReady: [] });
    if (context.round.pass === "eval") beginEvaluation(context, instance);
    else instance.progress = progressFromView(context.view, instance.plan.index, context.state.id);
  }
}

function beginEvaluation(context: RoundContext, instance: Instance): void {
  const { config, id } = context.state;
  const all = Array.from({ length: config.eval_iters }, (_, m) => m);
  const own = all.filter((m) => ownerOf(instance.plan, m, config.gradient_accumulation_steps) === id);
  instance.progress = null;
  instance.evalLeft = own;
  instance.evalReady = instance.plan.embed ? [...own] : [];
}

/** The next operation of this peer, or null while everything waits for a frame. */
export function chooseOp(context: RoundContext): OpJob | null {
  const { state, round } = context;
  const found: OpJob[] = [];
  for (const instance of state.instances) {
    const next = round.pass === "eval"
      ? nextEvaluation(instance)
      : instance.progress && nextOp(instance.progress);
    if (next === null || next === undefined) continue;
    const base = { job: "op" as const, gen: state.gen, pass: round.pass, step: round.step };
    found.push({ ...base, stage: instance.plan.index, ...next });
  }
  found.sort((a, b) => KIND_RANK[a.kind] - KIND_RANK[b.kind] || a.microBatch - b.microBatch);
  return found[0] ?? null;
}

function nextEvaluation(instance: Instance): { kind: "F"; microBatch: number; slot: null } | null {
  const microBatch = instance.evalLeft.find((m) => instance.evalReady.includes(m));
  return microBatch === undefined ? null : { kind: "F", microBatch, slot: null };
}

/** Marks a finished operation and derives its communication from the data dependencies. */
export function finishOp(
  context: RoundContext,
  end: { instance: Instance; job: OpJob; result: JobResult; out: PeerEffect[] },
): void {
  const { instance, job, result, out } = end;
  if (job.kind === "F" && result.loss !== undefined) instance.losses[job.microBatch] = result.loss;
  if (job.kind === "F") sendBoundary(context, { ...end, kind: "activation", to: job.stage + 1 });
  if (job.kind === "B") sendBoundary(context, { ...end, kind: "gradient", to: job.stage - 1 });
  if (job.pass === "eval") return finishEvaluation(context, instance, { job, out });
  assert(instance.progress !== null, "a training operation without progress");
  opDone(instance.progress, { kind: job.kind, microBatch: job.microBatch });
  if (finished(instance.progress)) sendParts(context, instance, out);
}

function sendBoundary(
  context: RoundContext,
  end: { job: OpJob; kind: "activation" | "gradient"; to: number; out: PeerEffect[] },
): void {
  const { state, view } = context;
  const target = view.stages[end.to];
  if (target === undefined) return;
  const to = ownerOf(target, end.job.microBatch, state.config.gradient_accumulation_steps);
  assert(to !== null, `nobody owns micro-batch ${end.job.microBatch} of stage ${end.to}`);
  const { gen, pass, step, stage, microBatch } = end.job;
  const frame: FrameOut = {
    to,
    kind: end.kind,
    gen,
    pass,
    step,
    fromStage: stage,
    toStage: end.to,
    microBatch,
    set: [],
  };
  end.out.push({ do: "send", frame });
}

function finishEvaluation(
  context: RoundContext,
  instance: Instance,
  end: { job: OpJob; out: PeerEffect[] },
): void {
  instance.evalLeft = instance.evalLeft.filter((m) => m !== end.job.microBatch);
  if (instance.evalLeft.length > 0 || !instance.plan.head) return;
  const losses = Object.values(instance.losses);
  const { gen } = context.state;
  const lossSum = losses.reduce((sum, loss) => sum + loss, 0);
  const stage = instance.plan.index;
  const { step } = end.job;
  end.out.push({
    do: "say",
    message: { type: "evaluated", gen, step, stage, lossSum, lossCount: losses.length },
  });
}

/** The own share of a step is complete: its integer sum goes to the other replicas of the stage. */
function sendParts(context: RoundContext, instance: Instance, out: PeerEffect[]): void {
  const { state, round } = context;
  const stage = instance.plan.index;
  for (const to of partnersAll(instance.plan, state.id)) {
    if (instance.microBatches.length === 0) return;
    const base = { kind: "part" as const, gen: state.gen, pass: round.pass, step: round.step };
    const frame = {
      to,
      ...base,
      fromStage: stage,
      toStage: stage,
      microBatch: 0,
      set: instance.microBatches,
    };
    out.push({ do: "send", frame });
  }
}

/** Every other replica needs the part, those without a share of their own included. */
function partnersAll(stage: StagePlan, self: string): string[] {
  const shared = partners(stage, self);
  const idle = stage.replicas.filter((r) => r.peer !== self && r.microBatches.length === 0).map((r) =>
    r.peer
  );
  return [...shared, ...idle];
}
