// What peers of a simulation tell of their speed, so that the coordinator has something to weigh its plan by: nothing, until one of
// them has become slow; from then on everybody tells times that follow from what was measured. No clock, and no work is done faster
// or slower for it: what is told is what the coordinator decides by.
import type { StageTimes } from "../../peer/wire/measures.ts";
import type { StagePlan } from "../../peer/wire/run.ts";
import { shareOf, stagesOf } from "../../peer/wire/view.ts";
import { IDLE_BEAT } from "./probe.ts";
import type { SimPeer } from "./types.ts";
import type { World } from "./world.ts";

/** What peers take over what they measured when they joined. */
const factors = new WeakMap<World, Map<string, number>>();

/** From here on the peer takes so many times as long. */
export function slowDown(world: World, peer: string, factor: number): void {
  const known = factors.get(world) ?? new Map<string, number>();
  factors.set(world, known.set(peer, factor));
}

/** A heartbeat, with times if anybody in this world tells any. */
export function beatOf(world: World, peer: SimPeer) {
  const known = factors.get(world);
  const { view, committed } = peer.core.state;
  if (known === undefined || view === null) return IDLE_BEAT;
  const blockMs = world.coordinator.state.peers[peer.id]?.blockMs ?? 0;
  const computed = stagesOf(view, peer.id).filter((stage) => shareOf(stage, peer.id).length > 0);
  const ms = blockMs * (known.get(peer.id) ?? 1);
  return { ...IDLE_BEAT, ops: computed.map((stage) => timesOf(stage, view.cut, { committed, ms })) };
}

function timesOf(stage: StagePlan, cut: number, of: { committed: number; ms: number }): StageTimes {
  const third = of.ms * (stage.endLayer - stage.firstLayer) / 3;
  const microBatches = 4 * (of.committed + 1);
  return {
    ...{ cut, stage: stage.index, microBatches, waitMs: 0 },
    ...{ forwardMs: third, backwardMs: third, weightGradMs: third },
  };
}
