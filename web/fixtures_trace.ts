// A traced step for the fixtures: the run of fixtures_data.ts played through with fixed times and delays, so that the picture has
// operations, waits and idle time where a real one has them. Not the simulator; two calls give the same step.
import type { StagePlan } from "../peer/wire/run.ts";
import type { StepTrace, TraceLane, TraceOp } from "../peer/wire/status.ts";

type Wanted = Pick<TraceOp, "kind" | "stage" | "microBatch">;

interface Player {
  peer: string;
  ms: Record<TraceOp["kind"], number>;
  freeAt: number;
  left: Wanted[];
  ops: TraceOp[];
}

const ORDER: TraceOp["kind"][] = ["B", "F", "W"];
/** One way between two peers. */
const LINK_MS = 21;

export interface TraceWish {
  step: number;
  microBatches: number;
  predictedMs: number | null;
  /** Milliseconds of a forward of each computing peer. */
  forwardMs: Record<string, number>;
}

/** Plays the step: each peer takes of what is ready the backward first, then the forward, then the weight gradient. */
export function tracedStep(stages: readonly StagePlan[], wish: TraceWish): StepTrace {
  const players = playersOf(stages, wish.forwardMs);
  const last = stages.length - 1;
  for (let next = best(players, last); next !== null; next = best(players, last)) play(next);
  const endMs = Math.max(...players.map(({ freeAt }) => freeAt));
  const lanes = players.map(({ peer, ops }): TraceLane => ({ peer, ops, dropped: 0, ...sumsOf(ops) }));
  const busy = lanes.reduce((sum, lane) => sum + lane.busyMs, 0);
  const { step, microBatches, predictedMs } = wish;
  return {
    ...{ step, gen: 7, stages: stages.length, microBatches, measuredMs: endMs + 38, predictedMs },
    ...{ bubble: 1 - busy / (lanes.length * (endMs - 2)), startMs: 2, endMs, lanes },
  };
}

function playersOf(stages: readonly StagePlan[], forwardMs: TraceWish["forwardMs"]): Player[] {
  const players = new Map<string, Player>();
  for (const { index: stage, replicas } of stages) {
    for (const { peer, microBatches } of replicas) {
      const F = forwardMs[peer] ?? 10;
      const player = players.get(peer) ??
        { peer, ms: { F, B: F * 1.4, W: F * 1.1 }, freeAt: 2, left: [], ops: [] };
      if (microBatches.length > 0) players.set(peer, player);
      player.left.push(
        ...microBatches.flatMap((microBatch) => ORDER.map((kind) => ({ kind, stage, microBatch }))),
      );
    }
  }
  return [...players.values()];
}

interface Choice {
  player: Player;
  op: Wanted;
  startMs: number;
  sentMs: number;
}

function best(players: Player[], last: number): Choice | null {
  let found: Choice | null = null;
  for (const player of players) {
    for (const op of player.left) {
      const sentMs = readyMs(players, { player, op, from: neighbour(op, last) });
      if (sentMs === null) continue;
      const away = neighbour(op, last) >= 0 ? LINK_MS : 0;
      const startMs = Math.max(player.freeAt, sentMs + away);
      const rank = (choice: Choice) =>
        choice.startMs * 1000 + ORDER.indexOf(choice.op.kind) * 100 + choice.op.microBatch;
      const choice = { player, op, startMs, sentMs };
      if (found === null || rank(choice) < rank(found)) found = choice;
    }
  }
  return found;
}

/** The stage that the operation hears from; -1 = none. */
function neighbour({ kind, stage }: Wanted, last: number): number {
  if (kind === "W") return -1;
  if (kind === "F") return stage - 1;
  return stage === last ? -1 : stage + 1;
}

/** When what the operation needs was made; null while it was not. */
function readyMs(
  players: Player[],
  { player, op, from }: { player: Player; op: Wanted; from: number },
): number | null {
  const made = (ops: TraceOp[], kind: TraceOp["kind"], stage: number) =>
    ops.find((it) => it.kind === kind && it.stage === stage && it.microBatch === op.microBatch)?.endMs ??
      null;
  if (op.kind === "W") return made(player.ops, "B", op.stage);
  const forward = op.kind === "F" ? 0 : made(player.ops, "F", op.stage);
  if (forward === null || from < 0) return forward;
  for (const { ops } of players) {
    const endMs = made(ops, op.kind, from);
    if (endMs !== null) return endMs;
  }
  return null;
}

function play({ player, op, startMs, sentMs }: Choice): void {
  const endMs = startMs + player.ms[op.kind];
  const waitMs = startMs - player.freeAt;
  const linkWaitMs = waitMs === 0 ? 0 : Math.min(waitMs, startMs - sentMs);
  player.ops.push({ ...op, startMs, endMs, waitMs, linkWaitMs });
  player.left.splice(player.left.indexOf(op), 1);
  player.freeAt = endMs;
}

function sumsOf(ops: TraceOp[]): Pick<TraceLane, "busyMs" | "waitMs" | "linkWaitMs"> {
  const sum = (of: (op: TraceOp) => number) => ops.reduce((total, op) => total + of(op), 0);
  return {
    busyMs: sum((op) => op.endMs - op.startMs),
    waitMs: sum((op) => op.waitMs),
    linkWaitMs: sum((op) => op.linkWaitMs),
  };
}
