// A view arrives: either a new cut of the layers, where everything begins from its source, or an amendment, where states,
// engines, finished micro-batches and retained frames go on and only what somebody gone owed is done by others.
// What must stay true: an amendment during a step only adds micro-batches to a share, it never takes finished ones away.
import type { StateSource } from "../wire/control.ts";
import { assert } from "../wire/errors.ts";
import type { StagePlan, View } from "../wire/run.ts";
import {
  holds,
  neighboursOf,
  ownerOf,
  roundOrder,
  shareOf,
  stagesOf,
  tiedPartner,
  tiedReceivers,
} from "../wire/view.ts";
import { activationArrived, gradientArrived, progressFromView, takeOver } from "../schedule/executor.ts";
import { isExpected, isOfOneView } from "./accept.ts";
import type { FrameOut, Instance, PeerEffect, PeerState, StepWork } from "./peer_state.ts";
import { boundaryFrame, deliver } from "./round.ts";
import { sendSums } from "./sums.ts";
import { loggedOf, push, tiedFrame } from "./totals.ts";

export function onView(
  state: PeerState,
  event: { view: View; source: StateSource | null },
  out: PeerEffect[],
): void {
  const { view } = event;
  if (view.gen <= state.gen) return;
  if (state.view?.cut === view.cut) return amend(state, view, out);
  // An amendment of a cut that this peer never had a part in may still make it a learner.
  begin(state, event, out);
}

/** A new cut: nothing of the old one counts any more. */
function begin(
  state: PeerState,
  { view, source }: { view: View; source: StateSource | null },
  out: PeerEffect[],
): void {
  const mine = stagesOf(view, state.id);
  if (view.config !== undefined) state.config = view.config;
  Object.assign(state, { view, gen: view.gen, committed: view.baseStep, commits: {}, open: null });
  Object.assign(state, { readySent: false, pendingSnapshots: [], arrived: [], jobs: [], linkFailures: {} });
  state.instances = mine.map((plan) => createInstance(plan, state.id, view.baseStep));
  state.neighbours = neighboursOf(view, state.config, state.id);
  const whole = state.instances.filter((it) => it.step !== null).map((it) => it.plan.index);
  state.loaded = whole.length === 0;
  // A load job replaces what was held; without one it has to go by itself.
  state.releases = whole.length === 0 ? ["all"] : [];
  if (mine.length === 0) return;
  out.push({ do: "connect", peers: state.neighbours.map((peer) => ({ peer, initiator: state.id < peer })) });
  if (whole.length > 0) push(state, { job: "load", view, source, stages: whole });
}

function createInstance(plan: StagePlan, peer: string, baseStep: number): Instance {
  const replica = plan.replicas.find((it) => it.peer === peer)!;
  const step = replica.learning === true ? null : baseStep;
  const { microBatches } = replica;
  const engine = step !== null && microBatches.length > 0 ? "ready" : "none";
  const { optimizer = "exact" } = plan;
  const rest = { work: null, ahead: null, evaluation: null, applying: false, fetching: false, adopt: null };
  return { plan, microBatches, step, engine, optimizer, oldest: baseStep, ...rest };
}

function amend(state: PeerState, view: View, out: PeerEffect[]): void {
  const before = state.view!;
  Object.assign(state, { view, gen: view.gen });
  if (state.instances.length === 0) Object.assign(state, { committed: view.baseStep, commits: {} });
  // The coordinator opens an evaluation anew; a training step goes on.
  if (state.open?.pass === "eval") state.open = null;
  for (const { plan } of state.instances) {
    if (!holds(view.stages[plan.index], state.id)) state.releases.push(plan.index);
  }
  state.instances = stagesOf(view, state.id).map((plan) => {
    const old = state.instances.find((it) => it.plan.index === plan.index);
    // A learner starts without a state, whatever the step.
    if (old === undefined) return createInstance(asLearner(plan, state.id), state.id, view.baseStep);
    return Object.assign(old, { plan, microBatches: shareOf(plan, state.id) });
  });
  const held = new Set(state.instances.map((it) => it.plan.index));
  state.jobs = state.jobs.filter((job) => job.job === "load" || held.has(job.stage));
  connectNew(state, out);
  judgeEarly(state);
  for (const instance of state.instances) amendInstance(state, instance, { before, out });
}

