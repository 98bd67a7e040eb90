// A time that no plan of a request can beat, to judge the planner's plans by where the optimum is out of reach. Pure.
import { capacityOf, roomiest } from "./planner_feasible.ts";
import { CostModel, HIDDEN_SHARE } from "./planner_model.ts";
import type { PlanRequest } from "./planner_types.ts";

/**
 * Seconds of a step at least: all work shared by all peers without a wait; and one micro-batch's way through the fastest peer,
 * with the quickest hops between as few stages as the memories allow. Infinite if the model does not fit.
 */
export function stepBound(request: PlanRequest): number {
  const model = new CostModel(request);
  const peers = [...model.engines.keys()];
  const share = (peer: number) => request.peers[peer]!.hidden ? HIDDEN_SHARE : 1;
  const layers = model.work(0, model.layers);
  let throughput = 0;
  let fastest = Infinity;
  for (const peer of peers) {
    const { forward, backward, weightGrad } = model.engines[peer]!;
    throughput += share(peer) / (forward + backward + weightGrad);
    fastest = Math.min(fastest, (forward + backward + weightGrad) / share(peer));
  }
  const stages = fewestStages(model);
  const hops = peers.flatMap((i) => peers.filter((j) => j !== i).map((j) => model.hop([i], [j]).round));
  const quickest = stages > 1 ? Math.min(...hops) : 0;
  const commit = request.commitSeconds ?? 0;
  return Math.max(model.N * layers / throughput, layers * fastest + (stages - 1) * quickest) + commit;
}

function fewestStages(model: CostModel): number {
  const capacities = [...model.engines.keys()].map((peer) => capacityOf(model, peer));
  for (let stages = 1; stages <= Math.min(model.peers, model.layers); stages++) {
    if (roomiest(capacities, stages, model.layers).layers >= model.layers) return stages;
  }
  return Infinity;
}
