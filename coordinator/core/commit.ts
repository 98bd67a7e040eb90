// Step accounting: which totals count, when a step is committed, when an evaluation is complete. Pure; mutates the turn's state.
import type { PeerMessage } from "../../peer/wire/control.ts";
import { learningRate } from "../../peer/model/schedule.ts";
import type { LossPoint } from "../../peer/wire/status.ts";
import { peersOf } from "../../peer/wire/view.ts";
import { afterBoundary } from "./boundary.ts";
import { evict } from "./recovery.ts";
import type { LoggedTotal } from "./run_state.ts";
import { note, type Turn } from "./turn.ts";

/** Weight of the newest step in the moving average of the step time. */
const STEP_TIME_WEIGHT = 0.2;
/** Points of the loss curve kept for the pages; beyond it every second older one goes. metrics.jsonl keeps all. */
const LOSS_POINTS_MAX = 1_200;

type Logged = PeerMessage & { type: "logged" };
type Evaluated = PeerMessage & { type: "evaluated" };

/** Notes a replica's total; true if it counts. The first hash of a stage wins, one that differs is put out. */
export function recordLogged(turn: Turn, peer: string, message: Logged): boolean {
  const { s } = turn;
  const open = s.phase === "round" && s.round?.pass === "train" && s.round.step === message.step;
  const holds = s.view?.stages[message.stage]?.replicas.some((replica) => replica.peer === peer);
  if (message.gen !== s.gen || !open || !holds) return false;
  const stage = s.logged[message.stage] ??= {};
  const winner = Object.values(stage)[0];
  if (winner !== undefined && winner.hash !== message.hash) {
    evict(turn, peer, `total of stage ${message.stage} in step ${message.step} differs from the others'`);
    return false;
  }
  const { hash, gradNormSq, lossSum, lossCount } = message;
  stage[peer] = { hash, gradNormSq, lossSum, lossCount };
  if (message.nonFinite > 0) {
    note(turn, "warning", `${message.nonFinite} non-finite gradients from ${peer}, counted as 0`);
  }
  return true;
}

/** Commits the open step once every replica of every stage has logged it. */
export function commitIfComplete(turn: Turn): void {
  const { s } = turn;
  if (s.view === null || s.round === null) return;
  const totals = s.view.stages.map((stage) =>
    stage.replicas.map((replica) => s.logged[stage.index]?.[replica.peer])
  );
  if (!totals.every((stage) => stage.every((total) => total !== undefined))) return;
  const step = s.round.step;
  const gradNormSq = totals.reduce((sum, stage) => sum + (stage[0]?.gradNormSq ?? 0), 0);
  note(turn, "commit", `step ${step} committed`, {
    step,
    gen: s.gen,
    hashes: totals.map((stage) => stage[0]?.hash),
  });
  for (const peer of peersOf(s.view)) {
    turn.out.push({ do: "send", peer, message: { type: "commit", gen: s.gen, step, gradNormSq } });
  }
  account(turn, totals.at(-1)!.filter((total) => total !== undefined), Math.sqrt(gradNormSq));
  Object.assign(s, { committed: step + 1, logged: {}, stateHashes: {}, round: null, barren: 0 });
  afterBoundary(turn);
}

function account(turn: Turn, lossTotals: LoggedTotal[], gradNorm: number): void {
  const { s, now } = turn;
  const { config } = s;
  const count = lossTotals.reduce((sum, total) => sum + total.lossCount, 0);
  const loss = lossTotals.reduce((sum, total) => sum + total.lossSum, 0) / Math.max(1, count);
  const took = now - s.lastCommitAt;
  s.stepMs = s.stepMs === 0 ? took : s.stepMs + STEP_TIME_WEIGHT * (took - s.stepMs);
  const tokens = config.gradient_accumulation_steps * config.batch_size * config.block_size;
  Object.assign(s, { trainLoss: loss, gradNorm, lastCommitAt: now, tokensTotal: s.tokensTotal + tokens });
  const step = s.committed + 1;
  addLoss(s.losses, { step, train: loss });
  const lr = learningRate(config, s.committed);
  const peers = s.view === null ? 0 : peersOf(s.view).length;
  const line = { event: "step" as const, step, "train/loss": loss, lr, grad_norm: gradNorm };
  turn.out.push({ do: "report", line: { ...line, tokens_per_s: tokensPerSecond(turn), peers } });
}

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
  const holds = last?.index === message.stage && last.replicas.some((replica) => replica.peer === peer);
  if (message.gen !== s.gen || !open || !holds) return false;
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
