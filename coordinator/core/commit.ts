// Step accounting: which totals count, when a step is committed, when an evaluation is complete. Pure; mutates the turn's state.
// What must stay true: a step is committed once, when at least two holders of every stage (all of them, if there are fewer)
// have logged the same total, and all who computed have proved their states; it is durable before anybody hears of it.
import type { PeerMessage } from "../../peer/wire/control.ts";
import { learningRate } from "../../peer/model/schedule.ts";
import type { ReplicaPlan } from "../../peer/wire/run.ts";
import type { LossPoint } from "../../peer/wire/status.ts";
import { holds, peersOf } from "../../peer/wire/view.ts";
import { afterBoundary, goOn } from "./boundary.ts";
import { isHolder, isOfFormer, liveHolders } from "./holders.ts";
import { judgeOverflow, withLossScale } from "./loss_scale.ts";
import type { RunCoreState, StepReport } from "./run_state.ts";
import { accountStalls } from "./stalls.ts";
import { adoptWinner, settleRequests, winnerOf } from "./totals.ts";
import { stepFigures, traceCommitted } from "./trace.ts";
import { note, type Turn } from "./turn.ts";

/** Holders that must have a step's total before it counts as done: then any single loss leaves one. */
const LOGGED_LEAST = 2;
/** Steps by the quickest of which a change's gain is judged. */
const LAST_STEPS = 3;
/** Weight of the newest step in the moving average of the step time. */
const STEP_TIME_WEIGHT = 0.2;
/** Points of the loss curve kept for the pages; beyond it every second older one goes. metrics.jsonl keeps all. */
const LOSS_POINTS_MAX = 1_200;
/** Committed steps whose loggers and state hashes are remembered, for holders that are a little behind. */
export const STEPS_REMEMBERED = 64;

type Logged = PeerMessage & { type: "logged" };
type Evaluated = PeerMessage & { type: "evaluated" };

/** Notes a holder's total; true if it counts. The first hash of a stage wins; who has another one gets the winner's. */
export function recordLogged(turn: Turn, peer: string, message: Logged): boolean {
  const { s } = turn;
  const { stage, hash, gradNormSq } = message;
  const open = s.phase === "round" && s.round?.pass === "train" && s.round.step === message.step;
  if (message.cut !== s.view?.cut || !open || !isHolder(s, stage, peer)) return false;
  if (isOfFormer(s, peer, message)) return false;
  const logged = s.logged[stage] ??= {};
  const winner = winnerOf(logged);
  if (winner !== null && winner !== hash) {
    s.suspects[peer] = (s.suspects[peer] ?? 0) + 1;
    const what = `total of stage ${stage} in step ${message.step}`;
    note(turn, "suspect", `${peer} has another ${what}; it takes the first one over`);
    adoptWinner(turn, peer, { stage, hash: winner });
    return false;
  }
  logged[peer] = { hash, gradNormSq, nonFinite: message.nonFinite };
  if (message.nonFinite > 0 && s.config.dtype !== "f16") {
    note(turn, "warning", `${message.nonFinite} non-finite gradients from ${peer}, counted as 0`);
  }
  if (s.amendedStep === message.step) spreadWinner(turn, stage);
  settleRequests(turn);
  return true;
}

/** After a departure the others need not compute again what one holder has complete. */
function spreadWinner(turn: Turn, stage: number): void {
  const { s } = turn;
  const logged = s.logged[stage] ?? {};
  const hash = winnerOf(logged);
  if (hash === null) return;
  for (const { peer } of liveHolders(s, s.view!.stages[stage]!)) {
    if (logged[peer] === undefined) adoptWinner(turn, peer, { stage, hash });
  }
}

/** A step that was amended after some holders had logged it. */
export function spreadWinners(turn: Turn): void {
  for (const stage of turn.s.view?.stages ?? []) spreadWinner(turn, stage.index);
}

