// Whether the peers' memories hold the model at all, and what is missing if not. Pure. What must stay true: a request that
// passes here has a pipeline of single peers that fits, and one that fails has none.
import { type CostModel, RECOMPUTE_MODES } from "./planner_model.ts";
import type { Infeasible } from "./planner_types.ts";

/** Most layers that a peer can hold, by where they are in the pipeline; 0 if not even one. */
export interface Capacity {
  /** With the embedding, in the middle, with the head, and with both. */
  first: number;
  middle: number;
  last: number;
  whole: number;
}

/** Capacities with so many slots, at the leanest recompute mode that the run allows. */
export function capacityOf(model: CostModel, peer: number, slots = 1): Capacity {
  const { layers } = model;
  const recompute = model.modes.at(-1) ?? RECOMPUTE_MODES[0]!;
  const room = model.request.peers[peer]!.memoryBytes;
  const most = (limit: number, range: (count: number) => { first: number; end: number }) => {
    let low = 0;
    for (let high = limit; low < high;) {
      const middle = (low + high + 1) >> 1;
      if (model.bytes(peer, range(middle), { slots, recompute }) <= room) low = middle;
      else high = middle - 1;
    }
    return low;
  };
  // A stage in the middle leaves a layer at each end.
  const inner = most(Math.max(0, layers - 2), (count) => ({ first: 1, end: 1 + count }));
  const first = most(layers - 1, (count) => ({ first: 0, end: count }));
  const last = most(layers - 1, (count) => ({ first: layers - count, end: layers }));
  const whole = most(1, () => ({ first: 0, end: layers })) * layers;
  return { first, middle: inner, last, whole };
}

/** Peers in pipeline order, alone on their stages. */
export interface Anchors {
  peers: number[];
  /** Layers that they can hold together. */
  layers: number;
}

/** The line of at most `stages` peers that can hold the most layers; empty if nobody can hold an end. */
export function roomiest(capacities: readonly Capacity[], stages: number, layers: number): Anchors {
  let best: Anchors = { peers: [], layers: 0 };
  const alone = capacities.findIndex(({ whole }) => whole >= layers);
  if (alone >= 0) best = { peers: [alone], layers };
  const order = [...capacities.keys()].toSorted((a, b) =>
    capacities[b]!.middle - capacities[a]!.middle || a - b
  );
  // Whoever stands at an end gives up a place in the middle, so all pairs of ends are tried.
  if (stages < 2) return best;
  const between = order.slice(0, stages - 2).reduce((sum, peer) => sum + capacities[peer]!.middle, 0);
  for (const [first, head] of capacities.entries()) {
    if (head.first === 0) continue;
    for (const [last, tail] of capacities.entries()) {
      if (first === last || tail.last === 0) continue;
      if (head.first + tail.last + between <= best.layers) {
        // Not more, even with the roomiest of all between them.
        if (best.layers >= layers) return best;
        continue;
      }
      let sum = head.first + tail.last;
      let taken = 2;
      for (const peer of order) {
        if (taken >= stages || sum >= layers || capacities[peer]!.middle === 0) break;
        if (peer === first || peer === last) continue;
        sum += capacities[peer]!.middle;
        taken++;
      }
      if (sum > best.layers) best = { peers: lineOf(order, { first, last, taken }), layers: sum };
      if (best.layers >= layers) return best;
    }
  }
  return best;
}

function lineOf(order: readonly number[], of: { first: number; last: number; taken: number }): number[] {
  const { first, last, taken } = of;
  const middle = order.filter((peer) => peer !== first && peer !== last).slice(0, taken - 2);
  return [first, ...middle, last];
}

/** Null if some pipeline of at most `stages` stages fits; else the sentence. */
export function infeasibility(
  model: CostModel,
  capacities: readonly Capacity[],
  stages: number,
): Infeasible | null {
  const { layers, request } = model;
  if (request.peers.length === 0) {
    const missing = model.layers === 0 ? 0 : leanBytes(model, layers);
    return {
      ...{ kind: "infeasible", missingLayers: layers, missingBytes: missing },
      reason: `There are no peers; the model needs about ${megabytes(missing)}.`,
    };
  }
  const { layers: held } = roomiest(capacities, stages, layers);
  if (held >= layers) return null;
  if (stages === 1) return noWhole(model);
  if (held === 0) return noEnds(model);
  const missingLayers = layers - held;
  const missingBytes = leanBytes(model, missingLayers);
  const offered = request.peers.reduce((sum, peer) => sum + peer.memoryBytes, 0);
  const among = stages < request.peers.length ? `, in at most ${plural(stages, "stage")},` : "";
  return {
    ...{ kind: "infeasible", missingLayers, missingBytes },
    reason:
      `The model's ${plural(layers, "layer")} do not fit: ${
        plural(request.peers.length, "peer")
      }${among} can hold ` +
      `${held} of them; room for ${missingLayers} more, about ${megabytes(missingBytes)}, is missing ` +
      `(${megabytes(offered)} are offered in all).`,
  };
}

/** One stage is all there may be, and nobody can hold it. */
function noWhole(model: CostModel): Infeasible {
  const { layers, request } = model;
  const needed = leanBytes(model, layers);
  const largest = Math.max(...request.peers.map((peer) => peer.memoryBytes));
  const missingBytes = needed - largest;
  return {
    ...{ kind: "infeasible", missingLayers: layers, missingBytes },
    reason:
      `The model does not fit: in one stage it takes about ${
        megabytes(needed)
      }, and the largest peer offers ` +
      `${megabytes(largest)}; ${megabytes(missingBytes)} are missing.`,
  };
}

/** No two peers can hold the first and the last layer, which the embedding and the head come with. */
function noEnds(model: CostModel): Infeasible {
  const { layers, request } = model;
  const recompute = model.modes.at(-1)!;
  const ends = [[0, 1], [layers - 1, layers]] as const;
  const needs = ends.map(([first, end]) => model.bytes(0, { first, end }, { slots: 1, recompute }));
  const offers = request.peers.map((peer) => peer.memoryBytes).toSorted((a, b) => b - a);
  needs.sort((a, b) => b - a);
  const missingBytes = needs.reduce((sum, need, i) => sum + Math.max(0, need - offers[i]!), 0);
  return {
    ...{ kind: "infeasible", missingLayers: layers, missingBytes },
    reason:
      `The model does not fit: its two ends take about ${
        needs.map(megabytes).join(" and ")
      } with one layer each, ` +
      `and the two largest peers offer ${offers.slice(0, 2).map(megabytes).join(" and ")}; ` +
      `${megabytes(missingBytes)} are missing.`,
  };
}

/** Bytes of so many layers at one end of the model, one slot, leanest mode: what more memory must bring. */
function leanBytes(model: CostModel, count: number): number {
  const { layers, request } = model;
  const recompute = model.modes.at(-1) ?? "none";
  const engine = model.engines[0]?.engine ?? "wgsl";
  const stage = model.stageSpec(count < layers ? 1 : 0, Math.min(layers, count < layers ? 1 + count : count));
  return request.memory(stage, { slots: 1, recompute }, engine);
}

export function megabytes(bytes: number): string {
  return `${Math.ceil(bytes / 1e6)} MB`;
}

export function plural(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
