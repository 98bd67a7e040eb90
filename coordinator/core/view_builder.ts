// From measured peers to a view: how many stages, which layers, who computes which micro-batch. Pure; the first form of the
// planner: layers in proportion to measured speed, spare peers become replicas of the slowest stage.
import { paramCount, splitLayers, stageLayout } from "../../peer/model/layout.ts";
import { inflightCaps } from "../../peer/schedule/windows.ts";
import type { ModelSpec, ReplicaPlan, RunConfig, StagePlan, StageSpec, View } from "../../peer/wire/run.ts";
import type { PeerRecord } from "./run_state.ts";

/** f32 weights on CPU and GPU, two moments, a gradient and its integer sum: bytes per parameter a holder needs. */
const BYTES_PER_PARAM = 24;
/**
 * What a tab in the background counts for: browsers slow it down at will, and its owner has turned to something else, so it
 * is likelier to go. Half of the work keeps it useful and makes its departure cheap.
 */
const HIDDEN_SHARE = 0.5;
/** Hop between two stages as a share of a stage's time, until links are measured. */
const HOP_SHARE = 0.25;

export interface ViewRequest {
  gen: number;
  baseStep: number;
  spec: ModelSpec;
  config: RunConfig;
  peers: PeerRecord[];
}

/** Peers that may be given work now. */
export function usablePeers(peers: PeerRecord[]): PeerRecord[] {
  return peers.filter((peer) => peer.blockMs > 0 && !peer.paused && !peer.leaving);
}

/** The peers' memory together must hold the model; says what is missing, or null if it fits. */
export function memoryShortfall(spec: ModelSpec, peers: PeerRecord[]): string | null {
  const needed = paramCount(spec) * BYTES_PER_PARAM;
  const offered = peers.reduce((sum, peer) => sum + peer.memoryBytes, 0);
  if (offered >= needed) return null;
  return `the model needs about ${megabytes(needed)} and the peers offer ${megabytes(offered)}`;
}

function megabytes(bytes: number): string {
  return `${Math.ceil(bytes / 1e6)} MB`;
}

/** Speed that a peer is planned with, in blocks per millisecond. */
export function weightOf(peer: PeerRecord): number {
  return (peer.hidden ? HIDDEN_SHARE : 1) / peer.blockMs;
}

/** Builds a view over peers that are all usable; there is at least one. */
export function buildView(request: ViewRequest): View {
  const { spec, config } = request;
  // The first peers hold a stage each, perhaps alone: those in the background come last.
  const peers = request.peers.toSorted((a, b) => Number(a.hidden) - Number(b.hidden));
  const count = stageCount(config, spec, peers.length);
  const speed = peers.map(weightOf);
  const holders = assignPeers(count, peers, speed);
  const weights = holders.map((group) => group.reduce((sum, peer) => sum + weightOf(peer), 0));
  const specs = splitLayers(spec, weights);
  const caps = stageCaps(specs, weights, config);
  const stages = specs.map((stage, s): StagePlan => ({
    ...stage,
    inflight: caps[s]!,
    replicas: shareMicroBatches(holders[s]!, config.gradient_accumulation_steps),
  }));
  if (config.shadows) addShadows(stages, peers);
  return {
    gen: request.gen,
    cut: request.gen,
    baseStep: request.baseStep,
    stages,
    schedule: config.schedule,
    codecForward: config.codec_forward,
    codecBackward: config.codec_backward,
  };
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

/**
 * Gives every stage with a single holder a shadow: the peer that holds the fewest parameters so far, the next stage's
 * holder first among equals; one in the background counts as if it held more. Weight-0 holders of the step protocol: they log totals and apply steps.
 */
function addShadows(stages: StagePlan[], peers: PeerRecord[]): void {
  const load = new Map(peers.map((peer) => [peer.id, 0]));
  const share = new Map(peers.map((peer) => [peer.id, peer.hidden ? HIDDEN_SHARE : 1]));
  const burden = (peer: string) => (load.get(peer)! + 1) / share.get(peer)!;
  const add = (peer: string, stage: StagePlan) =>
    load.set(peer, (load.get(peer) ?? 0) + stage.endLayer - stage.firstLayer);
  for (const stage of stages) for (const { peer } of stage.replicas) add(peer, stage);
  stages.forEach((stage, s) => {
    if (stage.replicas.length > 1) return;
    const next = stages[(s + 1) % stages.length]!.replicas[0]!.peer;
    const order = [next, ...peers.map((peer) => peer.id)].filter((id) => id !== stage.replicas[0]!.peer);
    const chosen = order.toSorted((a, b) => burden(a) - burden(b))[0];
    if (chosen === undefined) return;
    stage.replicas.push({ peer: chosen, microBatches: [] });
    add(chosen, stage);
  });
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

/** Forwards in flight per stage: GPipe holds the whole step; the dynamic order gains from as many slots as stage 0 has. */
function stageCaps(specs: StageSpec[], weights: number[], config: RunConfig): number[] {
  const count = config.gradient_accumulation_steps;
  if (config.schedule === "gpipe") return specs.map(() => count);
  const times = specs.map((stage, s) => (stage.endLayer - stage.firstLayer + 0.5) / weights[s]!);
  const mean = times.reduce((sum, t) => sum + t, 0) / times.length;
  const caps = inflightCaps(times, specs.slice(1).map(() => mean * HOP_SHARE), count);
  return config.schedule === "dynamic" ? caps.map(() => Math.max(...caps)) : caps;
}

/** Bytes of one stage's state as a holder keeps it; shown and used for limits. */
export function stageStateBytes(spec: ModelSpec, stage: StageSpec): number {
  return stageLayout(spec, stage).size * BYTES_PER_PARAM;
}
