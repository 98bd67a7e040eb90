// What adapters take on a peer beside the engine that computes with the merged weights, predicted from shapes alone. Equals what
// peer/engine/lora.ts allocates. No measurement.
import type { StageBuild, StageMemory } from "../engine/engine.ts";
import { baseSpec, stageLayout } from "./layout.ts";
import { loraTargets } from "./lora.ts";

const F32_BYTES = 4;
const F64_BYTES = 8;

/**
 * Params: the merged weights, the base's values of the matrices that have adapters, and the adapters. Scratch: the sums of a row that
 * is merged. Nothing without adapters; W is the engine's own business.
 */
export function loraMemory({ spec, stage }: Pick<StageBuild, "spec" | "stage">): StageMemory {
  if (spec.lora === undefined) return { params: 0, activations: 0, scratch: 0 };
  const matrices = loraTargets(spec, stage);
  const weights = stageLayout(baseSpec(spec), stage).size, adapters = stageLayout(spec, stage).size;
  const frozen = matrices.reduce((sum, { rows, cols }) => sum + rows * cols, 0);
  const widest = Math.max(...matrices.map(({ cols }) => cols));
  return {
    params: F32_BYTES * (weights + frozen + adapters),
    activations: 0,
    scratch: F64_BYTES * widest,
  };
}