function asLearner(plan: StagePlan, peer: string): StagePlan {
  const replicas = plan.replicas.map((it) => it.peer === peer ? { ...it, learning: true } : it);
  return { ...plan, replicas };
}

function connectNew(state: PeerState, out: PeerEffect[]): void {
  const known = state.neighbours;
  state.neighbours = neighboursOf(state.view!, state.config, state.id);
  const gone = known.filter((peer) => !state.neighbours.includes(peer));
  if (gone.length > 0) out.push({ do: "disconnect", peers: gone });
  // A neighbour that could not be reached gets another chance with every view.
  const missing = state.neighbours.filter((peer) => !state.links.includes(peer));
  const fresh = missing.filter((peer) => !known.includes(peer) || state.linkFailures[peer] !== undefined);
  for (const peer of [...gone, ...fresh]) delete state.linkFailures[peer];
  for (const peer of fresh) state.linkFailures[peer] = 0;
  if (fresh.length > 0) {
    out.push({ do: "connect", peers: fresh.map((peer) => ({ peer, initiator: state.id < peer })) });
  }
}

/** Sums and evaluations of older generations are void; those that came before their view are judged now. */
function judgeEarly(state: PeerState): void {
  const present: typeof state.arrived = [];
  const early: typeof state.arrived = [];
  // The payloads of a stage that is let go of go with it.
  const held = new Set(state.instances.map((it) => it.plan.index));
  for (const frame of state.arrived.filter((it) => held.has(it.stage))) {
    if (!isOfOneView(frame)) present.push(frame);
    else if (frame.gen > state.gen) early.push(frame);
    else if (frame.gen === state.gen && isExpected(state, frame)) present.push(frame);
  }
  state.arrived = [...present, ...early];
}

function amendInstance(
  state: PeerState,
  instance: Instance,
  { before, out }: { before: View; out: PeerEffect[] },
): void {
  // Whoever had the total may be the one that is gone; if not, it will be named again.
  Object.assign(instance, { evaluation: null, adopt: null });
  if (instance.microBatches.length > 0 && instance.step !== null) wantEngine(state, instance);
  const { work, ahead } = instance;
  const fresh = (frame: FrameOut) => !wasOwner(state, before, frame);
  if (ahead !== null && state.commits[ahead.step] === undefined) {
    extendShare(state, instance, ahead);
    resend(state, instance, { work: ahead, out, wants: fresh });
  }
  if (work === null || work.step !== instance.step || instance.applying) return;
  if (state.commits[work.step] !== undefined) return;
  Object.assign(work, { parts: [], shards: [], tiedFrom: null, wanted: null });
  // Whoever was to send it may be gone, and others may need a shard of this peer: it adds up again, unless it is told to wait.
  if (["summing", "summed", "asked"].includes(work.total)) work.total = "none";
  for (const frame of state.arrived) if (isOfOneView(frame)) deliver(state, instance, frame);
  extendShare(state, instance, work);
  resend(state, instance, { work, out, wants: fresh });
  // A coordinator that has restarted does not know; it tells the others, who then need not add up.
  if (work.total === "logged") out.push({ do: "say", message: loggedOf(state, instance) });
}

/** Builds it, or brings a shadow's up to date. */
export function wantEngine(state: PeerState, instance: Instance): void {
  if (instance.engine === "ready" || instance.engine === "building") return;
  instance.engine = "building";
  push(state, { job: "engine", stage: instance.plan.index, plan: instance.plan, view: state.view! });
}

