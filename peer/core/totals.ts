// How a stage's total of a step comes to be at one holder: own sum, parts of the other replicas, the other end of a tied
// embedding, the log, and the commit. One function decides, and may be asked at any time. Invariants: a total is summed
// only over an exact cover; what is applied has the hash that the commit names; a committed total that is not here is
// fetched from a holder, never computed again.
import { finished } from "../schedule/executor.ts";
import type { StagePlan } from "../wire/run.ts";
import { tiedPartner, tiedReceivers } from "../wire/view.ts";
import type { FrameOut, Instance, JobResult, PeerEffect, PeerState } from "./peer_state.ts";
import { exchangeSums, sumFrame } from "./sums.ts";

/** Totals kept for holders that missed a commit by a little. Each costs a sum of the whole stage. */
const LOG_STEPS = 8;
/** While somebody learns the stage, the log reaches back to the state that is on its way to them. */
const LOG_STEPS_LEARNING = 64;

/** Everything that can be done for the instance's step now. */
export function advanceTotal(state: PeerState, instance: Instance, out: PeerEffect[]): void {
  const { work } = instance;
  if (work === null || work.step !== instance.step || instance.applying) return;
  const commit = state.commits[work.step];
  // What is still to be computed of a committed step is needed by nobody.
  if (commit !== undefined) work.progress = null;
  if (instance.ahead !== null && state.commits[instance.ahead.step] !== undefined) {
    instance.ahead.progress = null;
  }
  const own = commit === undefined && isShareDone(instance);
  if (own) {
    tellLosses(state, instance, out);
    exchangeSums(state, instance, out);
  }
  const partner = tiedPartner(state.view!, state.config, instance.plan.index);
  if (partner !== null && commit === undefined) sendTied(state, instance, { partner, out });
  if (work.total === "summed" && (partner === null || work.tiedFrom !== null)) seal(state, instance);
  followAdopt(state, instance, out);
  if (commit !== undefined) followCommit(state, instance, out);
}

/** A shadow has no share, and is done with it. */
function isShareDone({ work, microBatches }: Instance): boolean {
  if (microBatches.length === 0) return true;
  return work!.progress !== null && finished(work!.progress);
}

function tellLosses(state: PeerState, instance: Instance, out: PeerEffect[]): void {
  const work = instance.work!;
  const microBatches = Object.keys(work.losses).map(Number);
  if (!instance.plan.head || microBatches.length === work.lossesTold) return;
  work.lossesTold = microBatches.length;
  out.push({ do: "say", message: lossesOf(state, instance) });
}

function lossesOf(state: PeerState, { work, plan }: Instance) {
  const microBatches = Object.keys(work!.losses).map(Number);
  const losses = Object.values(work!.losses);
  const base = { cut: state.view!.cut, step: work!.step, stage: plan.index };
  return { type: "losses" as const, ...base, microBatches, losses };
}

/**
 * The own end's sum goes to the other end once per view, also from a holder that has its total already: whoever waits for it
 * there may have lost what came under the view before.
 */
function sendTied(
  state: PeerState,
  instance: Instance,
  { partner, out }: { partner: StagePlan; out: PeerEffect[] },
): void {
  const work = instance.work!;
  const known = work.total === "summed" || work.total === "sealing" || work.total === "logged";
  if (!known || work.tiedGen === state.gen) return;
  const recovery = work.tiedGen >= 0;
  work.tiedGen = state.gen;
  for (const to of tiedReceivers(instance.plan, partner, state.id)) {
    out.push({ do: "send", frame: tiedFrame(state, instance, { to, toStage: partner.index, recovery }) });
  }
}

export function tiedFrame(
  state: PeerState,
  instance: Instance,
  part: { to: string; toStage: number; recovery: boolean },
): FrameOut {
  const set = Array.from({ length: state.config.gradient_accumulation_steps }, (_, m) => m);
  return sumFrame(state, instance, { kind: "tied", set, range: null, microBatch: 0, ...part });
}

function seal(state: PeerState, { work, plan }: Instance): void {
  work!.total = "sealing";
  const stage = plan.index;
  push(state, { job: "seal", step: work!.step, stage, tied: work!.tiedFrom, countTied: stage === 0 });
}

/** The step is committed: apply what the commit names, or fetch it. */
function followCommit(state: PeerState, instance: Instance, out: PeerEffect[]): void {
  const work = instance.work!;
  const { gradNormSq, hashes, ...rest } = state.commits[work.step]!;
  const stage = instance.plan.index;
  const hash = hashes[stage]!;
  if (work.total === "logged" && work.hash === hash) {
    instance.applying = true;
    const learning = instance.plan.replicas.some((replica) => replica.learning === true);
    const keep = learning ? LOG_STEPS_LEARNING : LOG_STEPS;
    const upload = instance.microBatches.length > 0 && instance.engine === "ready";
    return push(state, { job: "apply", step: work.step, stage, gradNormSq, upload, keep, ...rest });
  }
  const waits = work.total === "none" || work.total === "summed" || work.total === "logged";
  const known = work.wanted;
  work.wanted = hash;
  if (waits || (work.total === "asked" && known !== hash)) ask(state, instance, out);
}

