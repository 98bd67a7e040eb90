// Which stages make their steps on a GPU: those that one peer holds whose engine can, with room for both ways. Pure. It moves
// nothing; at most it lowers slots that memory had to spare.
import { INFLIGHT_SLACK } from "../../peer/schedule/windows.ts";
import type { RunConfig, StagePlan } from "../../peer/wire/run.ts";
import { isDelayed, isLora } from "../../peer/wire/view.ts";
import { type Fit, roomBeside } from "./fit.ts";
import type { PeerRecord } from "./run_state.ts";

/**
 * The ends of a tied embedding must add up integers, with delayed gradients a state has older weights, which a GPU does not
 * keep, and what a GPU trains is a whole stage, not adapters. Changes the stages in their list.
 */
export function chooseOptimizers(
  fit: Fit,
  { config, peers }: { config: RunConfig; peers: readonly PeerRecord[] },
  stages: StagePlan[],
): void {
  if (isDelayed(config) || isLora(config)) return;
  stages.forEach((stage, s) => {
    const [only, ...others] = stage.replicas;
    const peer = peers.find((it) => it.id === only?.peer);
    const tied = config.tie_word_embeddings && stage.embed !== stage.head;
    if (peer?.gpuOptimizer !== true || others.length > 0 || tied) return;
    const chosen = withRoom(fit, stages, { s, peer });
    if (chosen !== null) stages[s] = chosen;
  });
}

/** Slots beyond what keeps the pipeline busy are worth less than a step without a readback. */
function withRoom(
  fit: Fit,
  stages: readonly StagePlan[],
  { s, peer }: { s: number; peer: PeerRecord },
): StagePlan | null {
  const { inflight } = stages[s]!;
  const least = Math.min(inflight, stages.length - s + INFLIGHT_SLACK);
  for (let slots = inflight; slots >= least; slots--) {
    const chosen: StagePlan = { ...stages[s]!, inflight: slots, optimizer: "gpu" };
    if (roomBeside(fit, stages.with(s, chosen), peer) >= 0) return chosen;
  }
  return null;
}
