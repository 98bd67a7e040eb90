// What a run remembers of its plan: the plan that the present cut began with, what was believed of peers' speeds, what the last
// change promised. Plain data with the few questions that several parts ask of it. Pure. What must stay true: everything here is
// bounded by the number of peers, and losing it costs a better plan, never a step.
import { isPlaced } from "../../peer/schedule/catalogue.ts";
import { followedSchedule } from "../../peer/schedule/placed.ts";
import type { StagePlan, View } from "../../peer/wire/run.ts";
import { codecsAfter, isDelayed, peersOf } from "../../peer/wire/view.ts";
import { type Balancer, createBalancer } from "../plan/balancer.ts";
import { CostModel } from "../plan/planner_model.ts";
import { placedStep } from "../plan/placed_step.ts";
import type { Infeasible, Plan, PlannedStage } from "../plan/planner_types.ts";
import { predictionAt } from "../plan/rebalance.ts";
import { blockMsOf, requestOf } from "./plan_request.ts";
import { predictSteady } from "./predict_step.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";

/** Sentences about changes of the plan that are kept for the pages; the event log has all. */
export const CHANGES_TOLD = 12;

/** Averages of a stage as they were when they were last looked at. */
export interface SeenTimes {
  cut: number;
  microBatches: number;
  /** F + B + W of one micro-batch. */
  ms: number;
}

/** What a change was to bring; told once it has been measured. */
export interface Promised {
  /** What was done, a sentence without its full stop. */
  what: string;
  /** Seconds of a step, measured before; null if nothing was. */
  before: number | null;
  expected: number | null;
  /** Only steps in which this peer computes are of it; null = from the next view on. */
  peer: string | null;
  /** Of steps since, in seconds. */
  took: number[];
  /** The generation that was in force when it was promised. */
  gen: number;
}

/** What to do without one peer, worked out beforehand. */
export interface StandByPlan {
  peer: string;
  /** Which peers and speeds it is for; see planKey. */
  key: string;
  /** Stages with the present cut; null if it would be lost. */
  amendedSeconds: number | null;
  answer: Plan | Infeasible;
  sentence: string;
}

export interface Prepared {
  key: string;
  answer: Plan | Infeasible;
  why: string;
  /** Sequences of a micro-batch that the organizer was shown with it. */
  size?: number;
}

export interface Planning {
  /** The plan with which the present cut began; null if the planner did not make it. */
  plan: Plan | null;
  balancer: Balancer;
  /** By peer and stage. */
  seen: Record<string, SeenTimes>;
  /** Committed steps when the plan was last looked at. */
  lookedAt: number;
  /** Peers in the background then. */
  hidden: string;
  /** The plan was weighed with links as they were measured under the present cut. */
  linksWeighed: boolean;
  /** What schedules take may have changed since they were last compared; only where the planner chooses. */
  scheduleDue: boolean;
  /** Steps overlap, and the next one is not to be opened before the plan was weighed. */
  boundaryDue: boolean;
  /** For the next cut, if the peers are still those. */
  prepared: Prepared | null;
  standBy: StandByPlan[];
  /** What the stand-by plans were made for: they are made anew when it changes. */
  standByFor: string;
  /** When the newest of them was made. */
  standByAt: number;
  promised: Promised | null;
  /** Newest last. */
  changes: string[];
  /** Committed steps when the run went back the last time: those before it are done again, as they were done then. */
  furthest: number;
  /** Seconds of the last committed step. */
  stepS: number | null;
  /** The newest steps; one may have waited for something else. */
  lastS: number[];
}

export function noPlanning(): Planning {
  return {
    ...{ plan: null, balancer: createBalancer(), seen: {}, lookedAt: -1, hidden: "" },
    ...{ linksWeighed: false, scheduleDue: false, boundaryDue: false, prepared: null },
    ...{
      standBy: [],
      standByFor: "",
      standByAt: 0,
      promised: null,
      changes: [],
      furthest: 0,
      stepS: null,
      lastS: [],
    },
  };
}

/** Tells one set of peers from another, as far as the planner is concerned; links change all the time and are not in it. */
export function planKey(s: Pick<RunCoreState, "config">, peers: readonly PeerRecord[]): string {
  const { n_stage, schedule, gradient_accumulation_steps, batch_size, shadows, recompute } = s.config;
  const { chimera_pairs, codec_forward, codec_backward } = s.config;
  const size = [n_stage, gradient_accumulation_steps, batch_size];
  const about = [size, schedule, chimera_pairs, shadows, recompute, codec_forward, codec_backward];
  const each = peers.map((peer) =>
    [peer.id, blockMsOf(peer).toPrecision(3), peer.memoryBytes, peer.hidden, peer.engine, peer.pin].join("/")
  );
  return JSON.stringify([about, each.toSorted()]);
}

