// The same groups with two stages each, so that a peer has something to do while its other stage waits: what the looped and the
// V-shaped schedules gain from, in the dynamic order. Pure. What must stay true: what a peer holds for both of its stages fits
// its memory, and the simulator has found the step to be shorter by more than the second crossing of each link is worth.
import { INFLIGHT_SLACK } from "../../peer/schedule/windows.ts";
import type { RecomputeId } from "../../peer/wire/run.ts";
import { bestSplit, type LayerRange } from "./partition.ts";
import type { CostModel, GroupStage, LayoutCost } from "./planner_model.ts";
import { predict, type PredictedStage } from "./planner_predict.ts";
import type { Judged } from "./planner_refine.ts";
import { bestShares, dealOut } from "./planner_shares.ts";

/** A step must be this much shorter: each departure then takes two stages along, and each link carries twice as much. */
const DOUBLED_GAIN = 0.985;
/** Idle share below which there is too little to win. */
const BUBBLE_LEAST = 0.02;
/** Simulated operations of one trial; a longer step hardly has bubbles, and planning has its limit. */
const OPS_MAX = 12_000;
/** Boundaries are moved one layer at a time, so often at most. */
const MOVES_MAX = 64;

/** Which group holds stage s of 2P: down and up again, or round and round. */
const PLACEMENTS: readonly ((s: number, P: number) => number)[] = [
  (s, P) => s < P ? s : 2 * P - 1 - s,
  (s, P) => s % P,
];

/** The best layout with two stages per group if it is worth it, or if the request wants it; else null. */
export function doubled(model: CostModel, best: Judged): Judged | null {
  const { candidate, prediction } = best;
  const P = candidate.stages.length;
  const { request, layers, N } = model;
  const { twoEach = false } = request;
  // Two stages each cross every link twice, which nobody should have to do over links that were not measured.
  const open = request.config.n_stage === 0 && prediction.schedule === "dynamic" && !model.doubtful;
  // All that idles cannot win more than it lasts, and every hop is made once more, there and back.
  const hops = candidate.stages.slice(1).map(({ peers }, s) =>
    model.hop(candidate.stages[s]!.peers, peers).round
  );
  const gain = prediction.bubble * prediction.seconds - hops.reduce((sum, round) => sum + round, 0);
  const worth = prediction.bubble >= BUBBLE_LEAST && gain > 0 && 6 * N * P <= OPS_MAX;
  if (P < 2 || layers < 2 * P || !(twoEach || (open && worth))) return null;
  const groups = candidate.stages.map(({ peers }) => peers);
  let found: Judged | null = null;
  let limit = twoEach ? Infinity : prediction.seconds * DOUBLED_GAIN;
  for (const placement of PLACEMENTS) {
    const order = Array.from({ length: 2 * P }, (_, s) => groups[placement(s, P)]!);
    const layout = laidOut(model, order);
    if (layout === null) continue;
    const next = predict(model, layout, "dynamic", { stages: layout.loads });
    if (next.seconds >= limit) continue;
    limit = next.seconds;
    found = { candidate: { ...layout, spares: candidate.spares }, prediction: next };
  }
  return found;
}

interface Layout {
  stages: GroupStage[];
  loads: PredictedStage[];
  cost: LayoutCost;
}

/** Null if some memory does not hold both stages. */
function laidOut(model: CostModel, order: readonly (readonly number[])[]): Layout | null {
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
    const run = runOf(model, stages, recompute);
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

function runOf(model: CostModel, stages: readonly GroupStage[], recompute: RecomputeId): Run | null {
  const { N } = model;
  const own = stages.map(({ peers, first, end }) =>
    peers.map((peer) => model.seconds(peer, first, end, recompute))
  );
  // A member has the same micro-batches in both stages, so that some of their tensors need no link.
  const both = stages.map((stage) => {
    const places = [...stages.keys()].filter((s) => stages[s]!.peers === stage.peers);
    return stage.peers.map((_, i) => places.reduce((sum, s) => sum + own[s]![i]!, 0));
  });
  const counts = both.map((seconds) => bestShares(seconds, N));
  const mean = (seconds: number[], s: number) =>
    seconds.reduce((sum, it, i) => sum + it * counts[s]![i]! / N, 0);
  const paces = both.map((seconds, s) => Math.max(...seconds.map((it, i) => it * counts[s]![i]! / N)));
  const hops = stages.slice(1).map(({ peers }, s) => model.hop(stages[s]!.peers, peers).round);
  const round = own.reduce((sum, seconds, s) => sum + mean(seconds, s), 0) +
    hops.reduce((sum, hop) => sum + hop, 0);
  const flights = Math.min(N, Math.ceil(round / Math.max(...paces) - 1e-9) + INFLIGHT_SLACK);
  const largest = counts.map((shares) => Math.max(...shares));
  const wanted = Math.max(...largest.map((most) => Math.max(1, Math.ceil(flights * most / N - 1e-9))));
  const slots = slotsFor(model, stages, { recompute, wanted });
  if (slots === 0) return null;
  const loads = stages.map((stage, s) => ({
    ...{ stage, recompute, inflight: Math.min(slots, largest[s]!) },
    shares: dealOut(both[s]!, counts[s]!, N),
  }));
  return { wanted, slots, loads, round, paces };
}

/** As many as wanted, or as the smallest peer has room for beside its other stage; 0 if not one. */
function slotsFor(
  model: CostModel,
  stages: readonly GroupStage[],
  { recompute, wanted }: { recompute: RecomputeId; wanted: number },
): number {
  const peers = new Set(stages.flatMap((stage) => stage.peers));
  const fits = (slots: number) =>
    [...peers].every((peer) => {
      const held = stages.filter((stage) => stage.peers.includes(peer));
      const bytes = held.reduce((sum, stage) => sum + model.bytes(peer, stage, { slots, recompute }), 0);
      return bytes <= model.request.peers[peer]!.memoryBytes;
    });
  let slots = wanted;
  while (slots > 0 && !fits(slots)) slots--;
  return slots;
}

function costOf(model: CostModel, stages: readonly GroupStage[], { round, paces }: Run): LayoutCost {
  const pace = Math.max(...paces);
  const sync = Math.max(...stages.map((stage) => stage.sync));
  const rest = { slowest: paces.indexOf(pace), options: stages.map(() => 0) };
  return { seconds: model.total({ round, pace, sync }), pace, round, sync, ...rest };
}
