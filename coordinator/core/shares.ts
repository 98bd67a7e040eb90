// Changing who does what inside one cut of the layers: without a peer that is gone, with a learner, with micro-batches dealt
// out anew. Pure functions from stages to stages. What must stay true: taking a peer away in the middle of a step only adds
// micro-batches to others; only between two steps may a share shrink.
import type { ReplicaPlan, StagePlan } from "../../peer/wire/run.ts";
import { holds } from "../../peer/wire/view.ts";
import type { PeerRecord } from "./run_state.ts";
import { weightOf } from "./plan_request.ts";

/** Shares are dealt out anew only if the stage's last micro-batch is then done this much earlier. */
const GAIN_LEAST = 0.05;

type Peers = Record<string, PeerRecord>;

/** Number of stages a peer computes in. */
function computingLoad(stages: StagePlan[], peer: string): number {
  return stages.filter((stage) => stage.replicas.some((it) => it.peer === peer && it.microBatches.length > 0))
    .length;
}

/** Micro-batches per second that a peer can give to one more stage, relative to the others. */
function speedOf(peers: Peers, peer: string, load: number): number {
  const record = peers[peer];
  return record === undefined ? 0 : weightOf(record) / Math.max(1, load);
}

export interface Takers {
  peers: Peers;
  /** Whether a holder of a stage is near enough to the open step to be given work of it; default: all are. */
  keepsUp?(peer: string, stage: number): boolean;
}

/**
 * The stages without the peer; what it computed goes to the stage's other holders. Null if it was some stage's only
 * holder.
 */
export function withoutPeer(stages: StagePlan[], gone: string, takers: Takers): StagePlan[] | null {
  const left = stages.map((stage) => ({
    ...stage,
    replicas: stage.replicas.filter((it) => it.peer !== gone),
  }));
  for (const [s, stage] of left.entries()) {
    if (!holds(stages[s], gone)) continue;
    if (stage.replicas.every((replica) => replica.learning === true)) return null;
    const owed = stages[s]!.replicas.find((it) => it.peer === gone)!.microBatches;
    stage.replicas = takeOver(left, stage, { ...takers, owed });
  }
  return left;
}

function takeOver(
  stages: StagePlan[],
  { index, replicas }: StagePlan,
  { owed, peers, keepsUp }: Takers & { owed: number[] },
): ReplicaPlan[] {
  if (owed.length === 0) return replicas;
  const shares = new Map(replicas.map((replica) => [replica.peer, [...replica.microBatches]]));
  const able = replicas.filter((replica) => replica.learning !== true).map((replica) => replica.peer);
  const computing = able.filter((peer) => shares.get(peer)!.length > 0);
  const speeds = new Map(able.map((peer) => [peer, speedOf(peers, peer, computingLoad(stages, peer) + 1)]));
  const bySpeed = able.toSorted((a, b) => speeds.get(b)! - speeds.get(a)!);
  // Those that compute have an engine; only if there are none does a shadow begin to, if it can be one that keeps up.
  const shadow = bySpeed.find((peer) => keepsUp?.(peer, index) ?? true) ?? bySpeed[0]!;
  const takers = computing.length > 0 ? computing : [shadow];
  for (const m of owed) {
    const finish = (peer: string) => (shares.get(peer)!.length + 1) / speeds.get(peer)!;
    const best = takers.reduce((a, b) => finish(b) < finish(a) ? b : a);
    shares.get(best)!.push(m);
  }
  return replicas.map((it) => ({ ...it, microBatches: shares.get(it.peer)!.sort((a, b) => a - b) }));
}

/** The stages with a further peer that is to fetch the state of one of them. */
export function withLearner(stages: StagePlan[], stage: number, peer: string): StagePlan[] {
  const replica: ReplicaPlan = { peer, microBatches: [], learning: true };
  return stages.map((it) =>
    it.index === stage ? { ...withExactOptimizer(it), replicas: [...it.replicas, replica] } : it
  );
}

/** Several holders need integers; whoever made its steps on the GPU ends that between two steps. */
function withExactOptimizer(stage: StagePlan): StagePlan {
  return stage.optimizer === undefined ? stage : { ...stage, optimizer: "exact" };
}

/** The learner has the state: it is a holder like any other, for now without a share. */
export function learned(stages: StagePlan[], stage: number, peer: string): StagePlan[] {
  const promote = (replica: ReplicaPlan): ReplicaPlan =>
    replica.peer === peer ? { peer, microBatches: replica.microBatches } : replica;
  return stages.map((it) => it.index === stage ? { ...it, replicas: it.replicas.map(promote) } : it);
}