/** The answer for these very peers, if it was worked out beforehand. */
export function preparedFor(
  s: RunCoreState,
  peers: readonly PeerRecord[],
): { answer: Plan | Infeasible; why: string } | null {
  const { prepared, standBy } = s.planning;
  if (prepared === null && standBy.length === 0) return null;
  const key = planKey(s, peers);
  if (prepared?.key === key) return prepared;
  const plan = standBy.find((it) => it.key === key);
  return plan === undefined
    ? null
    : { answer: plan.answer, why: `planned beforehand for the loss of ${plan.peer}` };
}

/** A view as a plan, whoever made it: learners hold nothing yet. */
export function planOfView(view: View): Plan {
  const stages = view.stages.map((stage): PlannedStage => plannedStage(stage));
  const codecs = view.stages.slice(1).map((_, boundary) => codecsAfter(view, boundary));
  return {
    ...{ kind: "plan", stages, codecs, spares: [], schedule: view.schedule, seconds: 0, bubble: 0 },
    ...{ schedules: [], batchSuggestion: null, reasons: [] },
  };
}

function plannedStage(stage: StagePlan): PlannedStage {
  const { index, firstLayer, endLayer, embed, head, inflight, recompute = "none", replicas } = stage;
  const holding = replicas.filter((replica) => replica.learning !== true);
  return {
    ...{ index, firstLayer, endLayer, embed, head, inflight, recompute, bytes: 0 },
    replicas: holding.filter(({ microBatches }) => microBatches.length > 0)
      .map(({ peer, microBatches }) => ({ peer, engine: "", microBatches: [...microBatches] })),
    shadows: holding.filter(({ microBatches }) => microBatches.length === 0).map(({ peer }) => peer),
  };
}

export interface StepPrediction {
  /** Of a step of the view as it stands. */
  seconds: number;
  /** Idle share of the computing peers. */
  bubble: number;
}

/** Steps after which a prediction is made anew: links are measured all the time. */
const PREDICTION_STEPS = 16;

/** By view, with the speeds that it was made for: asked for at every status. Only a memo. */
const predictions = new WeakMap<View, { speeds: string; prediction: StepPrediction | null }>();

/** What a step of the present view should take; null without a view, or while a peer of it is not measured. */
export function predictedStep(s: RunCoreState): StepPrediction | null {
  const { view } = s;
  if (view === null) return null;
  const members = peersOf(view).map((id) => s.peers[id]);
  const age = Math.floor(s.committed / PREDICTION_STEPS);
  const traced = s.traces.outsideMs !== null;
  const speeds = [age, traced, ...members.map((peer) => `${peer?.slowdown ?? 1}${peer?.hidden ?? ""}`)]
    .join();
  const known = predictions.get(view);
  if (known?.speeds === speeds) return known.prediction;
  const prediction = predict(s, view);
  predictions.set(view, { speeds, prediction });
  return prediction;
}

/**
 * What a step takes beyond its operations and the exchange of sums, by the traced steps: from the last total that is logged to the
 * next step's first operation. 0 while none was traced.
 */
export function commitSeconds(s: RunCoreState): number {
  const { view, traces: { outsideMs }, spec, config } = s;
  const members = view === null ? [] : peersOf(view).flatMap((id) => s.peers[id] ?? []);
  if (view === null || outsideMs === null || members.some((peer) => !(peer.blockMs > 0))) return 0;
  const model = new CostModel(requestOf({ spec, config, peers: members }));
  const index = new Map(members.map(({ id }, i) => [id, i]));
  const exchanges = planOfView(view).stages.map(({ firstLayer, endLayer, replicas }) => {
    const computing = replicas.flatMap(({ peer }) => index.get(peer) ?? []);
    return computing.length === 0 ? 0 : model.syncSeconds(computing, firstLayer, endLayer);
  });
  return Math.max(0, outsideMs / 1000 - Math.max(0, ...exchanges));
}

function predict(s: RunCoreState, view: View): StepPrediction | null {
  if (isDelayed(view)) return predictSteady(s);
  const { spec, config, peers } = s;
  const members = peersOf(view).flatMap((id) => peers[id] ?? []);
  if (members.some((peer) => !(peer.blockMs > 0))) return null;
  const request = { ...requestOf({ spec, config, peers: members }), commitSeconds: commitSeconds(s) };
  // What is held fits, and whoever holds a stage alone does: a prediction asks nothing.
  const schedule = followedSchedule(view);
  if (isPlaced(schedule)) return placedStep(request, view);
  const plan = planOfView({ ...view, schedule });
  const found = predictionAt({ ...request, memory: () => 0, hiddenAlone: true }, plan);
  return found === null ? null : { seconds: found.seconds, bubble: found.bubble };
}
