// Good layouts for any number of peers under the cost model: anchors, layers by a dynamic programme, further peers where the
// pace is slowest, then local moves. Deterministic; spends a bounded number of evaluations. Not exact: planner_exact.ts is.
import { bestSplit, type LayerRange } from "./partition.ts";
import { type Capacity, capacityOf, roomiest } from "./planner_feasible.ts";
import type { CostModel, GroupStage, LayoutCost } from "./planner_model.ts";
import { neighbours } from "./planner_moves.ts";

/** A layout and its cost; `spares` are peers without work, fastest first. */
export interface Candidate {
  stages: readonly GroupStage[];
  spares: readonly number[];
  cost: LayoutCost;
}

/** Depths beyond this only add hops: a pipeline longer than this is planned only if memory demands it. */
const STAGES_TRIED_MAX = 16;
/** Swarms larger than this try fewer depths, and fewer places for each further peer: the gaps are closed by local moves. */
const SMALL_SWARM = 32;
const DEPTHS_OF_LARGE = [1, 2, 3, 4, 6, 8, 12, 16];
/** Depths whose start is improved by local moves; the rest of the starts are dropped. */
const DEPTHS_IMPROVED = 4;
/** Starts of one depth that are improved, where only that depth is looked at. */
const STARTS_IMPROVED = 3;
/** Layouts that the local search of one depth may look at; fewer in large swarms, where each costs more to look at. */
const EVALUATIONS_MAX = 4000;
const EVALUATIONS_TIMES_PEERS = 240_000;
/** A further peer is taken even if it costs this much for now: two equally slow stages gain only together. */
const TOLERANCE = 1.02;

/** Which depths are searched. */
export interface SearchLimits {
  most: number;
  /** Only `most` stages. */
  exactly: boolean;
  /** A layout stays at the depth that its search began with. Default: `exactly`. */
  keepDepth?: boolean;
  /** Of the starts of one depth, the cheapest first, those that are improved. Default: all. */
  starts?: { from?: number; to?: number };
}

/** Layouts of different depths, cheapest first; at least one if the memories hold the model in at most `most` stages. */
export function searchLayouts(model: CostModel, limits: SearchLimits): Candidate[] {
  const capacities = [...model.engines.keys()].map((peer) => capacityOf(model, peer));
  const starts = depths(model, limits).flatMap((count) => startsOf(model, capacities, count))
    .toSorted(byCost);
  const chosen = limits.exactly
    ? starts.slice(0, STARTS_IMPROVED)
    : onePerDepth(starts).slice(0, DEPTHS_IMPROVED);
  const better = chosen.map((start) => improve(model, start, limits));
  return better.toSorted(byCost);
}

function byCost(a: Candidate, b: Candidate): number {
  return a.cost.seconds - b.cost.seconds;
}

function depths(model: CostModel, { most, exactly }: SearchLimits): number[] {
  // If the wanted depth does not fit, the next smaller one that does is taken.
  const all = Array.from({ length: most }, (_, i) => most - i);
  if (exactly) return all.slice(0, 1);
  const tried = (count: number) => model.peers <= SMALL_SWARM || DEPTHS_OF_LARGE.includes(count);
  const short = all.filter((count) => count <= STAGES_TRIED_MAX && tried(count));
  return most > STAGES_TRIED_MAX || model.peers <= STAGES_TRIED_MAX ? [...new Set([...short, most])] : short;
}

function onePerDepth(sorted: readonly Candidate[]): Candidate[] {
  const seen = new Set<number>();
  return sorted.filter(({ stages }) => !seen.has(stages.length) && seen.add(stages.length));
}

/** Up to three starts of one depth: the fastest peers as anchors, the roomiest, and those that are both. */
function startsOf(model: CostModel, capacities: readonly Capacity[], count: number): Candidate[] {
  const peers = [...model.engines.keys()];
  const speed = (peer: number) => 1 / model.seconds(peer, 0, 1, "none");
  const room = (peer: number) => Math.min(capacities[peer]!.middle, model.layers / count);
  const orders = [
    peers.toSorted((a, b) => speed(b) - speed(a) || a - b),
    peers.toSorted((a, b) => speed(b) * room(b) - speed(a) * room(a) || a - b),
  ].slice(model.peers <= SMALL_SWARM ? 0 : 1).map((order) => chain(model, order.slice(0, count)));
  const enough = roomiest(capacities, count, model.layers).peers;
  // Where fewer would do, as many as are wanted.
  const roomy = enough.length === count ? enough : roomiest(capacities, count, Infinity).peers;
  if (roomy.length === count) orders.push(roomy);
  return orders.flatMap((anchors) => {
    const start = startFrom(model, anchors.map((peer) => [peer]));
    return start === null ? [] : [fill(model, start)];
  });
}

