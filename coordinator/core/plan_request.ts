// What the planner is asked about a live run: measured peers, the links between them, and memory by the engine's exact
// prediction. Pure. It plans nothing. What must stay true: a peer's speed here is the one that shares are dealt by.
import { engineKind, holderBytes } from "../../peer/model/stage_memory.ts";
import type { ModelSpec, RunConfig } from "../../peer/wire/run.ts";
import { stateBytes } from "../plan/plan_diff.ts";
import { withFinestCodecs } from "../plan/planner_codecs.ts";
import type { EngineSpeed, PeerLink, Plan, PlannerPeer, PlanRequest } from "../plan/planner_types.ts";
import { roomOf } from "./fit.ts";
import type { LinkRecord, PeerRecord } from "./run_state.ts";
import { fixedShareOf } from "./sized_peer.ts";

/** One way between two peers whose link was not measured yet: homes of one country. */
export const UNKNOWN_LATENCY_S = 0.005;
/** And the longest that is reckoned with: homes of two continents. */
export const UNKNOWN_LATENCY_MOST_S = 0.1;
/** Their rate: what WebRTC data channels carry between two tabs, and a good home's uplink. */
export const UNKNOWN_BYTES_PER_S = 10e6;
/** A link is planned with at least this rate: what was measured in a bad moment must not rule it out for ever. */
const BYTES_PER_S_MIN = 1e4;
/** A new cut stops everybody: engines are built anew and kernels compiled, beside the transfers. */
const REBUILD_S = 2;
/**
 * What a tab in the background counts for: browsers slow it down at will, and its owner has turned to something else, so it
 * is likelier to go. Half of the work keeps it useful and makes its departure cheap.
 */
export const HIDDEN_SHARE = 0.5;
/** Shares of F, B and W in a block whose parts were not measured. */
const EVEN: OpShares = { forward: 1, backward: 1, weightGrad: 1 };
/** Layouts that the simulator may judge for one plan: with this a small run is planned in milliseconds. */
const SIMULATIONS = 30;
/** Simulated operations of one plan; more would hold the coordinator up for longer than it may be silent. */
const OPS_MAX = 70_000;

interface OpShares {
  forward: number;
  backward: number;
  weightGrad: number;
}

export interface RequestOptions {
  spec: ModelSpec;
  config: RunConfig;
  peers: readonly PeerRecord[];
}

/** Milliseconds of F + B + W of one layer and micro-batch that a peer is believed to take; its tab in the foreground. */
export function blockMsOf({ blockMs, slowdown = 1 }: Pick<PeerRecord, "blockMs" | "slowdown">): number {
  return blockMs * slowdown;
}

/** Speed that a peer is planned with, in blocks per millisecond. */
export function weightOf(peer: PeerRecord): number {
  return (peer.hidden ? HIDDEN_SHARE : 1) / blockMsOf(peer);
}

/** Peers must be measured, and at most PLANNED_PEERS_MAX. */
export function requestOf({ spec, config, peers }: RequestOptions): PlanRequest {
  const records = new Map(peers.map((peer) => [peer.id, peer]));
  const usual = new Map(peers.map((peer) => [peer.id, usualOf(peer)]));
  const finest = withFinestCodecs(config);
  const ops = SIMULATIONS * 3 * config.gradient_accumulation_steps * Math.min(peers.length, spec.n_layer);
  return {
    ...{ spec, config, schedule: "dynamic", simulatedOps: Math.min(OPS_MAX, ops) },
    peers: peers.map(plannerPeer),
    link: (from, to) => linkBetween(records.get(from), records.get(to), usual),
    ...(config.codec_per_link ? { codecs: "auto" } : {}),
    memory: (stage, { slots, recompute }, engine) =>
      holderBytes(stage, { slots, recompute }, { spec, config: finest, kind: engineKind(engine) }),
    cutSeconds: (next) => cutSeconds(spec, next),
    // A tab in the background is likely to go: it shares a stage unless there is nobody else.
    hiddenAlone: !canSpareHidden(config, peers),
  };
}

