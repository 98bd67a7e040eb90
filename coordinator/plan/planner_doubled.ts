// The same groups with two stages each, so that a peer has something to do while its other stage waits: what the looped and the
// V-shaped schedules gain from, in the dynamic order. Pure. What must stay true: what a peer holds for both of its stages fits
// its memory, and the simulator has found the step to be shorter by more than the second crossing of each link is worth.
import { INFLIGHT_SLACK } from "../../peer/schedule/windows.ts";
import type { RecomputeId } from "../../peer/wire/run.ts";
import { bestSplit, type LayerRange } from "./partition.ts";
import type { CostModel, GroupStage, LayoutCost } from "./planner_model.ts";
import { predict, type PredictedStage, type Prediction } from "./planner_predict.ts";
import type { Judged } from "./planner_refine.ts";
import {
  dealtBothWays,
  goesDown,
  type Group,
  mirrored,
  ownMembers,
  slopedSlots,
} from "./planner_mirrored.ts";
import { bestShares, dealOut } from "./planner_shares.ts";

/** A step must be this much shorter: each departure then takes two stages along, and each link carries twice as much. */
const DOUBLED_GAIN = 0.985;
/** Idle share below which there is too little to win. */
const BUBBLE_LEAST = 0.02;
/** Simulated operations of one trial; a longer step hardly has bubbles, and planning has its limit. */
const OPS_MAX = 12_000;
/** Slots over those that cover the round trip: weight gradients of one stage wait longer while there is work in the other. */
const SLOTS_OVER = 2;
/** Where the run asks for fewer stages than this, each peer would hold more than half of the model, for which nobody cuts it. */
const FIXED_LEAST = 4;
/** Boundaries are moved one layer at a time, so often at most. */
const MOVES_MAX = 64;

/**
 * How groups hold two stages each. A placement with 2P stages names the group of each: down and up again, or round and round. The
 * mirrored one has P stages as before, and group s holds stage P-1-s too, for the other half of the micro-batches, which so go
 * through the same groups the other way round (as in Chimera and DualPipe).
 */
const PLACEMENTS: readonly ((groups: readonly Group[]) => Placement)[] = [
  (groups) => ({ order: [...groups, ...groups.toReversed()] }),
  (groups) => ({ order: [...groups, ...groups] }),
  (groups) => ({ order: mirrored(groups), lone: groups }),
];

interface Placement {
  /** The group of each stage, of all its members; two stages of the same group have the same array. */
  order: Group[];
  /** Of a mirrored placement: the groups as they were alone. */
  lone?: readonly Group[];
}

/**
 * The best layout with two stages per group if it is worth it, or if the request wants it; else null. Whether it also is where links
 * that nobody has measured turn out to be slow is not looked at: the planner asks with all slots that memory has left.
 */
export function doubled(model: CostModel, best: Judged): Judged | null {
  const { candidate, prediction } = best;
  const { request, N } = model;
  const { twoEach = false } = request;
  const groups = candidate.stages.map(({ peers }) => peers);
  const { n_stage, schedule } = request.config;
  // Steps that overlap leave nobody idle, whatever a step alone would.
  const open = prediction.schedule === "dynamic" && schedule !== "2bw" && mayDouble(n_stage, groups);
  const worth = prediction.bubble >= BUBBLE_LEAST && 6 * N * groups.length <= OPS_MAX;
  if (groups.length < 2 || !(twoEach || (open && worth))) return null;
  // Twice the stages would be another number than the one asked for, and cross links twice that nobody may have measured.
  const asBefore = !twoEach && (n_stage > 0 || model.doubtful);
  let found: Judged | null = null;
  let limit = twoEach ? Infinity : prediction.seconds * DOUBLED_GAIN;
  for (const placement of PLACEMENTS.map((place) => place(groups))) {
    if (asBefore && placement.lone === undefined) continue;
    if (model.layers < placement.order.length || !(twoEach || mayGain(model, best, placement))) continue;
    const layout = laidOut(model, placement);
    if (layout === null) continue;
    const next = predict(model, layout, "dynamic", { stages: layout.loads });
    if (next.seconds >= limit) continue;
    limit = next.seconds;
    found = { candidate: { ...layout, spares: candidate.spares }, prediction: next };
  }
  return found;
}

/** Whether two stages each are a choice: with a number of stages that is asked for, only for as many lone peers. */
function mayDouble(n_stage: number, groups: readonly Group[]): boolean {
  if (n_stage === 0) return true;
  return n_stage >= FIXED_LEAST && n_stage === groups.length && groups.every((group) => group.length === 1);
}

