// From measured peers to a view: how many stages, which layers, who computes which micro-batch, within the memory that each
// peer offers. Pure; the first form of the planner: layers in proportion to measured speed, spare peers become replicas of
// the slowest stage. What must stay true: whatever a peer is given fits what it offers.
import { splitLayers } from "../../peer/model/layout.ts";
import type { StageRun } from "../../peer/model/stage_memory.ts";
import { isPlaced } from "../../peer/schedule/catalogue.ts";
import { inflightCaps } from "../../peer/schedule/windows.ts";
import type {
  ModelSpec,
  ReplicaPlan,
  RunConfig,
  ScheduleId,
  StagePlan,
  StageSpec,
  View,
} from "../../peer/wire/run.ts";
import { splitWithin } from "../plan/partition.ts";
import type { Infeasible, Plan } from "../plan/planner_types.ts";
import {
  chooseRun,
  createFit,
  type Fit,
  fits,
  hasRoom,
  leastRun,
  roomOf,
  shortfall,
  type StageDemand,
} from "./fit.ts";
import { chooseOptimizers } from "./gpu_optimizer.ts";
import { addShadows, type PlacedConfig, placedStages, withOptimizers } from "./placed_view.ts";
import { weightOf } from "./plan_request.ts";
import { isPlanned, plannedView } from "./planned_view.ts";
import type { PeerRecord } from "./run_state.ts";

/** Hop between two stages as a share of a stage's time, until links are measured. */
const HOP_SHARE = 0.25;

/** Part of the peers that is left out at a time where a plan does not fit; one by one, a large swarm would take seconds. */
const LEFT_OUT_SHARE = 0.1;

export interface ViewRequest {
  gen: number;
  baseStep: number;
  spec: ModelSpec;
  config: RunConfig;
  peers: PeerRecord[];
  /** What the planner answers for these very peers, if that was worked out beforehand. */
  prepared?: Plan | Infeasible | undefined;
}

/** Peers that may be given work now. */
export function usablePeers(peers: PeerRecord[]): PeerRecord[] {
  return peers.filter((peer) => peer.blockMs > 0 && !peer.paused && !peer.leaving);
}

/** A view, with the plan that it follows if the planner made it; or one sentence that says what is missing. */
export type Planned = { view: View; missing: null; plan?: Plan } | { view: null; missing: string };

/**
 * Plans a view over peers that are all usable; there is at least one. If stages in the order of the peers do not fit, those
 * with the most memory take the ends. Peers that have no room where they would be needed are left out, those with the least
 * memory first, and become replicas or stay spares.
 */
export function planView(request: ViewRequest): Planned {
  const { spec, config } = request;
  const { schedule } = config;
  if (isPlaced(schedule)) return planPlaced(request, { ...config, schedule });
  const fit = createFit(spec, config);
  if (isPlanned(request)) return plannedView(request, fit, request.prepared);
  // The planner does not place so many stages, so there is nothing to compare.
  if (schedule === "auto") return planDynamic(request);
  // The first peers hold a stage each, perhaps alone: those in the background come last.
  const peers = request.peers.toSorted((a, b) => Number(a.hidden) - Number(b.hidden));
  const count = (list: PeerRecord[]) => stageCount(config, spec, list.length);
  const out: PeerRecord[] = [];
  let missing: string | null = null;
  for (let staying = peers; staying.length > 0; staying = staying.filter((peer) => !out.includes(peer))) {
    const plain = cutLayers(fit, request, { count: count(staying), peers: staying });
    const ends = () => ({ count: count(staying), peers: roomyEnds(staying, count(staying)) });
    const cut = plain.stages === null ? cutLayers(fit, request, ends()) : plain;
    if (cut.stages !== null) {
      const stages = withReplicas(fit, request, { stages: cut.stages, spare: [...cut.spare, ...out] });
      if (config.shadows) addShadows(stages, peers, fit);
      if (config.optimizer === "auto") chooseOptimizers(fit, request, stages);
      return { view: viewOf(request, stages, schedule), missing: null };
    }
    missing ??= plain.stages === null ? plain.missing : null;
    const least = staying.toSorted((a, b) => a.memoryBytes - b.memoryBytes);
    out.push(...least.slice(0, Math.ceil(staying.length * LEFT_OUT_SHARE)));
  }
  return { view: null, missing: missing ?? "there are no peers" };
}

/** The configured schedule's own placement; where these peers do not allow it, the dynamic order. */
function planPlaced(request: ViewRequest, config: PlacedConfig): Planned {
  const { spec, peers } = request;
  const fit = createFit(spec, config);
  const { stages } = placedStages({ spec, config, peers, fit });
  if (stages === null) return planDynamic(request);
  const { schedule } = config;
  const auto = config.optimizer === "auto";
  const chosen = auto ? withOptimizers(fit, { config, peers }, { schedule, stages }) : stages;
  return { view: viewOf(request, chosen, schedule), missing: null };
}

