// A plan as a view: what peers execute. Pure; loses what a view has no room for (spares, reasons).
import type { StagePlan, View } from "../../peer/wire/run.ts";
import type { BoundaryCodecs, Plan } from "./planner_types.ts";

export interface ViewOptions {
  gen: number;
  /** Generation with which this cut of the layers began. Default: gen. */
  cut?: number;
  baseStep: number;
  /** The configuration's; boundaries that have others are listed. */
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
    ...{ codecForward: options.codecs.forward, codecBackward: options.codecs.backward },
    ...(plan.codecs.every((codecs) => isSame(codecs, options.codecs)) ? {} : { codecs: plan.codecs }),
  };
}

function isSame(a: BoundaryCodecs, b: BoundaryCodecs): boolean {
  return a.forward === b.forward && a.backward === b.backward;
}
