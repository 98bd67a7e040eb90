// From a layout to what its step would take: shares dealt out, in-flight caps, the simulator, the exchange of sums. Pure.
// The simulator runs the very executor that peers run, so a plan is judged by what will happen, not by the cost model.
import { INFLIGHT_SLACK } from "../../peer/schedule/windows.ts";
import type { RecomputeId, ScheduleId } from "../../peer/wire/run.ts";
import { type SimulatedStage, simulatePipeline } from "./dynamic.ts";
import type { Network } from "./network.ts";
import type { CostModel, GroupStage, StageOption } from "./planner_model.ts";
import type { Candidate } from "./planner_search.ts";
import { FinishQueue } from "./planner_shares.ts";
import type { BoundaryCodecs } from "./planner_types.ts";
import type { Jitter, Simulation } from "./simulate.ts";

export interface Prediction {
  schedule: ScheduleId;
  /** Of a step, exchange of sums and commit included. */
  seconds: number;
  bubble: number;
  stages: PredictedStage[];
  simulation: Simulation;
}

export interface PredictedStage {
  stage: GroupStage;
  recompute: RecomputeId;
  inflight: number;
  /** Ascending micro-batches of each member of the group. */
  shares: number[][];
}

export interface PredictOptions {
  /** Per boundary. Default: the configuration's. */
  codecs?: readonly BoundaryCodecs[];
  jitter?: Jitter;
  /** Shares and caps to keep instead of the best ones. */
  stages?: readonly PredictedStage[];
  /** With the longest latencies that there may be. Default false. */
  doubtful?: boolean;
}

export function predict(
  model: CostModel,
  candidate: Pick<Candidate, "stages" | "cost">,
  schedule: ScheduleId,
  options: PredictOptions = {},
): Prediction {
  const stages = options.stages ?? loads(model, candidate, schedule);
  const devices = stages.flatMap(({ stage, recompute }) =>
    stage.peers.map((peer) => ({ peer, stage, recompute }))
  );
  const load = stagesPerPeer(stages);
  const seconds = (kind: "F" | "B" | "W") => (_: number, device: number) => {
    const { peer, stage, recompute } = devices[device]!;
    return model.opSeconds(peer, stage.first, stage.end, recompute)[kind] * load.get(peer)!;
  };
  const simulation = simulatePipeline(schedule, simulatedStages(stages), {
    seconds: { F: remembered(seconds("F")), B: remembered(seconds("B")), W: remembered(seconds("W")) },
    network: networkOf(model, stages, options),
    // Only the dynamic order lets a weight gradient wait; the fixed ones run it with its backward.
    fusedBackward: false,
    ...(options.jitter === undefined ? {} : { jitter: options.jitter }),
  });
  return {
    ...{ schedule, stages: [...stages], simulation, bubble: simulation.bubble },
    seconds: stepSeconds(model, stages, simulation),
  };
}

/** A shadow that took over may compute a second stage; each then gets its share of the peer's time. */
function stagesPerPeer(stages: readonly PredictedStage[]): Map<number, number> {
  const load = new Map<number, number>();
  for (const { stage, shares } of stages) {
    stage.peers.forEach((peer, i) => load.set(peer, (load.get(peer) ?? 0) + Number(shares[i]!.length > 0)));
  }
  return load;
}

/** A device's seconds are asked for at every operation and never change. */
function remembered(
  of: (stage: number, device: number) => number,
): (stage: number, device: number) => number {
  const known: number[] = [];
  return (stage, device) => known[device] ??= of(stage, device);
}

function simulatedStages(stages: readonly PredictedStage[]): SimulatedStage[] {
  return stages.map(({ inflight, shares }) => ({ inflight, slots: inflight, replicas: shares }));
}

/** Each stage exchanges its sums as soon as its last replica is done; the step ends when all have. */
function stepSeconds(model: CostModel, stages: readonly PredictedStage[], simulation: Simulation): number {
  const ends = new Array<number>(stages.length).fill(0);
  for (const { stage, end } of simulation.trace) ends[stage] = Math.max(ends[stage]!, end);
  const done = stages.map(({ stage }, s) => ends[s]! + stage.sync);
  return Math.max(...done) + (model.request.commitSeconds ?? 0);
}