function planDynamic(request: ViewRequest): Planned {
  return planView({ ...request, config: { ...request.config, schedule: "dynamic" } });
}

/** The model's ends hold a vocabulary each, so the peers with the most memory go there: the roomiest to the head. */
function roomyEnds(peers: PeerRecord[], count: number): PeerRecord[] {
  const [last, first] = peers.toSorted((a, b) => b.memoryBytes - a.memoryBytes);
  if (first === undefined || last === undefined || count < 2 || peers.length < count) return peers;
  const rest = peers.filter((peer) => peer !== first && peer !== last);
  return [first, ...rest.slice(0, count - 2), last, ...rest.slice(count - 2)];
}

function viewOf({ gen, baseStep, config }: ViewRequest, stages: StagePlan[], schedule: ScheduleId): View {
  return {
    ...{ gen, cut: gen, baseStep, stages, schedule },
    ...{ codecForward: config.codec_forward, codecBackward: config.codec_backward },
  };
}

type Cut =
  | { stages: { plan: StagePlan; holders: PeerRecord[] }[]; spare: PeerRecord[] }
  | { stages: null; missing: string };

/** Layers in proportion to speed if that fits, with fewer slots or recomputation if need be; else layers move. */
function cutLayers(
  fit: Fit,
  { spec, config }: ViewRequest,
  { count, peers }: { count: number; peers: PeerRecord[] },
): Cut {
  const groups = assignPeers(count, peers, peers.map(weightOf));
  const weights = groups.map((group) => group.reduce((sum, peer) => sum + weightOf(peer), 0));
  const demandsOf = (specs: StageSpec[]) => {
    const caps = stageCaps(specs, { weights, groups }, config);
    return specs.map((stage, s) => demandOf(stage, groups, caps[s]!));
  };
  const ideal = demandsOf(splitLayers(spec, weights));
  const moved = () => moveLayers(fit, { spec, weights, groups });
  const runs = runAll(fit, ideal);
  if (runs !== null) return staffed(fit, ideal, runs);
  const specs = moved();
  const demands = specs === null ? null : demandsOf(specs);
  const fitting = demands === null ? null : runAll(fit, demands);
  if (demands === null || fitting === null) return { stages: null, missing: shortfall(fit, ideal) };
  return staffed(fit, demands, fitting);
}

/** A peer that holds several stages has an equal part of its room for each. The group's first peer must fit. */
function demandOf(stage: StageSpec, groups: PeerRecord[][], slots: number): StageDemand {
  const roomFor = (peer: PeerRecord) =>
    Math.floor(roomOf(peer) / groups.filter((group) => group.includes(peer)).length);
  const holders = groups[stage.index]!.map((peer) => ({ peer, room: roomFor(peer) }));
  return { stage, holders, slots, slotsLeast: Math.min(slots, groups.length - stage.index) };
}

function alone(demand: StageDemand): StageDemand {
  return { ...demand, holders: demand.holders.slice(0, 1) };
}

/** How each stage is run so that its first holder has room; null if one has not. */
function runAll(fit: Fit, demands: StageDemand[]): StageRun[] | null {
  const runs = demands.map((demand) => runForGroup(fit, demand));
  return runs.every((run) => run !== null) ? runs : null;
}

/** Fewer slots, if they are still enough, let further holders in; that one of them is small is no reason to work twice. */
function runForGroup(fit: Fit, demand: StageDemand): StageRun | null {
  const first = chooseRun(fit, alone(demand));
  const all = first === null ? null : chooseRun(fit, demand);
  if (first === null || all === null || all.recompute !== first.recompute) return first;
  return all.slots >= Math.min(demand.slotsLeast, first.slots) ? all : first;
}

function staffed(fit: Fit, demands: StageDemand[], runs: StageRun[]): Cut {
  const spare: PeerRecord[] = [];
  const stages = demands.map(({ stage, holders, ...demand }, s) => {
    const run = runs[s]!;
    const able = holders.filter((holder) => fits(fit, { stage, holders: [holder], ...demand }, run));
    spare.push(...holders.filter((holder) => !able.includes(holder)).map(({ peer }) => peer));
    return { plan: planOf(stage, run), holders: able.map(({ peer }) => peer) };
  });
  return { stages, spare };
}

function planOf(stage: StageSpec, { slots, recompute }: StageRun): StagePlan {
  return { ...stage, inflight: slots, ...(recompute === "none" ? {} : { recompute }), replicas: [] };
}

