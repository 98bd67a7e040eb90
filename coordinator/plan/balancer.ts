// Keeps a run's plan suited to its peers: watches steps, believes speeds anew when stragglers.ts says so, and asks rebalance.ts
// what to change. Pure: state and time in, state and a proposal out. What must stay true: without a verdict, a joining or a
// leaving peer nothing is proposed, so noise never moves a layer.
import { rebalance, type Rebalancing } from "./rebalance.ts";
import type { EngineSpeed, Plan, PlanRequest } from "./planner_types.ts";
import { createWatch, median, observeStep, STEPS_IN_A_ROW, type Verdict, type Watch } from "./stragglers.ts";

/** After a change that moved layers the next one waits this long: its own transfers would be measured as slowness. */
export const COOLDOWN_MS = 30_000;

/** Plain data. */
export interface Balancer {
  watch: Watch;
  /** Per peer, what its operations take over what it measured when it joined; absent = 1. */
  factors: Record<string, number>;
  /** Something changed that has not been weighed yet. */
  pending: boolean;
  /** Everybody's speed was believed anew since the plan last changed. */
  calibrated: boolean;
  /** When layers last moved, on the caller's clock; null = never. */
  movedAt: number | null;
}

export interface StepReport {
  /** Mean seconds of a micro-batch, F + B + W, of each peer that computed in this step. */
  seconds: Readonly<Record<string, number>>;
  nowMs: number;
  horizonSteps: number;
}

export interface BalancerStep {
  balancer: Balancer;
  verdicts: Verdict[];
  /** Null if nothing was weighed; its `rung` is null if nothing is worth changing. */
  rebalancing: Rebalancing | null;
}

export function createBalancer(): Balancer {
  return { watch: createWatch(), factors: {}, pending: false, calibrated: false, movedAt: null };
}

/** Somebody joined, or may leave: the plan is weighed at the next step. */
export function peersChanged(balancer: Balancer): Balancer {
  return { ...balancer, pending: true };
}

/** The request at the speeds that are believed now. */
export function believedRequest(request: PlanRequest, balancer: Balancer): PlanRequest {
  const peers = request.peers.map((peer) => {
    const factor = balancer.factors[peer.id] ?? 1;
    return factor === 1 ? peer : { ...peer, engines: peer.engines.map((speed) => slowed(speed, factor)) };
  });
  return { ...request, peers };
}

function slowed(speed: EngineSpeed, factor: number): EngineSpeed {
  const { forward, backward, weightGrad, overhead = 0 } = speed;
  return {
    // What coding takes is measured, not believed.
    ...{ ...speed, forward: forward * factor, backward: backward * factor },
    ...{ weightGrad: weightGrad * factor, overhead: overhead * factor },
  };
}

/** Layers have moved a moment ago. */
export function isCooling({ movedAt }: Balancer, nowMs: number): boolean {
  return movedAt !== null && nowMs - movedAt < COOLDOWN_MS;
}

/** What the plan takes a peer's micro-batch to last at the believed speeds, as planner_model.ts does (CostModel.seconds). */
type BelievedSeconds = (peer: string) => number;

/** One step's times are looked at, and nothing is decided: what is pending then is weighed by the next stepDone(). */
export function stepSeen(
  balancer: Balancer,
  seconds: StepReport["seconds"],
  believedSeconds: BelievedSeconds,
): { balancer: Balancer; verdicts: Verdict[] } {
  const samples = Object.entries(seconds).map(([peer, measured]) => ({
    ...{ peer, measured, believed: believedSeconds(peer) },
  }));
  const { watch, verdicts } = observeStep(balancer.watch, samples);
  const pending = balancer.pending || verdicts.length > 0;
  return { balancer: believe({ ...balancer, watch, pending }, verdicts), verdicts };
}

/** One step is done: its times are looked at, and what is pending is weighed. */
export function stepDone(
  balancer: Balancer,
  report: StepReport,
  context: { request: PlanRequest; plan: Plan; believedSeconds: BelievedSeconds },
): BalancerStep {
  const { balancer: next, verdicts } = stepSeen(balancer, report.seconds, context.believedSeconds);
  const cooling = isCooling(next, report.nowMs);
  if (!next.pending) return { balancer: next, verdicts, rebalancing: null };
  const { request, plan } = context;
  const rebalancing = rebalance(believedRequest(request, next), plan, {
    horizonSteps: report.horizonSteps,
    // What transfers nothing need not wait.
    ...(cooling ? { rungs: ["shares", "shadow"] as const } : {}),
  });
  const moved = rebalancing.diff !== null && rebalancing.diff.bytes > 0;
  const after: Balancer = {
    ...next,
    // While it cools down, the dearer rungs are still to be weighed.
    pending: cooling,
    movedAt: moved ? report.nowMs : next.movedAt,
    // Shares and stages change what a micro-batch takes, so old samples say nothing about the new plan.
    ...(rebalancing.rung === null ? {} : { watch: createWatch(), calibrated: false }),
  };
  return { balancer: after, verdicts, rebalancing };
}

/**
 * Speeds by what was measured: of the peers with a verdict; and of everybody, where one decision is to be made with the figures
 * of now, or none of them was ever compared with its plan. What is no verdict is no reason to weigh the plan.
 */
function believe(balancer: Balancer, verdicts: readonly Verdict[]): Balancer {
  const { watch: { recent }, factors: before, pending, calibrated } = balancer;
  const measured = Object.entries(recent).filter(([, ratios]) => ratios.length >= STEPS_IN_A_ROW);
  const whole = measured.length > 0 && measured.length === Object.keys(recent).length;
  const all = whole && (pending || !calibrated) ? measured : [];
  const factors = { ...before };
  for (const { peer, factor } of verdicts) factors[peer] = (factors[peer] ?? 1) * factor;
  for (const [peer, ratios] of all) factors[peer] = (factors[peer] ?? 1) * median(ratios);
  if (all.length === 0) return { ...balancer, factors };
  return { ...balancer, factors, calibrated: true, watch: createWatch() };
}