function extendShare(state: PeerState, instance: Instance, work: StepWork): void {
  const had = work.progress?.cells.map((cell) => cell.microBatch) ?? [];
  assert(had.every((m) => instance.microBatches.includes(m)), "an open step lost micro-batches of a share");
  const fresh = instance.microBatches.filter((m) => !had.includes(m));
  work.progress ??= instance.microBatches.length === 0
    ? null
    : progressFromView(state.view!, instance.plan.index, state.id);
  if (work.progress === null) return;
  takeOver(work.progress, fresh);
  work.takenOver.push(...fresh);
  for (const frame of state.arrived) {
    if (frame.stage !== instance.plan.index || frame.order !== roundOrder("train", work.step)) continue;
    if (frame.kind === "activation") activationArrived(work.progress, frame.microBatch);
    if (frame.kind === "gradient") gradientArrived(work.progress, frame.microBatch);
  }
}

/** Whether the receiver of a frame had the same micro-batch before, and so has been sent it. */
function wasOwner(state: PeerState, before: View, frame: FrameOut): boolean {
  const stage = before.stages[frame.toStage];
  return stage !== undefined &&
    ownerOf(stage, frame.microBatch, state.config.gradient_accumulation_steps) === frame.to;
}

/** Sends retained boundary tensors of an open step once more. */
function resend(
  state: PeerState,
  instance: Instance,
  { work, out, wants }: { work: StepWork; out: PeerEffect[]; wants: (frame: FrameOut) => boolean },
): void {
  const { step } = work;
  for (const cell of work.progress?.cells ?? []) {
    const done = { none: [], F: ["F"], B: ["F", "B"], W: ["F", "B"] } as const;
    for (const kind of done[cell.done]) {
      const frame = boundaryFrame(state, {
        ...{ instance, kind, microBatch: cell.microBatch, step, recovery: true },
      });
      if (frame !== null && wants(frame)) out.push({ do: "send", frame });
    }
  }
}

/** A broken link is open again: whatever of the open step was sent over it may be lost. */
export function onLinkAgain(state: PeerState, peer: string, out: PeerEffect[]): void {
  for (const instance of state.instances) {
    const { work, ahead, plan } = instance;
    const wants = (frame: FrameOut) => frame.to === peer;
    if (ahead !== null && state.commits[ahead.step] === undefined) {
      resend(state, instance, { work: ahead, out, wants });
    }
    if (work === null || work.step !== instance.step || instance.applying) continue;
    if (work.total === "asked") {
      const base = { cut: state.view!.cut, step: work.step, stage: plan.index };
      out.push({ do: "say", message: { type: "want-total", ...base } });
    }
    if (state.commits[work.step] !== undefined) continue;
    resend(state, instance, { work, out, wants });
    const near = plan.replicas.some((replica) => replica.peer === peer);
    if (near) sendSums(state, instance, { out, peers: [peer], recovery: true });
    const partner = tiedPartner(state.view!, state.config, plan.index);
    if (
      partner !== null && work.tiedGen === state.gen && tiedReceivers(plan, partner, state.id).includes(peer)
    ) {
      const to = { to: peer, toStage: partner.index, recovery: true };
      out.push({ do: "send", frame: tiedFrame(state, instance, to) });
    }
  }
  resendEvaluation(state, peer, out);
}

/** Forward-only frames too are kept until their round ends. */
function resendEvaluation(state: PeerState, peer: string, out: PeerEffect[]): void {
  for (const instance of state.instances) {
    const { evaluation } = instance;
    if (evaluation === null || evaluation.step !== instance.step || evaluation.gen !== state.gen) continue;
    for (const microBatch of evaluation.done) {
      const frame = boundaryFrame(state, { instance, kind: "F", microBatch, recovery: true });
      if (frame?.to === peer) out.push({ do: "send", frame: { ...frame, pass: "eval" } });
    }
  }
}