/** Orders anchors so that neighbours are near: from the fastest on, each time the nearest that is left. */
function chain(model: CostModel, anchors: readonly number[]): number[] {
  const [first, ...left] = anchors;
  if (first === undefined) return [];
  const line = [first];
  while (left.length > 0) {
    const from = line.at(-1)!;
    let nearest = 0;
    left.forEach((peer, i) => {
      if (model.latency(from, peer) < model.latency(from, left[nearest]!)) nearest = i;
    });
    line.push(...left.splice(nearest, 1));
  }
  return line;
}

/** The groups with the layers cut to suit them; null if no cut fits their memories. */
export function startFrom(model: CostModel, groups: readonly (readonly number[])[]): Candidate | null {
  for (let slots = Math.min(model.N, 2 * groups.length + 2); slots >= 1; slots >>= 1) {
    const ranges = cutLayers(model, groups, slots);
    if (ranges === null) continue;
    const stages = groups.map((peers, s) => model.stage(peers, ranges[s]!.firstLayer, ranges[s]!.endLayer));
    if (stages.some((stage) => stage === null)) continue;
    return candidateOf(model, stages as GroupStage[]);
  }
  return null;
}

export function candidateOf(model: CostModel, stages: readonly GroupStage[]): Candidate {
  return { stages, spares: sparesOf(model, stages), cost: model.evaluate(stages) };
}

function sparesOf(model: CostModel, stages: readonly GroupStage[]): number[] {
  const used = new Set(stages.flatMap((stage) => stage.peers));
  const speed = (peer: number) => model.seconds(peer, 0, 1, "none");
  return [...model.engines.keys()].filter((peer) => !used.has(peer))
    .toSorted((a, b) => speed(a) - speed(b) || a - b);
}

/** Contiguous cut with the least slowest stage that fits with so many slots; the dynamic programme of PipeDream with memory. */
function cutLayers(
  model: CostModel,
  groups: readonly (readonly number[])[],
  slots: number,
): LayerRange[] | null {
  const { layers } = model;
  const rates = groups.map((group) =>
    group.reduce((sum, peer) => sum + 1 / model.seconds(peer, 0, 1, "none"), 0)
  );
  const room = groups.map((group) => {
    const each = group.map((peer) => capacityOf(model, peer, slots));
    return (first: number, end: number) =>
      each.every((capacity) => end - first <= limitOf(capacity, first, end, layers));
  });
  const seconds = (s: number, first: number, end: number) =>
    room[s]!(first, end) ? model.work(first, end) / rates[s]! : Infinity;
  return bestSplit(layers, groups.length, seconds);
}

function limitOf(capacity: Capacity, first: number, end: number, layers: number): number {
  if (first === 0) return end === layers ? capacity.whole : capacity.first;
  return end === layers ? capacity.last : capacity.middle;
}

/** Gives every further peer, fastest first, to the slowest stage that has room for it; then cuts the layers anew. */
function fill(model: CostModel, start: Candidate): Candidate {
  let { stages, cost } = start;
  for (const peer of start.spares) {
    const grown = withPeer(model, stages, peer);
    if (grown !== null && grown.cost.seconds <= cost.seconds * TOLERANCE) ({ stages, cost } = grown);
  }
  const recut = startFrom(model, stages.map((stage) => stage.peers));
  if (recut !== null && recut.cost.seconds < cost.seconds) ({ stages, cost } = recut);
  // Peers taken on trust may not have paid off.
  return start.cost.seconds < cost.seconds ? start : { stages, spares: sparesOf(model, stages), cost };
}

/** Stages that are looked at for a further peer, slowest first. */
const STAGES_PER_PEER = 3;

function withPeer(
  model: CostModel,
  stages: readonly GroupStage[],
  peer: number,
): Omit<Candidate, "spares"> | null {
  const slowest = [...stages.keys()].toSorted((a, b) =>
    stages[b]!.options[0]!.pace - stages[a]!.options[0]!.pace
  );
  let best: Omit<Candidate, "spares"> | null = null;
  let looked = 0;
  for (const s of slowest) {
    const { peers, first, end } = stages[s]!;
    const grown = model.stage([...peers, peer], first, end);
    if (grown === null) continue;
    const next = stages.with(s, grown);
    const cost = model.evaluate(next);
    if (best === null || cost.seconds < best.cost.seconds) best = { stages: next, cost };
    if (++looked >= (model.peers <= SMALL_SWARM ? STAGES_PER_PEER : 1)) break;
  }
  return best;
}

/** Local search: takes every move that lowers the cost, until none does or the evaluations are spent. */
function improve(model: CostModel, start: Candidate, limits: SearchLimits): Candidate {
  const { keepDepth = limits.exactly } = limits;
  let current = start;
  let left = Math.min(EVALUATIONS_MAX, EVALUATIONS_TIMES_PEERS / model.peers);
  for (let moved = true; moved && left > 0;) {
    moved = false;
    for (const stages of neighbours(model, current, { keepDepth })) {
      if (left-- <= 0) break;
      const cost = model.evaluate(stages);
      if (cost.seconds >= current.cost.seconds * (1 - 1e-9)) continue;
      current = candidateOf(model, stages);
      moved = true;
      break;
    }
  }
  return current;
}