/** Another holder has the total, and will send it. */
export function ask(state: PeerState, instance: Instance, out: PeerEffect[]): void {
  const work = instance.work!;
  work.total = "asked";
  const message = {
    type: "want-total" as const,
    cut: state.view!.cut,
    step: work.step,
    stage: instance.plan.index,
  };
  out.push({ do: "say", message });
}

/** The coordinator has said which total is the step's before it is committed: who has no or another one asks for it. */
function followAdopt(state: PeerState, instance: Instance, out: PeerEffect[]): void {
  const work = instance.work!;
  // What is being added up may still lack the other end of a tied embedding, which may never come: asked when it is done.
  if (instance.adopt?.step !== work.step || work.total === "summing") return;
  const { hash } = instance.adopt;
  instance.adopt = null;
  work.wanted = hash;
  const has = work.total === "logged" && work.hash === hash;
  // It was said before this peer counted as a holder, or the coordinator would not name it again.
  if (has) out.push({ do: "say", message: loggedOf(state, instance) });
  else if (["none", "summed", "logged"].includes(work.total)) ask(state, instance, out);
}

/** "sealing" or "installing" has ended with a hash. */
export function onTotal(
  state: PeerState,
  instance: Instance,
  end: { result: JobResult; out: PeerEffect[] },
): void {
  const work = instance.work!;
  const hash = end.result.hash ?? "";
  if (work.wanted !== null && work.wanted !== hash) return ask(state, instance, end.out);
  const { gradNormSq = 0, saturated = 0, nonFinite = 0 } = end.result;
  Object.assign(work, { total: "logged", hash, facts: { gradNormSq, saturated, nonFinite } });
  end.out.push({ do: "say", message: loggedOf(state, instance) });
}

/** What is said of an own stage is said of it as this view gave it: it may be let go of and learned anew in the same cut. */
export function placeOf({ view, gen }: PeerState): { cut: number; gen: number } {
  return { cut: view!.cut, gen };
}

export function loggedOf(state: PeerState, { work, plan }: Instance) {
  const { hash, facts, step } = work!;
  return { type: "logged" as const, ...placeOf(state), step, stage: plan.index, hash, ...facts };
}

/** What a coordinator that was away may not have heard. */
export function sayAgain(state: PeerState, instance: Instance, out: PeerEffect[]): void {
  const { work, plan, engine } = instance;
  if (engine === "ready" || engine === "stale") {
    out.push({ do: "say", message: { type: "warm", ...placeOf(state), stage: plan.index } });
  }
  if (work === null || work.step !== instance.step || instance.applying) return;
  if (Object.keys(work.losses).length > 0) out.push({ do: "say", message: lossesOf(state, instance) });
  const base = { cut: state.view!.cut, step: work.step, stage: plan.index };
  if (work.total === "asked") out.push({ do: "say", message: { type: "want-total", ...base } });
  if (work.total === "logged") out.push({ do: "say", message: loggedOf(state, instance) });
}

/** Answers a request for a total, from the step at hand or from the log. */
export function sendTotal(
  state: PeerState,
  instance: Instance | undefined,
  wanted: { step: number; stage: number; to: string; out: PeerEffect[] },
): void {
  const { step, stage, to, out } = wanted;
  const { cut } = state.view!;
  const kept = instance?.optimizer === "exact";
  const inLog = kept && instance.step !== null && step >= instance.oldest && step < instance.step;
  const atHand = kept && instance.work?.step === step &&
    (instance.work.total === "logged" || instance.applying);
  if (!inLog && !atHand) {
    return void out.push({ do: "say", message: { type: "no-total", cut, step, stage, to } });
  }
  const set = Array.from({ length: state.config.gradient_accumulation_steps }, (_, m) => m);
  const base = {
    to,
    kind: "total" as const,
    cut,
    gen: state.gen,
    pass: "train" as const,
    step,
    microBatch: 0,
    set,
  };
  out.push({ do: "send", frame: { ...base, fromStage: stage, toStage: stage, range: null, recovery: true } });
}

/**
 * The plan says exact and the state is still on the GPU: it is taken back between two steps. From there on totals are kept for
 * others; those before never were.
 */
export function endGpuOptimizer(state: PeerState, instance: Instance): void {
  const { plan, optimizer, step, work } = instance;
  const due = optimizer === "gpu" && plan.optimizer !== "gpu" && work === null;
  if (!due || step === null) return;
  Object.assign(instance, { optimizer: "exact", oldest: step });
  push(state, { job: "exact", step, stage: plan.index });
}

type WithoutCut<T> = T extends unknown ? Omit<T, "cut"> : never;

export function push(state: PeerState, job: WithoutCut<PeerState["jobs"][number]>): void {
  state.jobs.push({ ...job, cut: state.view!.cut } as PeerState["jobs"][number]);
}
