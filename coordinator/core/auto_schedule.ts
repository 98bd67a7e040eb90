// The schedule of a cut, where the run leaves it to the planner: the dynamic order, or one of the published ones with which a step of
// these very peers is shorter, all by simulation. Pure; whether a better one is worth a new cut is auto_upkeep.ts's. What must
// stay true: another order than the dynamic one is predicted to be clearly faster, its stages are exactly its placement and fit
// what peers offer, and a schedule that changes the training (2bw) is never chosen.
import { isPlaced, type PlacedScheduleId, stagesFor } from "../../peer/schedule/catalogue.ts";
import type { ScheduleId, StagePlan } from "../../peer/wire/run.ts";
import { placedStep } from "../plan/placed_step.ts";
import type { Infeasible, Plan, PlannedStage, PlanRequest } from "../plan/planner_types.ts";
import { predictionAt } from "../plan/rebalance.ts";
import { createFit } from "./fit.ts";
import { placedStages } from "./placed_view.ts";
import type { RequestOptions } from "./plan_request.ts";
import { planOfView } from "./planning.ts";
import type { PeerRecord } from "./run_state.ts";

/** A schedule must take at most this share of the dynamic order's step: it is less patient with surprises. */
export const SCHEDULE_GAIN = 0.97;
/** Orders of more peers than this are not tried: to write them down and simulate them would hold the coordinator up. */
export const TRIED_PEERS_MAX = 32;
/**
 * Operations of all orders that are simulated, each times its devices, since the simulator looks at all of them for every operation.
 * About half a second of processor time.
 */
export const SIMULATED_MAX = 800_000;
/** F, B and W. */
const OPS_PER_MICRO_BATCH = 3;
/** Replicas that compute from which on sums go in shards (peer/wire/view.ts). */
const SHARDED_LEAST = 3;
/** Names in one sentence; a swarm's would fill a page. */
const NAMES_MAX = 4;

/** Orders that take the stages as the planner has placed them. */
const UNPLACED = ["1f1b", "gpipe"] as const;
/** Tried in this order, until the simulator has done its share: those that leave peers idle the least come first. */
const PLACED: readonly PlacedScheduleId[] = [
  ...["dualpipe", "zb-v", "zb-h2", "chimera-doubling", "chimera-halving", "chimera", "zb-h1"] as const,
  ...["interleaved", "breadth-first"] as const,
];

export interface ScheduleRequest extends RequestOptions {
  /** What the planner was asked about these peers. */
  request: PlanRequest;
  /** What the simulator may do for it. Default SIMULATED_MAX. */
  simulated?: number;
}

/** A plan that follows the schedule, or why there is none. */
type Tried = { plan: Plan } | { plan: null; reason: string };

/**
 * The given plan of the dynamic order, or one of another schedule that is at least 3 % faster, if the run's schedule is `auto`. Its first
 * reasons say in seconds what every schedule would take that was tried, and why the others cannot be had.
 */
export function bestSchedule(dynamic: Plan | Infeasible, of: ScheduleRequest): Plan | Infeasible {
  if (of.config.schedule !== "auto" || dynamic.kind === "infeasible") return dynamic;
  const obstacle = obstacleOf(of);
  if (obstacle !== null) {
    return { ...dynamic, reasons: [`Schedule dynamic: ${obstacle}.`, ...dynamic.reasons] };
  }
  const tried = [...unplaced(dynamic, of.request), ...placed(of, exchangeLatency(dynamic, of.request))];
  const plans = [dynamic, ...tried.flatMap(({ plan }) => plan ?? [])];
  const fastest = plans.reduce((best, plan) => plan.seconds < best.seconds ? plan : best);
  const chosen = fastest.seconds <= dynamic.seconds * SCHEDULE_GAIN ? fastest : dynamic;
  const sentences = [choiceSentence(chosen, plans), ...narrowly(chosen, fastest), ...impossible(tried)];
  return {
    ...chosen,
    schedules: plans.map(({ schedule, seconds }) => ({ schedule, seconds })),
    reasons: [...sentences, ...chosen.reasons],
  };
}