function canSpareHidden(config: RunConfig, peers: readonly PeerRecord[]): boolean {
  const visible = peers.filter((peer) => !peer.hidden).length;
  return visible >= Math.max(1, config.n_stage);
}

function plannerPeer(peer: PeerRecord): PlannerPeer {
  const { id, name, engine, hidden } = peer;
  const memoryBytes = roomOf(peer);
  return { id, name: name === "" ? id : name, hidden, memoryBytes, engines: [speedOf(engine, peer)] };
}

/** The whole is what was measured when it joined; how it divides among the operations may have been measured since. */
function speedOf(engine: string, peer: PeerRecord): EngineSpeed {
  const { forward, backward, weightGrad } = sumOf(peer.opMs ?? EVEN) > 0 ? peer.opMs ?? EVEN : EVEN;
  const scale = blockMsOf(peer) / 1000 / (forward + backward + weightGrad);
  const coding = peer.codingMs === undefined ? {} : { coding: peer.codingMs / 1000 };
  const fixedShare = fixedShareOf(peer);
  return {
    ...{ engine, forward: forward * scale, backward: backward * scale, weightGrad: weightGrad * scale },
    ...coding,
    ...(fixedShare === undefined ? {} : { fixedShare }),
  };
}

function sumOf({ forward, backward, weightGrad }: OpShares): number {
  return forward + backward + weightGrad;
}

/** As both ends measured it: the sender's rate, the mean of the two round trips; and what the sender takes to hand a tensor over. */
function linkBetween(
  from: PeerRecord | undefined,
  to: PeerRecord | undefined,
  usual: ReadonlyMap<string, Usual>,
): PeerLink | null {
  if (from === undefined || to === undefined) return null;
  const [near, far] = [usual.get(from.id)!, usual.get(to.id)!];
  const supposed = {
    latency: Math.max(near.latency, far.latency),
    bytesPerS: Math.min(near.upBytesPerS, far.downBytesPerS),
  };
  const [there, back] = [from.links?.[to.id], to.links?.[from.id]];
  const trips = [there, back].flatMap((link) => link !== undefined && link.rttMs > 0 ? [link.rttMs] : []);
  const rtt = trips.reduce((sum, ms) => sum + ms, 0) / trips.length;
  const rate = there?.upBytesPerS ?? 0;
  const handing = (from.sendMs ?? 0) / 1000;
  return {
    ...(trips.length === 0
      ? {
        latency: supposed.latency + handing,
        latencyMost: Math.max(UNKNOWN_LATENCY_MOST_S, supposed.latency) + handing,
      }
      : { latency: rtt / 2000 + handing }),
    bytesPerS: Math.max(BYTES_PER_S_MIN, rate === 0 ? supposed.bytesPerS : rate),
  };
}

interface Usual {
  latency: number;
  upBytesPerS: number;
  downBytesPerS: number;
}

/**
 * What a link of the peer is taken to be before it was measured: like its others, and never better than an unknown one. Else every
 * plan would move peers to links that nobody has tried, because those that were tried are slower.
 */
function usualOf({ links = {} }: PeerRecord): Usual {
  const known = (of: (link: LinkRecord) => number) => Object.values(links).map(of).filter((it) => it > 0);
  return {
    latency: Math.max(UNKNOWN_LATENCY_S, (middle(known((link) => link.rttMs)) ?? 0) / 2000),
    upBytesPerS: Math.min(UNKNOWN_BYTES_PER_S, middle(known((link) => link.upBytesPerS)) ?? Infinity),
    downBytesPerS: Math.min(UNKNOWN_BYTES_PER_S, middle(known((link) => link.downBytesPerS)) ?? Infinity),
  };
}

function middle(values: readonly number[]): number | undefined {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
}

/** All states go to the coordinator and come back, the largest stage last. */
function cutSeconds(spec: ModelSpec, { stages }: Pick<Plan, "stages">): number {
  const largest = Math.max(...stages.map((stage) => stateBytes(spec, stage)));
  return REBUILD_S + 2 * largest / UNKNOWN_BYTES_PER_S;
}
