// Cuts the layers into contiguous stages: by throughput alone, or exactly for known peers, links and memory.
// Pure search over a cost model; it measures nothing and chooses no schedule.
import { ShoalError } from "../../peer/wire/errors.ts";

/** The exact search visits subsets of the peers; more than this many would take minutes. */
export const EXACT_PEERS_MAX = 8;
/** Layers beyond this are a mistake in the model description, and the search is quadratic in them. */
export const LAYERS_MAX = 1024;
/** Improvements smaller than this are rounding noise. */
const EPSILON = 1e-12;

/** Layers [firstLayer, endLayer). */
export interface LayerRange {
  firstLayer: number;
  endLayer: number;
}

/**
 * Contiguous split of `nLayer` layers over `throughput.length` stages, at least one layer each, that minimises
 * the slowest stage's (sum of costs) / throughput, and among those prefers even times.
 * @param throughput work per second of each stage (of all its replicas together), any common unit, positive
 * @param options `costs`: work of each layer (default 1 each); add the head's to the last layer if it matters
 * Throws `bad-config` if there are fewer layers than stages or a throughput is not positive.
 * Source: the one-dimensional dynamic programme of PipeDream (Narayanan et al. 2019), O(P * L^2).
 */
export function splitByThroughput(
  nLayer: number,
  throughput: readonly number[],
  options: { costs?: readonly number[] } = {},
): LayerRange[] {
  const costs = options.costs ?? new Array<number>(nLayer).fill(1);
  checkSplit(nLayer, throughput, costs);
  const sum = prefixSums(costs);
  // best[s][j]: layers [0, j) on stages 0 .. s, with the first layer of stage s.
  const best: Split[][] = [];
  throughput.forEach((rate, s) => {
    const before = best[s - 1] ?? [{ slowest: 0, squares: 0, from: 0 }];
    best.push(sum.map((_, j) => bestCut(before, j, (i) => (sum[j]! - sum[i]!) / rate)));
  });
  const ranges: LayerRange[] = [];
  for (let s = throughput.length - 1, endLayer = nLayer; s >= 0; s--) {
    const firstLayer = best[s]![endLayer]!.from;
    ranges.unshift({ firstLayer, endLayer });
    endLayer = firstLayer;
  }
  return ranges;
}

interface Split {
  slowest: number;
  squares: number;
  from: number;
}

const IMPOSSIBLE: Split = { slowest: Infinity, squares: Infinity, from: 0 };

/** Where the last stage of [0, j) begins; `before[i]` is the best of [0, i) on the stages before it. */
function bestCut(before: readonly Split[], j: number, seconds: (i: number) => number): Split {
  let best = IMPOSSIBLE;
  for (let i = 0; i < j && i < before.length; i++) {
    const { slowest, squares } = before[i]!;
    if (slowest === Infinity) continue;
    const time = seconds(i);
    const split = { slowest: Math.max(slowest, time), squares: squares + time * time, from: i };
    const closer = split.slowest < best.slowest + EPSILON && split.squares < best.squares - EPSILON;
    if (split.slowest < best.slowest - EPSILON || closer) best = split;
  }
  return best;
}

function checkSplit(nLayer: number, throughput: readonly number[], costs: readonly number[]): void {
  if (throughput.length < 1 || nLayer < throughput.length || nLayer > LAYERS_MAX || costs.length !== nLayer) {
    throw new ShoalError(
      "bad-config",
      `cannot cut ${nLayer} layers (${costs.length} costs) into ${throughput.length} stages; ` +
        `give each stage a layer, at most ${LAYERS_MAX} in all`,
    );
  }
  for (const value of [...throughput, ...costs]) {
    if (!(value > 0 && value < Infinity)) {
      throw new ShoalError("bad-config", `throughputs and costs must be positive and finite, got ${value}`);
    }
  }
}

export interface LayerCost {
  /** Work of F, B and W of one micro-batch, in the unit of the peers' `speed` per second. */
  work: number;
  /** Bytes of parameters, and of activations per micro-batch in flight. */
  paramBytes: number;
  activationBytes: number;
  /** Bytes of one boundary tensor after this layer, as sent. */
  boundaryBytes: number;
}

