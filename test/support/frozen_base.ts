// The frozen base of runs that train adapters in simulations: a pure function of the layer, so every peer has the same without
// fetching it. Not how a real peer gets one (peer/base.ts).
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageBuild } from "../../peer/engine/engine.ts";
import { type CreateEngine, type StageBase, stageBase, withLora } from "../../peer/engine/lora.ts";
import { initParams } from "../../peer/model/init.ts";
import { baseSpec } from "../../peer/model/layout.ts";

/** Not the runs' own seed: a base was trained by somebody else. */
const BASE_SEED = 4711;

export function frozenBase({ spec, stage }: Pick<StageBuild, "spec" | "stage">): StageBase {
  return stageBase({ spec, stage }, initParams(baseSpec(spec), stage, BASE_SEED));
}

/** The CPU engine, beside that base where the model has adapters. */
export const createCpuBeside: CreateEngine = withLora(
  (build) => Promise.resolve(createCpuEngine(build)),
  frozenBase,
);
