// A plan as a view: what peers execute. Pure; loses what a view has no room for (spares, reasons, a codec per boundary).
import type { CodecId, StagePlan, View } from "../../peer/wire/run.ts";
import { BYTES_PER_VALUE } from "./planner_model.ts";
import type { BoundaryCodecs, Plan } from "./planner_types.ts";

export interface ViewOptions {
  gen: number;
  /** Generation with which this cut of the layers began. Default: gen. */
  cut?: number;
  baseStep: number;
  /** Of a plan without boundaries. */
  codecs: BoundaryCodecs;
}

export function viewOf(plan: Plan, options: ViewOptions): View {
  const stages = plan.stages.map((stage): StagePlan => {
    const { index, firstLayer, endLayer, embed, head, inflight, recompute } = stage;
    const computing = stage.replicas.map(({ peer, microBatches }) => ({
      peer,
      microBatches: [...microBatches],
    }));
    const shadows = stage.shadows.map((peer) => ({ peer, microBatches: [] }));
    return {
      ...{ index, firstLayer, endLayer, embed, head, inflight, replicas: [...computing, ...shadows] },
      ...(recompute === "none" ? {} : { recompute }),
    };
  });
  return {
    ...{ gen: options.gen, cut: options.cut ?? options.gen, baseStep: options.baseStep },
    ...{ stages, schedule: plan.schedule },
    // One codec for all boundaries: the one that the slowest of them needs.
    codecForward: coarsest(plan.codecs.map(({ forward }) => forward), options.codecs.forward),
    codecBackward: coarsest(plan.codecs.map(({ backward }) => backward), options.codecs.backward),
  };
}

function coarsest(codecs: readonly CodecId[], otherwise: CodecId): CodecId {
  return codecs.toSorted((a, b) => BYTES_PER_VALUE[a] - BYTES_PER_VALUE[b])[0] ?? otherwise;
}
