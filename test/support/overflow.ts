// What f16 does to a stage's gradients, without f16: an engine whose first stage overflows where a micro-batch's tokens ask for a
// smaller loss scale. Not a model of rounding. What must stay true: whether a micro-batch overflows depends on its tokens and its
// stage's scale alone, so the one-process run, which is one first stage, passes over the same steps as any cut of the layers.
import type { StageBuild, StageEngine } from "../../peer/engine/engine.ts";
import { EMBEDDING_NAME, findTensor, stageLayout } from "../../peer/model/layout.ts";

/** Exponents of the loss scale that a micro-batch may be the first not to bear, around the one that runs begin with. */
const LEAST_TOO_LARGE = 10;
const SPREAD = 4;

/** Most that this micro-batch bears without an overflow. */
function mostOf(tokens: Uint32Array): number {
  return LEAST_TOO_LARGE - 1 + tokens.reduce((sum, token) => sum + token, 0) % SPREAD;
}

/** The engine with overflows; what it computes is the engine's own. */
export function withOverflow(engine: StageEngine, { spec, stage }: StageBuild): StageEngine {
  if (!stage.embed) return engine;
  const { loadAdapters } = engine;
  // Where adapters alone are trained, the gradient is theirs.
  const first = loadAdapters ? 0 : findTensor(stageLayout(spec, stage), EMBEDDING_NAME)!.offset;
  const most = new Map<number, number>();
  let exponent = 0;
  return {
    name: engine.name,
    load: (params) => engine.load(params),
    ...(loadAdapters && { loadAdapters: (adapters: Float32Array) => engine.loadAdapters!(adapters) }),
    forward: (slot, input) => {
      if (slot !== null) most.set(slot, mostOf(input.tokens!));
      return engine.forward(slot, input);
    },
    backward: (slot, gradient) => engine.backward(slot, gradient),
    weightGrad: async (slot) => {
      const gradient = await engine.weightGrad(slot);
      if (exponent > most.get(slot)!) gradient[first] = Infinity;
      return gradient;
    },
    scaleLoss: (next) => void (exponent = next),
    memory: () => engine.memory(),
    destroy: () => engine.destroy(),
  };
}