/** Whether `two`, with two stages each, is enough faster than `one`. */
export function isFaster(two: Pick<Prediction, "seconds">, one: Pick<Prediction, "seconds">): boolean {
  return two.seconds < one.seconds * DOUBLED_GAIN;
}

/** All that idles cannot win more than it lasts, and with twice the stages every hop is made once more, there and back. */
function mayGain(model: CostModel, { candidate, prediction }: Judged, { lone }: Placement): boolean {
  if (lone !== undefined) return true;
  const hops = candidate.stages.slice(1).map(({ peers }, s) =>
    model.hop(candidate.stages[s]!.peers, peers).round
  );
  return prediction.bubble * prediction.seconds > hops.reduce((sum, round) => sum + round, 0);
}

interface Layout {
  stages: GroupStage[];
  loads: PredictedStage[];
  cost: LayoutCost;
}

/** Null if some memory does not hold both stages. */
function laidOut(model: CostModel, placement: Placement): Layout | null {
  const { order } = placement;
  const ranges = cutEvenly(model, order);
  if (ranges === null) return null;
  const stages: GroupStage[] = [];
  for (const [s, { firstLayer, endLayer }] of ranges.entries()) {
    const stage = model.stage(order[s]!, firstLayer, endLayer);
    if (stage === null) return null;
    stages.push(stage);
  }
  let roomiest: Run | null = null;
  for (const recompute of model.modes) {
    const run = runOf(model, stages, { placement, recompute });
    if (run !== null && (roomiest === null || run.slots > roomiest.slots)) roomiest = run;
    if (roomiest !== null && roomiest.slots >= roomiest.wanted) break;
  }
  return roomiest === null ? null : { stages, loads: roomiest.loads, cost: costOf(model, stages, roomiest) };
}

/** Layers so that the slowest group is as fast as can be with both of its stages. */
function cutEvenly(model: CostModel, order: readonly (readonly number[])[]): LayerRange[] | null {
  const rates = order.map((group) =>
    group.reduce((sum, peer) => sum + 1 / model.seconds(peer, 0, 1, "none"), 0)
  );
  const seconds = (s: number, first: number, end: number) => model.work(first, end) / rates[s]!;
  const start = bestSplit(model.layers, order.length, seconds);
  if (start === null) return null;
  // Per group: the slowest, and among equals the more even.
  const unevenness = (ranges: readonly LayerRange[]) => {
    const sums = new Map<readonly number[], number>();
    ranges.forEach(({ firstLayer, endLayer }, s) =>
      sums.set(order[s]!, (sums.get(order[s]!) ?? 0) + seconds(s, firstLayer, endLayer))
    );
    const squares = [...sums.values()].reduce((sum, it) => sum + it * it, 0);
    return Math.max(...sums.values()) + squares * 1e-3;
  };
  let ranges = start;
  for (let moves = 0; moves < MOVES_MAX; moves++) {
    const better = neighboursOf(ranges).find((next) => unevenness(next) < unevenness(ranges) * (1 - 1e-9));
    if (better === undefined) break;
    ranges = better;
  }
  return ranges;
}

/** One layer over one boundary. */
function neighboursOf(ranges: readonly LayerRange[]): LayerRange[][] {
  return ranges.slice(1).flatMap(({ firstLayer }, s) =>
    [firstLayer - 1, firstLayer + 1]
      .filter((cut) => cut > ranges[s]!.firstLayer && cut < ranges[s + 1]!.endLayer)
      .map((cut) =>
        ranges.with(s, { ...ranges[s]!, endLayer: cut }).with(s + 1, { ...ranges[s + 1]!, firstLayer: cut })
      )
  );
}

interface Run {
  /** Micro-batches in flight that cover the round trip, and those that memory allows; of the largest share. */
  wanted: number;
  slots: number;
  loads: PredictedStage[];
  round: number;
  /** Seconds per micro-batch of each stage's group, both of its stages together. */
  paces: number[];
}