export interface PeerCost {
  /** Work per second. */
  speed: number;
  memoryBytes: number;
  upBytesPerS: number;
  downBytesPerS: number;
}

export interface PartitionOptions {
  /** Micro-batches of a step. */
  N: number;
  /** One-way seconds between two peers. Default 0.02. */
  latency?: (from: number, to: number) => number;
  /** Micro-batches whose activations must fit. Default 8. */
  inflight?: number;
  /** Bytes held per byte of parameters: weights, gradient, two Adam moments. Default 4. */
  paramCopies?: number;
}

export interface PartitionStage extends LayerRange {
  peer: number;
}

export interface Partition {
  /** Predicted seconds of a step: sum of (stage + 2 * hop) + (N - 1) * bottleneck. */
  seconds: number;
  /** Slowest stage or transfer per micro-batch, in seconds. */
  bottleneck: number;
  /** In pipeline order; peers that do not occur are better left as replicas. */
  stages: PartitionStage[];
}

/** A prefix of the pipeline: its cost and how it was reached. */
interface Prefix {
  cost: number;
  used: number;
  last: number;
  layers: number;
  before: Prefix | null;
}

interface Search {
  layers: readonly LayerCost[];
  peers: readonly PeerCost[];
  N: number;
  latency: (from: number, to: number) => number;
  /** Seconds of layers [i, j) on a peer; infinite if they do not fit its memory. */
  seconds: (i: number, j: number, peer: number) => number;
  /** Seconds that the boundary after layer j-1 occupies the link between two peers. */
  transfer: (j: number, from: number, to: number) => number;
  /** leastAfter[j]: no pipeline runs layers [j, L) in fewer seconds. */
  leastAfter: number[];
}

/**
 * The best pipeline over any ordered subset of the peers and any contiguous cut, under the cost model
 * T = sum_s (t_s + 2 h_s) + (N - 1) * max(t_s, x_s), h = latency + x. Null if nothing fits the memories.
 * For each candidate bottleneck, a dynamic programme over (peers used, last peer, layers placed).
 * Throws `bad-config` beyond EXACT_PEERS_MAX peers or LAYERS_MAX layers.
 */
export function planPartition(
  layers: readonly LayerCost[],
  peers: readonly PeerCost[],
  options: PartitionOptions,
): Partition | null {
  if (peers.length > EXACT_PEERS_MAX || layers.length > LAYERS_MAX) {
    throw new ShoalError(
      "bad-config",
      `the exact partition takes at most ${EXACT_PEERS_MAX} peers and ${LAYERS_MAX} layers, got ${peers.length} and ` +
        `${layers.length}; group the peers and use splitByThroughput`,
    );
  }
  const search = createSearch(layers, peers, options);
  const bottlenecks = candidates(search);
  let best: Partition | null = null;
  for (const bottleneck of bottlenecks.slice(firstFeasible(search, bottlenecks))) {
    const costMax = (best?.seconds ?? Infinity) - (search.N - 1) * bottleneck;
    if (costMax <= 0) break;
    const full = cheapestWithin(search, bottleneck, costMax);
    if (full === null) continue;
    const seconds = full.cost + (search.N - 1) * bottleneck;
    if (best === null || seconds < best.seconds - EPSILON) {
      best = { seconds, bottleneck, stages: stagesOf(full) };
    }
  }
  return best;
}

function createSearch(
  layers: readonly LayerCost[],
  peers: readonly PeerCost[],
  options: PartitionOptions,
): Search {
  const { N, latency = () => 0.02, inflight = 8, paramCopies = 4 } = options;
  const work = prefixSums(layers.map((layer) => layer.work));
  const memory = prefixSums(layers.map((l) => l.paramBytes * paramCopies + l.activationBytes * inflight));
  const fastest = Math.max(...peers.map((peer) => peer.speed));
  return {
    layers,
    peers,
    N,
    latency,
    leastAfter: work.map((before) => (work.at(-1)! - before) / fastest),
    seconds: (i, j, peer) => {
      if (memory[j]! - memory[i]! > peers[peer]!.memoryBytes) return Infinity;
      return (work[j]! - work[i]!) / peers[peer]!.speed;
    },
    transfer: (j, from, to) =>
      layers[j - 1]!.boundaryBytes / Math.min(peers[from]!.upBytesPerS, peers[to]!.downBytesPerS),
  };
}