/** Commits the open step once enough holders of every stage have logged it. */
export function commitIfComplete(turn: Turn): void {
  const { s } = turn;
  if (s.view === null || s.round?.pass !== "train" || s.dispute !== null) return;
  for (const stage of s.view.stages) {
    const holders = liveHolders(s, stage);
    const logged = holders.filter((replica) => s.logged[stage.index]?.[replica.peer] !== undefined);
    if (logged.length < Math.min(LOGGED_LEAST, holders.length) || logged.length === 0) return;
    if (!holders.every((replica) => isProved(s, stage.index, replica))) return;
  }
  commit(turn, s.round.step);
}

/**
 * Whoever computes in a step has told, before it is committed, what its state was then: a wrong one made wrong gradients, and is
 * put out together with the step. It costs no time: the hash is said before the first operation.
 */
function isProved(s: RunCoreState, stage: number, { peer, microBatches }: ReplicaPlan): boolean {
  if (microBatches.length === 0 || s.committed === s.cutBase) return true;
  return (s.applied[peer]?.[stage] ?? -1) >= s.committed - 1;
}

function commit(turn: Turn, step: number): void {
  const { s } = turn;
  const view = s.view!;
  const totals = view.stages.map((stage) => Object.values(s.logged[stage.index]!)[0]!);
  const hashes = totals.map((total) => total.hash);
  const gradNormSq = totals.reduce((sum, total) => sum + total.gradNormSq, 0);
  const { cut } = view;
  const { skip, lossScale } = judgeOverflow(turn);
  const said = { cut, step, gradNormSq, hashes, ...(skip ? { skip } : {}) };
  const scaled = lossScale === undefined ? {} : { lossScale };
  turn.out.push({ do: "persist", record: { kind: "commit", gen: s.gen, ...said, ...scaled } });
  s.lossScales = withLossScale(s.lossScales, { step, ...scaled });
  note(turn, "commit", `step ${step} committed`, { step, gen: s.gen, hashes });
  const message = { type: "commit" as const, ...said };
  for (const peer of peersOf(view)) turn.out.push({ do: "send", peer, message });
  s.loggers[step] = Object.fromEntries(
    view.stages.map((stage) => [stage.index, Object.keys(s.logged[stage.index]!)]),
  );
  traceCommitted(turn);
  account(turn, Math.sqrt(gradNormSq));
  const ahead = s.round?.ahead === true;
  Object.assign(s, { committed: step + 1, logged: {}, round: null, barren: 0, lastCommit: message });
  delete s.loggers[step - STEPS_REMEMBERED];
  delete s.stateHashes[step - STEPS_REMEMBERED];
  delete s.stateTold[step - STEPS_REMEMBERED];
  if (ahead) goOn(turn);
  else afterBoundary(turn);
}

function account(turn: Turn, gradNorm: number): void {
  const { s, now } = turn;
  const { config } = s;
  const took = now - s.lastCommitAt;
  accountStalls(turn, took);
  s.planning.stepS = took / 1000;
  s.planning.lastS = [...s.planning.lastS, took / 1000].slice(-LAST_STEPS);
  s.stepMs = s.stepMs === 0 ? took : s.stepMs + STEP_TIME_WEIGHT * (took - s.stepMs);
  const tokens = config.gradient_accumulation_steps * config.batch_size * config.block_size;
  Object.assign(s, { gradNorm, lastCommitAt: now, tokensTotal: s.tokensTotal + tokens });
  const losses = s.report?.step === s.committed ? s.report.losses : {};
  reportStep(turn);
  s.report = {
    ...{ step: s.committed, losses, lr: learningRate(config, s.committed), gradNorm, committed: true },
    ...{ tokensPerS: tokensPerSecond(turn), peers: peersOf(s.view!).length },
    figures: { step_s: took / 1000, ...stepFigures(s) },
  };
  reportIfWhole(turn);
}