/** Why no other order is weighed; null if they are. */
function obstacleOf({ peers, request }: ScheduleRequest): string | null {
  if (peers.length < 2) return "on one peer no order differs from any other";
  const pinned = peers.filter(({ pin }) => pin !== undefined);
  if (pinned.length > 0) {
    return `the others place their stages themselves, and peers are pinned (${names(pinned)})`;
  }
  if (peers.length > TRIED_PEERS_MAX) {
    return `the others are not tried for more than ${TRIED_PEERS_MAX} peers`;
  }
  if (ablePeers(peers, request).length >= 2) return null;
  const unknown = peers.filter((peer) => !knowsALink(peer));
  return unknown.length === 0
    ? "all but one peer are in the background, where nobody holds a stage alone"
    : `the others bear no surprises, and no link was measured yet of some peers (${names(unknown)})`;
}

/** Those that a fixed order may wait for: of known links, and in the foreground if there are others. */
function ablePeers(peers: readonly PeerRecord[], { hiddenAlone = true }: PlanRequest): PeerRecord[] {
  return peers.filter((peer) => knowsALink(peer) && (hiddenAlone || !peer.hidden));
}

/** Its other links are then taken to be like those that it knows. */
function knowsALink({ links = {} }: PeerRecord): boolean {
  return Object.values(links).some(({ rttMs }) => rttMs > 0);
}

function names(peers: readonly PeerRecord[]): string {
  const more = peers.length > NAMES_MAX ? `, and ${peers.length - NAMES_MAX} more` : "";
  return peers.slice(0, NAMES_MAX).map(({ id, name }) => name === "" ? id : name).join(", ") + more;
}

/** The dynamic plan's own stages in the order of others, which know one stage a peer. */
function unplaced(dynamic: Plan, request: PlanRequest): Tried[] {
  const computing = dynamic.stages.flatMap(({ replicas }) => replicas.map(({ peer }) => peer));
  if (new Set(computing).size < computing.length) {
    return [{ plan: null, reason: `${UNPLACED.join(" and ")} have one stage a peer, and two are faster` }];
  }
  return UNPLACED.flatMap((schedule): Tried[] => {
    // The plan's memory was judged when it was made.
    const open = { ...request, memory: () => 0, hiddenAlone: true };
    const found = predictionAt(open, { ...dynamic, schedule });
    if (found === null) return [];
    const { seconds, bubble } = found;
    return [{ plan: { ...dynamic, schedule, seconds, bubble } }];
  });
}

/** The longest way of a stage's sums: one message among its holders, two in shards. The cost model reckons with their bytes alone. */
function exchangeLatency({ stages }: Pick<Plan, "stages">, { link }: PlanRequest): number {
  return Math.max(...stages.map(({ replicas, shadows }) => {
    const computing = replicas.map(({ peer }) => peer);
    const rounds = computing.length < SHARDED_LEAST ? 1 : 2;
    const ways = computing.flatMap((from) => {
      const others = [...computing, ...shadows].filter((to) => to !== from);
      return others.map((to) => link(from, to)?.latency ?? 0);
    });
    return rounds * Math.max(0, ...ways);
  }));
}

/** `ownLatency`: of the dynamic order, which others are compared with. */
function placed(of: ScheduleRequest, ownLatency: number): Tried[] {
  const { spec, config, request, simulated = SIMULATED_MAX } = of;
  const peers = ablePeers(of.peers, request);
  const fit = createFit(spec, config);
  const microBatches = config.gradient_accumulation_steps;
  let left = simulated;
  return PLACED.map((schedule): Tried => {
    const count = stagesFor(schedule, peers.length, config.n_stage);
    const steps = typeof count === "string" ? 0 : count * microBatches * OPS_PER_MICRO_BATCH * peers.length;
    if (steps > left) return { plan: null, reason: `${schedule} has too long an order to try it` };
    const { stages, missing } = placedStages({ spec, config: { ...config, schedule }, peers, fit });
    // Of sizes that it does not have, that of all peers says the most.
    if (stages === null) {
      return { plan: null, reason: typeof count === "string" ? count : named(schedule, missing) };
    }
    left -= steps;
    const plan = planOfPlaced(stages, schedule, of);
    if (plan === null) return { plan: null, reason: `${schedule} loses its order here` };
    return { plan: { ...plan, seconds: plan.seconds + exchangeLatency(plan, request) - ownLatency } };
  });
}