/** The split that is nearest to the speeds and fits the first peer of each group with the least memory for each stage. */
function moveLayers(
  fit: Fit,
  { spec, weights, groups }: { spec: ModelSpec; weights: number[]; groups: PeerRecord[][] },
): StageSpec[] | null {
  const last = groups.length - 1;
  const specOf = (index: number, firstLayer: number, endLayer: number): StageSpec => ({
    ...{ index, firstLayer, endLayer, embed: index === 0, head: index === last },
  });
  const firsts = groups.map((_, s) => alone(demandOf(specOf(s, 0, 1), groups, 1)));
  const ranges = splitWithin(spec.n_layer, weights, (s, firstLayer, endLayer) => {
    return fits(fit, { ...firsts[s]!, stage: specOf(s, firstLayer, endLayer) }, leastRun(fit));
  });
  return ranges?.map(({ firstLayer, endLayer }, s) => specOf(s, firstLayer, endLayer)) ?? null;
}

/** Peers without a stage become replicas where the stage is slowest, among the stages that they have room for. */
function withReplicas(
  fit: Fit,
  { config }: ViewRequest,
  { stages, spare }: { stages: { plan: StagePlan; holders: PeerRecord[] }[]; spare: PeerRecord[] },
): StagePlan[] {
  for (const peer of spare) {
    const room = stages.filter(({ plan }) => hasRoom(fit, [], { stage: plan, peer }));
    const speed = (holders: PeerRecord[]) => holders.reduce((sum, it) => sum + weightOf(it), 0);
    const slowest = room.toSorted((a, b) => speed(a.holders) - speed(b.holders))[0];
    slowest?.holders.push(peer);
  }
  return stages.map(({ plan, holders }) => ({
    ...plan,
    replicas: shareMicroBatches(holders, config.gradient_accumulation_steps),
  }));
}

/** Pipeline stages for so many peers. */
export function stageCount(config: RunConfig, spec: ModelSpec, peers: number): number {
  return config.n_stage > 0 ? config.n_stage : Math.min(peers, spec.n_layer);
}

/** First one peer per stage (or several stages per peer), then each further peer where the group is slowest. */
function assignPeers(count: number, peers: PeerRecord[], speed: number[]): PeerRecord[][] {
  const groups: PeerRecord[][] = Array.from({ length: count }, (_, s) => [peers[s % peers.length]!]);
  const total = groups.map((group) => speed[peers.indexOf(group[0]!)]!);
  for (let p = count; p < peers.length; p++) {
    const slowest = total.indexOf(Math.min(...total));
    groups[slowest]!.push(peers[p]!);
    total[slowest]! += speed[p]!;
  }
  return groups;
}

/** Shares in proportion to measured speed by largest remainder, dealt out in turn so that neighbours interleave. */
export function shareMicroBatches(group: PeerRecord[], count: number): ReplicaPlan[] {
  const plans = group.map((peer): ReplicaPlan => ({ peer: peer.id, microBatches: [] }));
  const speed = group.map(weightOf);
  for (let m = 0; m < count; m++) {
    const finish = plans.map((plan, i) => (plan.microBatches.length + 1) / speed[i]!);
    plans[finish.indexOf(Math.min(...finish))]!.microBatches.push(m);
  }
  return plans;
}

/** One way between two stages, as either end measured it; nothing on one peer; null while nobody measured it. */
function hopMs(from: PeerRecord, to: PeerRecord): number | null {
  if (from.id === to.id) return 0;
  const trips = [from.links?.[to.id], to.links?.[from.id]].flatMap((link) => link?.rttMs || []);
  return trips.length === 0 ? null : Math.max(...trips) / 2;
}

/** Forwards in flight per stage: GPipe holds the whole step; the dynamic order gains from as many slots as stage 0 has. */
function stageCaps(
  specs: StageSpec[],
  { weights, groups }: { weights: number[]; groups: PeerRecord[][] },
  config: RunConfig,
): number[] {
  const count = config.gradient_accumulation_steps;
  if (config.schedule === "gpipe") return specs.map(() => count);
  const times = specs.map((stage, s) => (stage.endLayer - stage.firstLayer + 0.5) / weights[s]!);
  const mean = times.reduce((sum, t) => sum + t, 0) / times.length;
  const hops = groups.slice(1).map((group, s) => hopMs(groups[s]![0]!, group[0]!) ?? mean * HOP_SHARE);
  const caps = inflightCaps(times, hops, count);
  return ["dynamic", "2bw"].includes(config.schedule) ? caps.map(() => Math.max(...caps)) : caps;
}