/** Losses of some micro-batches of a step; a replica tells all of its own each time. */
export function recordLosses(turn: Turn, peer: string, message: PeerMessage & { type: "losses" }): void {
  const { s } = turn;
  const { step, stage, microBatches, losses } = message;
  const last = s.view?.stages.at(-1);
  if (message.cut !== s.view?.cut || stage !== last?.index || !holds(last, peer)) return;
  if (step > s.committed) return;
  if (s.report === null || s.report.step < step) {
    reportStep(turn);
    const later = { lr: 0, gradNorm: 0, tokensPerS: 0, peers: 0, figures: { step_s: 0 } };
    s.report = { step, losses: {}, committed: false, ...later };
  }
  if (s.report.step !== step) return;
  for (const [i, m] of microBatches.entries()) {
    const loss = losses[i];
    if (loss !== undefined && m < s.config.gradient_accumulation_steps) s.report.losses[m] = loss;
  }
  reportIfWhole(turn);
}

function reportIfWhole(turn: Turn): void {
  const { report, config } = turn.s;
  const whole = Object.keys(report?.losses ?? {}).length >= config.gradient_accumulation_steps;
  if (report?.committed && whole) reportStep(turn);
}

/** The line of a committed step, complete or as complete as it will ever be. */
export function reportStep(turn: Turn): void {
  const { s } = turn;
  const { report } = s;
  if (report === null || !report.committed) return;
  s.report = null;
  const losses = Object.values(report.losses);
  const whole = losses.length >= s.config.gradient_accumulation_steps;
  // Summed in the order of micro-batches, so that the curve does not depend on who computed what. Who died before telling
  // its losses leaves a gap in the curve rather than a wrong point.
  const loss = whole ? losses.reduce((sum, value) => sum + value, 0) / losses.length : NaN;
  const step = report.step + 1;
  if (whole) {
    s.trainLoss = loss;
    addLoss(s.losses, { step, train: loss });
  }
  const line = {
    event: "step" as const,
    step,
    "train/loss": loss,
    lr: report.lr,
    grad_norm: report.gradNorm,
  };
  const { tokensPerS: tokens_per_s, peers, figures } = report;
  turn.out.push({ do: "report", line: { ...line, tokens_per_s, peers, ...figures } });
}

export type { StepReport };

export function tokensPerSecond(turn: Pick<Turn, "s">): number {
  const { config, stepMs } = turn.s;
  const tokens = config.gradient_accumulation_steps * config.batch_size * config.block_size;
  return stepMs > 0 ? tokens / (stepMs / 1000) : 0;
}

function addLoss(losses: LossPoint[], point: LossPoint): void {
  const same = losses.find((it) => it.step === point.step);
  if (same !== undefined) Object.assign(same, point);
  else losses.push(point);
  if (losses.length <= LOSS_POINTS_MAX) return;
  const kept = losses.filter((it, i) => i % 2 === 1 || it.val !== undefined || i > losses.length / 2);
  losses.splice(0, losses.length, ...kept);
}

/** Notes a last-stage replica's evaluation; true once all of them have told theirs. */
export function recordEvaluation(turn: Turn, peer: string, message: Evaluated): boolean {
  const { s } = turn;
  const open = s.phase === "round" && s.round?.pass === "eval" && s.round.step === message.step;
  const last = s.view?.stages.at(-1);
  const expected = last?.index === message.stage && isHolder(s, message.stage, peer);
  if (message.gen !== s.gen || !open || !expected) return false;
  s.evaluated[peer] = { lossSum: message.lossSum, lossCount: message.lossCount };
  const told = Object.values(s.evaluated);
  if (told.reduce((sum, it) => sum + it.lossCount, 0) < s.config.eval_iters) return false;
  const loss = told.reduce((sum, it) => sum + it.lossSum, 0) / s.config.eval_iters;
  Object.assign(s, {
    valLoss: loss,
    lastEval: message.step,
    evaluated: {},
    round: null,
    lastCommitAt: turn.now,
  });
  addLoss(s.losses, { step: message.step, val: loss });
  turn.out.push({ do: "report", line: { event: "eval", step: message.step, "val/loss": loss } });
  return true;
}