function named(schedule: ScheduleId, sentence: string): string {
  return sentence.startsWith(`${schedule} `) ? sentence : `${schedule}: ${sentence}`;
}

function planOfPlaced(
  stages: StagePlan[],
  schedule: PlacedScheduleId,
  { config, peers, request }: ScheduleRequest,
): Plan | null {
  const codecs = { codecForward: config.codec_forward, codecBackward: config.codec_backward };
  const view = { ...{ gen: 0, cut: 0, baseStep: 0, stages, schedule }, ...codecs };
  const found = placedStep(request, view);
  if (found === null) return null;
  const plan = planOfView(view);
  const held = new Set(stages.flatMap(({ replicas }) => replicas.map(({ peer }) => peer)));
  const spares = peers.filter(({ id }) => !held.has(id));
  const devices = new Set(plan.stages.flatMap(({ replicas }) => replicas.map(({ peer }) => peer))).size;
  const idle = spares.length === 0 ? [] : [`${names(spares)}: no part in it.`];
  return {
    ...{ ...plan, ...found, stages: plan.stages.map((stage) => withBytes(stage, { peers, request })) },
    spares: spares.map(({ id }) => id),
    reasons: [`${stages.length} stages on ${devices} peers, as ${schedule} places them.`, ...idle],
  };
}

/** Engines, and the most that a holder allocates for the stage. */
function withBytes(
  stage: PlannedStage,
  { peers, request }: Pick<ScheduleRequest, "peers" | "request">,
): PlannedStage {
  const engineOf = (id: string) => peers.find((peer) => peer.id === id)?.engine ?? "";
  const run = { slots: stage.inflight, recompute: stage.recompute };
  const holders = [...stage.replicas.map(({ peer }) => peer), ...stage.shadows];
  return {
    ...stage,
    replicas: stage.replicas.map((replica) => ({ ...replica, engine: engineOf(replica.peer) })),
    bytes: Math.max(...holders.map((id) => request.memory(stage, run, engineOf(id)))),
  };
}

function choiceSentence(chosen: Plan, plans: readonly Plan[]): string {
  const others = plans.filter((plan) => plan !== chosen).toSorted((a, b) => a.seconds - b.seconds)
    .map(({ schedule, seconds }) => `${schedule} ${inSeconds(seconds)}`);
  const rest = others.length === 0 ? "" : `; ${others.join(", ")}`;
  return `Schedule ${chosen.schedule}: ${inSeconds(chosen.seconds)} per step${rest}.`;
}

function inSeconds(seconds: number): string {
  return `${seconds.toPrecision(3)} s`;
}

/** Why a faster one is not taken. */
function narrowly(chosen: Plan, fastest: Plan): string[] {
  if (fastest === chosen) return [];
  const gain = (100 * (1 - fastest.seconds / chosen.seconds)).toFixed(1);
  const least = (100 * (1 - SCHEDULE_GAIN)).toFixed(0);
  return [
    `${fastest.schedule} would be ${gain} % faster, and an order that is less patient must be ${least} %.`,
  ];
}

function impossible(tried: readonly Tried[]): string[] {
  const reasons = tried.flatMap((it) => it.plan === null ? [it.reason] : []);
  return reasons.length === 0 ? [] : [`Not here: ${reasons.join("; ")}.`];
}

/** Whether the view's order is one that the planner moves work about in, step by step. */
export function isFixedOrder(schedule: ScheduleId): boolean {
  return isPlaced(schedule) || (UNPLACED as readonly ScheduleId[]).includes(schedule);
}