/** Every value that the bottleneck can take, ascending. */
function candidates(search: Search): number[] {
  const { layers, peers } = search;
  const values = new Set<number>();
  for (let p = 0; p < peers.length; p++) {
    for (let i = 0; i < layers.length; i++) {
      for (let j = i + 1; j <= layers.length; j++) values.add(search.seconds(i, j, p));
    }
    for (let q = 0; q < peers.length; q++) {
      if (p !== q) { for (let j = 1; j < layers.length; j++) values.add(search.transfer(j, p, q)); }
    }
  }
  values.delete(Infinity);
  return [...values].sort((a, b) => a - b);
}

/** Index of the smallest bottleneck that any pipeline keeps; a larger one is kept by the same pipeline. */
function firstFeasible(search: Search, bottlenecks: readonly number[]): number {
  let low = 0;
  let high = bottlenecks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (cheapestWithin(search, bottlenecks[middle]!, Infinity) === null) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Cheapest sum of (stage + 2 * hop) in which no stage and no transfer exceeds the bottleneck; null if none
 * costs less than `costMax`.
 */
function cheapestWithin(search: Search, bottleneck: number, costMax: number): Prefix | null {
  const limit = bottleneck + EPSILON;
  const known = new Map<number, Prefix>();
  const keyOf = (prefix: Prefix) =>
    (prefix.used * search.peers.length + prefix.last) * search.layers.length + prefix.layers;
  // Ordered by the number of peers used, so a prefix is at its cheapest before it is extended.
  const frontier: Prefix[] = [{ cost: 0, used: 0, last: -1, layers: 0, before: null }];
  let full: Prefix | null = null;
  for (let at = 0; at < frontier.length; at++) {
    for (const longer of extensions(search, frontier[at]!, limit)) {
      if (longer.cost + search.leastAfter[longer.layers]! >= costMax) continue;
      if (longer.layers === search.layers.length) {
        if (full === null || longer.cost < full.cost) full = longer;
        continue;
      }
      const key = keyOf(longer);
      const rival = known.get(key);
      if (rival === undefined) {
        known.set(key, longer);
        frontier.push(longer);
      } else if (longer.cost < rival.cost - EPSILON) Object.assign(rival, longer);
    }
  }
  return full;
}

/** The prefix with one more stage, on each unused peer and with each number of layers that fits. */
function* extensions(search: Search, prefix: Prefix, limit: number): Generator<Prefix> {
  for (let peer = 0; peer < search.peers.length; peer++) {
    if ((prefix.used >> peer) & 1) continue;
    const hop = prefix.last < 0 ? 0 : hopSeconds(search, prefix, { peer, limit });
    if (hop === Infinity) continue;
    for (let end = prefix.layers + 1; end <= search.layers.length; end++) {
      const seconds = search.seconds(prefix.layers, end, peer);
      if (seconds > limit) break;
      const cost = prefix.cost + seconds + 2 * hop;
      yield { cost, used: prefix.used | (1 << peer), last: peer, layers: end, before: prefix };
    }
  }
}

function hopSeconds(search: Search, prefix: Prefix, to: { peer: number; limit: number }): number {
  const transfer = search.transfer(prefix.layers, prefix.last, to.peer);
  return transfer > to.limit ? Infinity : transfer + search.latency(prefix.last, to.peer);
}

function stagesOf(full: Prefix): PartitionStage[] {
  const stages: PartitionStage[] = [];
  for (let prefix = full; prefix.before !== null; prefix = prefix.before) {
    stages.unshift({ peer: prefix.last, firstLayer: prefix.before.layers, endLayer: prefix.layers });
  }
  return stages;
}

function prefixSums(values: readonly number[]): number[] {
  const sums = [0];
  for (const value of values) sums.push(sums.at(-1)! + value);
  return sums;
}