export interface ShareRequest {
  peers: Peers;
  /** Micro-batches of a step. */
  count: number;
  /** Whether a peer's engine for a stage is built: only then may it be given work there. */
  ready(peer: string, stage: number): boolean;
  /** Peers that want no work. */
  idle(peer: string): boolean;
}

/**
 * Deals every stage's micro-batches out anew, in proportion to speed. Those that compute in no other stage do it; where
 * nobody is free for the stage, the holder with the least other work does. For between two steps only.
 */
export function reshare(stages: StagePlan[], request: ShareRequest): StagePlan[] {
  let out = stages;
  for (const { index } of stages) {
    const stage = out[index]!;
    const chosen = choose(out, stage, request);
    if (chosen.length === 0) continue;
    if (isAsGood(stage, chosen, request)) continue;
    const shares = deal(chosen, request);
    const replicas = stage.replicas.map((it) => ({ ...it, microBatches: shares.get(it.peer) ?? [] }));
    out = out.map((it) => it.index === index ? { ...it, replicas } : it);
  }
  return out;
}

function choose(stages: StagePlan[], stage: StagePlan, request: ShareRequest): string[] {
  const { index, replicas } = stage;
  const holders = replicas.filter((it) => it.learning !== true && request.peers[it.peer] !== undefined);
  const now = holders.filter((it) => it.microBatches.length > 0).map((it) => it.peer);
  const able = holders.map((it) => it.peer).filter((peer) =>
    now.includes(peer) || request.ready(peer, index)
  );
  const willing = able.filter((peer) => !request.idle(peer));
  const elsewhere = (peer: string) => computingLoad(stages.filter((it) => it.index !== index), peer);
  const free = willing.filter((peer) => elsewhere(peer) === 0);
  if (free.length > 0) return free;
  // The one that computes already stays unless another has really less to do.
  const cost = (peer: string) => elsewhere(peer) * 2 - (now.includes(peer) ? 1 : 0);
  const best = (willing.length > 0 ? willing : able).toSorted((a, b) => cost(a) - cost(b))[0];
  return best === undefined ? now : [best];
}

/** The same peers would compute, and the last of them would not be done clearly earlier: the shares stay. */
function isAsGood({ replicas }: StagePlan, chosen: string[], request: ShareRequest): boolean {
  const now = replicas.filter((it) => it.microBatches.length > 0);
  if (now.length !== chosen.length || !now.every((it) => chosen.includes(it.peer))) return false;
  const last = (counts: [peer: string, count: number][]) =>
    Math.max(...counts.map(([peer, count]) => count / weightOf(request.peers[peer]!)));
  const present = last(now.map((it) => [it.peer, it.microBatches.length]));
  const anew = last([...deal(chosen, request)].map(([peer, list]) => [peer, list.length]));
  return anew > present * (1 - GAIN_LEAST);
}

function deal(chosen: string[], { peers, count }: ShareRequest): Map<string, number[]> {
  const shares = new Map(chosen.map((peer): [string, number[]] => [peer, []]));
  for (let m = 0; m < count; m++) {
    const finish = (peer: string) => (shares.get(peer)!.length + 1) / weightOf(peers[peer]!);
    const best = chosen.reduce((a, b) => finish(b) < finish(a) ? b : a);
    shares.get(best)!.push(m);
  }
  return shares;
}

/** Who should learn a stage that has too few holders: who has the least to do and the most to give. */
export function chooseLearner(
  stages: StagePlan[],
  stage: StagePlan,
  candidates: PeerRecord[],
): string | null {
  const held = (peer: PeerRecord) => stages.filter((it) => holds(it, peer.id)).length;
  const able = candidates.filter((peer) => !holds(stage, peer.id));
  const order = able.toSorted((a, b) => held(a) - held(b) || weightOf(b) - weightOf(a));
  return order[0]?.id ?? null;
}

/** Where a peer without a stage helps most: the stage with the fewest holders, then the slowest one. */
export function neediestStage(stages: StagePlan[], peers: Peers): number {
  const holders = (stage: StagePlan) => stage.replicas.length;
  const speed = (stage: StagePlan) => {
    const computing = stage.replicas.filter((it) => it.microBatches.length > 0);
    const sum = computing.reduce(
      (total, it) => total + speedOf(peers, it.peer, computingLoad(stages, it.peer)),
      0,
    );
    return sum / Math.max(1, stage.endLayer - stage.firstLayer);
  };
  return stages.toSorted((a, b) => holders(a) - holders(b) || speed(a) - speed(b))[0]!.index;
}