function runOf(
  model: CostModel,
  stages: readonly GroupStage[],
  { placement, recompute }: { placement: Placement; recompute: RecomputeId },
): Run | null {
  const { N } = model;
  const { order, lone } = placement;
  const own = stages.map(({ peers, first, end }) =>
    peers.map((peer) => model.seconds(peer, first, end, recompute))
  );
  // A member has as many micro-batches in one stage as in the other.
  const both = stages.map((stage, at) => {
    const places = [...stages.keys()].filter((s) => order[s] === order[at]);
    return stage.peers.map((_, i) => places.reduce((sum, s) => sum + own[s]![i]!, 0));
  });
  const counts = both.map((seconds) => bestShares(seconds, N));
  // Whoever gets nothing to compute holds nothing either, and the other one would hold both stages alone.
  if (counts.some((shares) => shares.includes(0))) return null;
  const mean = (seconds: number[], s: number) =>
    seconds.reduce((sum, it, i) => sum + it * counts[s]![i]! / N, 0);
  const paces = both.map((seconds, s) => Math.max(...seconds.map((it, i) => it * counts[s]![i]! / N)));
  const line = lone ?? order;
  const rounds = own.map(() => 0);
  for (let s = own.length - 1; s >= 0; s--) {
    const hop = s + 1 < line.length ? model.hop(line[s]!, line[s + 1]!).round : 0;
    rounds[s] = mean(own[s]!, s) + hop + (rounds[s + 1] ?? 0);
  }
  const round = rounds[0]!;
  const covering = Math.ceil(round / Math.max(...paces) - 1e-9) + INFLIGHT_SLACK;
  const flights = Math.min(N, SLOTS_OVER * covering);
  const largest = counts.map((shares) => Math.max(...shares));
  const wanted = Math.max(...largest.map((most) => Math.max(1, Math.ceil(flights * most / N - 1e-9))));
  const passes = rounds.map((it) => it / Math.max(...paces));
  const inflight = (slots: number) =>
    (lone === undefined ? stages.map(() => slots) : slopedSlots(passes, slots))
      .map((it, s) => Math.min(it, largest[s]!));
  const slots = slotsFor(model, stages, { recompute, wanted, inflight });
  if (slots === 0) return null;
  const loads = stages.map((stage, s) => ({
    ...{ stage, recompute, inflight: inflight(slots)[s]! },
    shares: lone === undefined
      ? dealOut(both[s]!, counts[s]!, N)
      : dealtBothWays(both[s]!, counts[s]!, { N, isOwn: ownMembers(lone, s) }),
  }));
  return { wanted, slots, loads, round, paces };
}

/** As many as wanted, or as the smallest peer has room for beside its other stage; 0 if not one. */
function slotsFor(
  model: CostModel,
  stages: readonly GroupStage[],
  { recompute, wanted, inflight }: {
    recompute: RecomputeId;
    wanted: number;
    inflight: (slots: number) => number[];
  },
): number {
  const peers = new Set(stages.flatMap((stage) => stage.peers));
  const fits = (most: number) => {
    const slots = inflight(most);
    const bytes = (peer: number) =>
      stages.reduce((sum, stage, s) => {
        const holds = stage.peers.includes(peer);
        return holds ? sum + model.bytes(peer, stage, { slots: slots[s]!, recompute }) : sum;
      }, 0);
    return [...peers].every((peer) => bytes(peer) <= model.request.peers[peer]!.memoryBytes);
  };
  let slots = wanted;
  while (slots > 0 && !fits(slots)) slots--;
  return slots;
}

/**
 * A mirrored layout with its micro-batches dealt anew by the speeds of now, each peer as many in one of its stages as in the other;
 * null of any other layout.
 */
export function redealt(
  model: CostModel,
  { candidate, prediction }: Judged,
  shares: number[][][],
): Judged | null {
  const { stages } = candidate;
  const last = stages.length - 1;
  const sorted = stages.map(({ peers }) => peers.toSorted((a, b) => a - b).join());
  if (last < 1 || stages[0]!.peers.length < 2 || sorted.some((it, s) => it !== sorted[last - s])) return null;
  const dealt = prediction.stages.map((stage, s): PredictedStage => {
    const both = stages[s]!.peers.map((peer) =>
      [s, last - s].reduce((sum, at) => {
        const { first, end } = stages[at]!;
        return sum + model.seconds(peer, first, end, prediction.stages[at]!.recompute);
      }, 0)
    );
    const isOwn = (member: number) => s === last - s || goesDown(shares[s]![member]!);
    return { ...stage, shares: dealtBothWays(both, bestShares(both, model.N), { N: model.N, isOwn }) };
  });
  return { candidate, prediction: predict(model, candidate, prediction.schedule, { stages: dealt }) };
}

function costOf(model: CostModel, stages: readonly GroupStage[], { round, paces }: Run): LayoutCost {
  const pace = Math.max(...paces);
  const sync = Math.max(...stages.map((stage) => stage.sync));
  const rest = { slowest: paces.indexOf(pace), options: stages.map(() => 0) };
  return { seconds: model.total({ round, pace, sync }), pace, round, sync, ...rest };
}
