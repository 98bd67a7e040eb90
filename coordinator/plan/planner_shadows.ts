// From a prediction to the stages of a plan: who computes, who only keeps the state, who is left over. Pure. What must stay
// true: what a peer holds for all of its stages together fits its memory.
import type { CostModel } from "./planner_model.ts";
import type { Prediction } from "./planner_predict.ts";
import type { PlannedStage } from "./planner_types.ts";

export interface HolderStages {
  stages: PlannedStage[];
  spares: string[];
  /** Bytes that each peer has left. */
  left: number[];
  /** Stages that got no second holder although the run wants one, and the bytes that it would take. */
  unprotected: { stage: number; bytes: number }[];
}

/** Memory that each peer has left, and how many layers it holds. */
interface Room {
  left: number[];
  layers: number[];
}

/** Layers that peers hold already, by peer; whoever holds most of a stage needs the least to become its shadow. */
export type Held = ReadonlyMap<string, readonly { firstLayer: number; endLayer: number }[]>;

export function holderStages(model: CostModel, prediction: Prediction, held: Held = new Map()): HolderStages {
  const { peers } = model.request;
  const room: Room = { left: peers.map((peer) => peer.memoryBytes), layers: peers.map(() => 0) };
  const stages = prediction.stages.map(({ stage, recompute, inflight, shares }, index): PlannedStage => {
    const range = { first: stage.first, end: stage.end };
    const computing = stage.peers.filter((_, i) => shares[i]!.length > 0);
    let most = 0;
    for (const peer of computing) {
      const bytes = model.bytes(peer, range, { slots: inflight, recompute });
      most = Math.max(most, bytes);
      room.left[peer]! -= bytes;
      room.layers[peer]! += stage.end - stage.first;
    }
    const replicas = stage.peers.flatMap((peer, i) =>
      shares[i]!.length === 0
        ? []
        : [{ peer: peers[peer]!.id, engine: model.engines[peer]!.engine, microBatches: [...shares[i]!] }]
    );
    const { first, end } = stage;
    return { ...model.stageSpec(first, end, index), replicas, shadows: [], inflight, recompute, bytes: most };
  });
  const unprotected = model.request.config.shadows ? addShadows(model, stages, { room, held }) : [];
  const spares = peers.filter((_, i) => room.layers[i] === 0).map((peer) => peer.id);
  return { stages, spares, unprotected, left: room.left };
}

/**
 * The stages with as many slots as the memory that is left allows, first stages first, since theirs is the longest round trip;
 * null if nobody has room for more. The dynamic order gains from slots beyond its in-flight caps, because weight gradients
 * that wait for a gap hold theirs.
 */
export function widened(model: CostModel, { stages, left }: HolderStages): PlannedStage[] | null {
  const index = new Map(model.request.peers.map(({ id }, i) => [id, i]));
  const room = [...left];
  const wide = stages.map((stage): PlannedStage => {
    const range = { first: stage.firstLayer, end: stage.endLayer };
    const holders = [...stage.replicas.map(({ peer }) => peer), ...stage.shadows].map((id) => index.get(id)!);
    const bytes = (peer: number, slots: number) =>
      model.bytes(peer, range, { slots, recompute: stage.recompute });
    const more = (peer: number, slots: number) => bytes(peer, slots) - bytes(peer, stage.inflight);
    let slots = Math.max(...stage.replicas.map(({ microBatches }) => microBatches.length));
    while (slots > stage.inflight && !holders.every((peer) => more(peer, slots) <= room[peer]!)) slots--;
    if (slots <= stage.inflight) return stage;
    for (const peer of holders) room[peer]! -= more(peer, slots);
    return { ...stage, inflight: slots, bytes: Math.max(...holders.map((peer) => bytes(peer, slots))) };
  });
  return wide.some(({ inflight }, s) => inflight > stages[s]!.inflight) ? wide : null;
}

/**
 * A second holder for every stage with one: whoever has most of it already, then whoever holds the fewest layers and has
 * room, tabs in the background last.
 */
function addShadows(
  model: CostModel,
  stages: PlannedStage[],
  { room, held }: { room: Room; held: Held },
): HolderStages["unprotected"] {
  const { peers } = model.request;
  const unprotected: HolderStages["unprotected"] = [];
  // The largest first: later it would find no room.
  for (const stage of stages.toSorted((a, b) => b.bytes - a.bytes || a.index - b.index)) {
    if (stage.replicas.length > 1) continue;
    const range = { first: stage.firstLayer, end: stage.endLayer };
    const need = (peer: number) =>
      model.bytes(peer, range, { slots: stage.inflight, recompute: stage.recompute });
    const able = [...peers.keys()].filter((peer) =>
      peers[peer]!.id !== stage.replicas[0]!.peer && need(peer) <= room.left[peer]!
    );
    const burden = (peer: number) => room.layers[peer]! + (peers[peer]!.hidden ? model.layers : 0);
    const has = (peer: number) => layersHeld(held.get(peers[peer]!.id) ?? [], range);
    const chosen = able.toSorted((a, b) =>
      has(b) - has(a) || burden(a) - burden(b) || room.left[b]! - room.left[a]! || a - b
    )[0];
    if (chosen === undefined) {
      if (peers.length > 1) {
        unprotected.push({ stage: stage.index, bytes: stage.bytes });
      }
      continue;
    }
    stage.shadows.push(peers[chosen]!.id);
    room.left[chosen]! -= need(chosen);
    room.layers[chosen]! += stage.endLayer - stage.firstLayer;
  }
  return unprotected.toSorted((a, b) => a.stage - b.stage);
}

function layersHeld(
  held: readonly { firstLayer: number; endLayer: number }[],
  range: { first: number; end: number },
): number {
  let layers = 0;
  for (const { firstLayer, endLayer } of held) {
    layers += Math.max(0, Math.min(endLayer, range.end) - Math.max(firstLayer, range.first));
  }
  return layers;
}