function networkOf(
  model: CostModel,
  stages: readonly PredictedStage[],
  { codecs, doubtful = false }: PredictOptions,
): Network {
  const { codec_forward, codec_backward } = model.request.config;
  const at = stages.flatMap(({ stage }, index) => stage.peers.map((peer) => ({ peer, index })));
  return {
    mode: "duplex",
    latency: (from, to) => {
      const [one, other] = [at[from]!.peer, at[to]!.peer];
      return doubtful ? model.latencyMost(one, other) : model.latency(one, other);
    },
    transfer: (from, to) => {
      const forth = at[from]!.index < at[to]!.index;
      const boundary = codecs?.[Math.min(at[from]!.index, at[to]!.index)];
      const codec = forth ? boundary?.forward ?? codec_forward : boundary?.backward ?? codec_backward;
      return model.transfer(at[from]!.peer, at[to]!.peer, codec);
    },
  };
}

/** Shares and caps of every stage, at the option that the cost model chose. */
export function loads(
  model: CostModel,
  { stages, cost }: Pick<Candidate, "stages" | "cost">,
  schedule: ScheduleId,
): PredictedStage[] {
  const options = stages.map((stage, s) => stage.options[cost.options[s] ?? 0]!);
  const flights = flightsOf(model, stages, { options, pace: cost.pace });
  // The dynamic order gains from as many slots as stage 0 has: weight gradients that wait keep their activations.
  const most = Math.max(...flights);
  return stages.map((stage, s) => {
    const option = options[s]!;
    const shares = dealt(model, stage, option);
    const largest = Math.max(...shares.map((share) => share.length));
    const wanted = schedule === "gpipe" ? model.N : schedule === "dynamic" ? most : flights[s]!;
    const perReplica = Math.max(1, Math.ceil(wanted * largest / model.N - 1e-9));
    const inflight = Math.min(option.slots, largest, perReplica);
    return { stage, recompute: option.recompute, inflight, shares };
  });
}

/** Micro-batches in flight from each stage on, all replicas together: the round trip in units of the slowest pace, plus slack. */
function flightsOf(
  model: CostModel,
  stages: readonly GroupStage[],
  { options, pace }: { options: readonly StageOption[]; pace: number },
): number[] {
  const flights = new Array<number>(stages.length).fill(1);
  const slowest = Math.max(pace, Number.MIN_VALUE);
  let round = 0;
  for (let s = stages.length - 1; s >= 0; s--) {
    if (s + 1 < stages.length) round += model.hop(stages[s]!.peers, stages[s + 1]!.peers).round;
    round += options[s]!.pass;
    const needed = Math.ceil(round / slowest - 1e-9) + INFLIGHT_SLACK;
    flights[s] = Math.min(model.N, Math.max(needed, stages.length - s));
  }
  return flights;
}

/** By option, which belongs to one group and its layers: most moves of a search leave most groups as they are. */
const known = new WeakMap<StageOption, number[][]>();

/** Micro-batches one by one to whoever would finish first, so that neighbours interleave; counts as in the option. */
function dealt(model: CostModel, stage: GroupStage, option: StageOption): number[][] {
  const before = known.get(option);
  if (before !== undefined) return before;
  const seconds = stage.peers.map((peer) => model.seconds(peer, stage.first, stage.end, option.recompute));
  const shares: number[][] = seconds.map(() => []);
  const queue = new FinishQueue(seconds, seconds.map(() => 0));
  const full = (member: number) => shares[member]!.length >= option.shares[member]!;
  shares.forEach((_, member) => full(member) && queue.close(member));
  for (let m = 0; m < model.N; m++) {
    const next = queue.take();
    shares[next]!.push(m);
    if (full(next)) queue.close(next);
  }
  known.set(option, shares);
  return shares;
}
