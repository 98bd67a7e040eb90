// Where a peer without a stage helps most: a stage with one holder, if the run wants two of each; then the one with which a step gets
// shortest by the planner's cost model; nowhere, if no step would get shorter. Pure; it gives nobody work.
import type { StagePlan } from "../../peer/wire/run.ts";
import { CostModel, type GroupStage } from "../plan/planner_model.ts";
import { requestOf } from "./plan_request.ts";
import type { PeerRecord, RunCoreState } from "./run_state.ts";
import { neediestStage } from "./shares.ts";

/** A further replica must shorten a step this much: its state has to travel, and its sums with every step. */
const GAIN_LEAST = 0.02;

/** A stage of `roomy`, which have room for the peer; null if it would help none of them. */
export function helpedMost(
  s: RunCoreState,
  stages: StagePlan[],
  { peer, roomy }: { peer: PeerRecord; roomy: StagePlan[] },
): number | null {
  const bare = s.config.shadows ? roomy.filter((stage) => stage.replicas.length < 2) : [];
  if (bare.length > 0) return neediestStage(bare, s.peers);
  if (s.view?.schedule !== "dynamic") return neediestStage(roomy, s.peers);
  const best = fastestWith(s, stages, { peer, roomy });
  return best === undefined ? neediestStage(roomy, s.peers) : best;
}

/** Undefined if the cost model cannot say: somebody holds more than it would plan. */
function fastestWith(
  s: RunCoreState,
  stages: StagePlan[],
  { peer, roomy }: { peer: PeerRecord; roomy: StagePlan[] },
): number | null | undefined {
  const { spec, config } = s;
  const others = Object.values(s.peers).filter((it) => it.blockMs > 0);
  const peers = others.includes(peer) ? others : [...others, peer];
  const model = new CostModel({ ...requestOf({ spec, config, peers }), hiddenAlone: true });
  const index = new Map(peers.map(({ id }, i) => [id, i]));
  const group = ({ firstLayer, endLayer, replicas }: StagePlan, further?: string): GroupStage | null => {
    // Who learns will compute once it has learnt.
    const working = replicas.filter((it) => it.microBatches.length > 0 || it.learning === true);
    const ids = [...working.map((it) => it.peer), ...(further === undefined ? [] : [further])];
    const members = ids.flatMap((id) => index.get(id) ?? []);
    return members.length === 0 ? null : model.stage(members, firstLayer, endLayer);
  };
  const now = stages.map((stage) => group(stage));
  if (!now.every((stage) => stage !== null)) return undefined;
  let best: { stage: number | null; seconds: number } = {
    stage: null,
    seconds: model.evaluate(now).seconds * (1 - GAIN_LEAST),
  };
  for (const stage of roomy) {
    const grown = group(stage, peer.id);
    if (grown === null) continue;
    const { seconds } = model.evaluate(now.with(stage.index, grown));
    if (seconds < best.seconds) best = { stage: stage.index, seconds };
  }
  return best.stage;
}
