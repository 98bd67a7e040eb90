// The stages of a schedule that places them itself, with all that a view needs beside: a second holder for each stage, and whose
// steps are made on a GPU. Pure; where the stages go is textbook_view.ts's. What must stay true: nothing that is added here takes
// the schedule's order away, and whatever a peer is given fits what it offers.
import type { PlacedScheduleId } from "../../peer/schedule/catalogue.ts";
import { placedOf } from "../../peer/schedule/placed.ts";
import type { ModelSpec, RunConfig, StagePlan, View } from "../../peer/wire/run.ts";
import { type Fit, hasRoom } from "./fit.ts";
import { chooseOptimizers } from "./gpu_optimizer.ts";
import { HIDDEN_SHARE, weightOf } from "./plan_request.ts";
import type { PeerRecord } from "./run_state.ts";
import { planTextbook, type Textbook } from "./textbook_view.ts";

/** A configuration that names such a schedule. */
export type PlacedConfig = RunConfig & { schedule: PlacedScheduleId };

export interface PlacedRequest {
  spec: ModelSpec;
  config: PlacedConfig;
  /** All usable. */
  peers: readonly PeerRecord[];
  fit: Fit;
}

/** The schedule on these peers, shadows included; or why it cannot be had. */
export function placedStages({ spec, config, peers, fit }: PlacedRequest): Textbook {
  const found = planTextbook({ spec, config, peers, fit, speedOf: weightOf });
  if (found.stages !== null && config.shadows) addShadows(found.stages, peers, fit);
  return found;
}

/** Steps on a GPU take slots away, which may end the order: then they are made in the exact core. */
export function withOptimizers(
  fit: Fit,
  request: { config: RunConfig; peers: readonly PeerRecord[] },
  { schedule, stages }: Pick<View, "schedule" | "stages">,
): StagePlan[] {
  const chosen = [...stages];
  chooseOptimizers(fit, request, chosen);
  const kept = placedOf({ schedule, stages }) === null || placedOf({ schedule, stages: chosen }) !== null;
  return kept ? chosen : stages;
}

/**
 * Gives every stage with a single holder a shadow: the peer that holds the fewest parameters so far, the next stage's
 * holder first among equals; one in the background counts as if it held more, one without room is not asked. Weight-0 holders of
 * the step protocol: they log totals and apply steps.
 */
export function addShadows(stages: StagePlan[], peers: readonly PeerRecord[], fit: Fit): void {
  const load = new Map(peers.map((peer) => [peer.id, 0]));
  const share = new Map(peers.map((peer) => [peer.id, peer.hidden ? HIDDEN_SHARE : 1]));
  const burden = (peer: string) => (load.get(peer)! + 1) / share.get(peer)!;
  const add = (peer: string, stage: StagePlan) =>
    load.set(peer, (load.get(peer) ?? 0) + stage.endLayer - stage.firstLayer);
  for (const stage of stages) for (const { peer } of stage.replicas) add(peer, stage);
  stages.forEach((stage, s) => {
    if (stage.replicas.length > 1) return;
    const next = stages[(s + 1) % stages.length]!.replicas[0]!.peer;
    const roomy = peers.filter((peer) => hasRoom(fit, stages, { stage, peer })).map((peer) => peer.id);
    const order = [next, ...roomy].filter((id) => id !== stage.replicas[0]!.peer && roomy.includes(id));
    const chosen = order.toSorted((a, b) => burden(a) - burden(b))[0];
    if (chosen === undefined) return;
    stage.replicas.push({ peer: chosen, microBatches: [] });
    add(chosen, stage);
  });
}
