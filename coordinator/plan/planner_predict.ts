// From a layout to what its step would take: shares dealt out, in-flight caps, the simulator, the exchange of sums. Pure.
// The simulator runs the very executor that peers run, so a plan is judged by what will happen, not by the cost model.
import { INFLIGHT_SLACK } from "../../peer/schedule/windows.ts";
import type { RecomputeId, ScheduleId } from "../../peer/wire/run.ts";
import { type SimulatedStage, simulatePipeline } from "./dynamic.ts";
import type { Network } from "./network.ts";
import type { CostModel, GroupStage, StageOption } from "./planner_model.ts";
import type { Candidate } from "./planner_search.ts";
import { dealOut } from "./planner_shares.ts";
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
  const devices = devicesOf(stages);
  const seconds = (kind: "F" | "B" | "W") => (index: number, device: number) => {
    const { stage, recompute } = stages[index]!;
    return model.opSeconds(devices[device]!, stage.first, stage.end, recompute)[kind];
  };
  const simulation = simulatePipeline(schedule, simulatedStages(stages, devices), {
    seconds: { F: remembered(seconds("F")), B: remembered(seconds("B")), W: remembered(seconds("W")) },
    network: networkOf(model, { stages, devices }, options),
    // Only the dynamic order lets a weight gradient wait; the fixed ones run it with its backward.
    fusedBackward: false,
    ...(options.jitter === undefined ? {} : { jitter: options.jitter }),
  });
  return {
    ...{ schedule, stages: [...stages], simulation, bubble: simulation.bubble },
    seconds: stepSeconds(model, stages, simulation),
  };
}

/** The peer that is each device: one, however many stages it computes. */
function devicesOf(stages: readonly PredictedStage[]): number[] {
  return [...new Set(stages.flatMap(({ stage }) => stage.peers))];
}

/** A device's seconds are asked for at every operation and never change. */
function remembered(
  of: (stage: number, device: number) => number,
): (stage: number, device: number) => number {
  const known: number[][] = [];
  return (stage, device) => (known[stage] ??= [])[device] ??= of(stage, device);
}

function simulatedStages(stages: readonly PredictedStage[], devices: readonly number[]): SimulatedStage[] {
  const at = new Map(devices.map((peer, device) => [peer, device]));
  return stages.map(({ stage, inflight, shares }) => ({
    ...{ inflight, slots: inflight, replicas: shares },
    devices: stage.peers.map((peer) => at.get(peer)!),
  }));
}

/**
 * Each stage exchanges its sums as soon as its last replica is done; the step ends when all have. Whoever is in several stages sends
 * the sums of all of them over one uplink.
 */
function stepSeconds(model: CostModel, stages: readonly PredictedStage[], simulation: Simulation): number {
  const ends = new Array<number>(stages.length).fill(0);
  for (const { stage, end } of simulation.trace) ends[stage] = Math.max(ends[stage]!, end);
  const held = new Map<number, number>();
  for (const peer of stages.flatMap(({ stage }) => stage.peers)) held.set(peer, (held.get(peer) ?? 0) + 1);
  const done = stages.map(({ stage }, s) =>
    ends[s]! + stage.sync * Math.max(...stage.peers.map((peer) => held.get(peer)!))
  );
  return Math.max(...done) + (model.request.commitSeconds ?? 0);
}

function networkOf(
  model: CostModel,
  { stages, devices }: { stages: readonly PredictedStage[]; devices: readonly number[] },
  { codecs, doubtful = false }: PredictOptions,
): Network {
  const { codec_forward, codec_backward } = model.request.config;
  const held = new Map(devices.map((peer) => [peer, new Set<number>()]));
  stages.forEach(({ stage }, s) => stage.peers.forEach((peer) => held.get(peer)!.add(s)));
  const seconds = (from: number, to: number) => {
    let most = 0;
    for (const s of held.get(from)!) {
      const { forward = codec_forward } = codecs?.[s] ?? {};
      const { backward = codec_backward } = codecs?.[s - 1] ?? {};
      if (held.get(to)!.has(s + 1)) most = Math.max(most, model.transfer(from, to, forward));
      if (held.get(to)!.has(s - 1)) most = Math.max(most, model.transfer(from, to, backward));
    }
    return most;
  };
  return {
    mode: "duplex",
    latency: (from, to) => {
      const [one, other] = [devices[from]!, devices[to]!];
      return doubtful ? model.latencyMost(one, other) : model.latency(one, other);
    },
    // Two that are neighbours both ways round have tensors of both codecs: the larger counts.
    transfer: rememberedLinks((from, to) => seconds(devices[from]!, devices[to]!), devices.length),
  };
}

function rememberedLinks(of: (from: number, to: number) => number, count: number) {
  const known: number[] = [];
  return (from: number, to: number) => known[from * count + to] ??= of(from, to);
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

/** Counts as in the option. */
function dealt(model: CostModel, stage: GroupStage, option: StageOption): number[][] {
  const before = known.get(option);
  if (before !== undefined) return before;
  const seconds = stage.peers.map((peer) => model.seconds(peer, stage.first, stage.end, option.recompute));
  const shares = dealOut(seconds, option.shares, model.N);
  known.set(option, shares);
  return shares;
}
