// Stages that the organizer wants certain peers to compute: a finished plan with two peers changed about for each wish. Pure. What
// must stay true: a plan with pins covers every layer and micro-batch as before, and nobody's memory is exceeded.
import { predictionAt } from "./rebalance.ts";
import type { Plan, PlannedStage, PlanRequest } from "./planner_types.ts";

/** `stage` is an index of the plan; a plan with fewer stages cannot follow it. */
export interface Pin {
  peer: string;
  stage: number;
}

/** The plan with as many of the wishes as can be, in their order; each is told in a reason, also one that cannot be. */
export function withPins(request: PlanRequest, plan: Plan, pins: readonly Pin[]): Plan {
  return pins.reduce((next, pin, i) => withPin(request, next, { pin, before: pins.slice(0, i) }), plan);
}

function withPin(
  request: PlanRequest,
  plan: Plan,
  { pin, before }: { pin: Pin; before: readonly Pin[] },
): Plan {
  const { peer, stage } = pin;
  const name = request.peers.find((it) => it.id === peer)?.name ?? peer;
  if (!request.peers.some((it) => it.id === peer)) return plan;
  const wanted = plan.stages[stage];
  if (wanted === undefined) {
    return told(
      plan,
      `${name} cannot compute stage ${stage + 1}, where it is pinned: the plan has ${plan.stages.length}.`,
    );
  }
  const done = `${name} computes stage ${stage + 1}: it is pinned there.`;
  if (computes(wanted, peer)) return told(plan, done);
  const settled = new Set(
    before.filter((it) => computes(plan.stages[it.stage], it.peer)).map((it) => it.peer),
  );
  const others = wanted.replicas.map((replica) => replica.peer).filter((other) => !settled.has(other));
  const changed = others.map((other) => ({ other, next: exchanged(request, plan, [peer, other]) }))
    .filter(({ other, next }) => [peer, other].every((it) => hasRoom(request, next, it)))
    .flatMap(({ next }) => {
      const found = predictionAt(request, next);
      return found === null ? [] : [{ ...next, seconds: found.seconds, bubble: found.bubble }];
    });
  const best = changed.toSorted((a, b) => a.seconds - b.seconds)[0];
  if (best !== undefined) return told(best, done);
  const why = others.length === 0
    ? "others are pinned there"
    : "it, or whoever would take its place, has too little memory";
  return told(plan, `${name} cannot compute stage ${stage + 1}, where it is pinned: ${why}.`);
}

function computes(stage: PlannedStage | undefined, peer: string): boolean {
  return stage?.replicas.some((replica) => replica.peer === peer) ?? false;
}

/** Each of the two has the other's part everywhere. */
function exchanged({ peers }: PlanRequest, plan: Plan, [a, b]: [string, string]): Plan {
  const other = (peer: string) => peer === a ? b : peer === b ? a : peer;
  const engineOf = (peer: string) => peers.find((it) => it.id === peer)?.engines[0]?.engine ?? "";
  const stages = plan.stages.map((stage): PlannedStage => ({
    ...stage,
    shadows: stage.shadows.map(other),
    replicas: stage.replicas.map((replica) => {
      const peer = other(replica.peer);
      return peer === replica.peer ? replica : { ...replica, peer, engine: engineOf(peer) };
    }),
  }));
  return { ...plan, stages, spares: plan.spares.map(other) };
}

/** Everything that the peer would hold, shadows included, fits what it offers. */
function hasRoom({ peers, memory }: PlanRequest, plan: Plan, id: string): boolean {
  const { engines: [speed], memoryBytes } = peers.find((peer) => peer.id === id) ??
    { engines: [], memoryBytes: Infinity };
  const held = plan.stages.filter((stage) => computes(stage, id) || stage.shadows.includes(id));
  const bytes = held.map((stage) => {
    return memory(stage, { slots: stage.inflight, recompute: stage.recompute }, speed?.engine ?? "");
  });
  return bytes.reduce((sum, it) => sum + it, 0) <= memoryBytes;
}

/** A plan that was worked out beforehand says it already. */
function told(plan: Plan, reason: string): Plan {
  return plan.reasons.includes(reason) ? plan : { ...plan, reasons: [...plan.reasons, reason] };
}
