// An engine's optimizer in the exact core's arithmetic: what a GPU's would be if it rounded nothing differently. With it a run
// in GPU mode must give the bits of any other run, so that simulations can tell a wrong protocol from rounding.
import type { StageEngine, StageOptimizer, StateValues } from "../../peer/engine/engine.ts";
import type { StageBuild } from "../../peer/engine/engine.ts";
import { addInto } from "../../peer/exact/accumulate.ts";
import { applyTotal, passOver, type StepOptions, totalNormSq } from "../../peer/exact/optimizer.ts";
import { quantise } from "../../peer/exact/quantise.ts";
import { cloneState, createState, type StageState } from "../../peer/exact/state.ts";
import { stageLayout } from "../../peer/model/layout.ts";
import { assert } from "../../peer/wire/errors.ts";

/** The engine with an optimizer if the build asks for one; micro-batches per step as in the run, gradients as raw32. */
export function withExactOptimizer(
  engine: StageEngine,
  build: StageBuild,
  microBatches: number,
): StageEngine {
  if (build.optimizer !== "gpu") return engine;
  const layout = stageLayout(build.spec, build.stage);
  return {
    name: engine.name,
    optimizer: new ExactOptimizer(engine, createState(layout, new Float32Array(layout.size)), microBatches),
    load: (params) => engine.load(params),
    forward: (slot, input) => engine.forward(slot, input),
    backward: (slot, gradient) => engine.backward(slot, gradient),
    weightGrad: (slot) => engine.weightGrad(slot),
    ...(engine.scaleLoss === undefined ? {} : { scaleLoss: (exponent) => engine.scaleLoss!(exponent) }),
    memory: () => engine.memory(),
    destroy: () => engine.destroy(),
  };
}

class ExactOptimizer implements StageOptimizer {
  readonly #engine: StageEngine;
  readonly #microBatches: number;
  #state: StageState;
  #sum: Int32Array;
  #gradients: Float32Array[] = [];

  constructor(engine: StageEngine, state: StageState, microBatches: number) {
    this.#engine = engine;
    this.#state = state;
    this.#microBatches = microBatches;
    this.#sum = new Int32Array(state.layout.size);
  }

  /** The step of the state comes with apply(); raw32 needs it for nothing else. */
  load(values: StateValues): Promise<void> {
    this.#state = cloneState({ ...this.#state, ...values });
    return this.#engine.load(values.params);
  }

  begin(): Promise<void> {
    this.#gradients = [];
    return Promise.resolve();
  }

  async addGradient(slot: number): Promise<void> {
    this.#gradients.push((await this.#engine.weightGrad(slot)).slice());
  }

  facts(microBatches: number) {
    assert(microBatches === this.#microBatches, "micro-batches of a step as in the run");
    this.#sum.fill(0);
    const counts = { saturated: 0, nonFinite: 0 };
    const rule = { microBatches, reduce: "raw32" as const, seed: 0, microBatch: 0 };
    for (const gradient of this.#gradients) {
      const { values, saturated, nonFinite } = quantise(gradient, this.#state, rule);
      addInto(this.#sum, values);
      counts.saturated += saturated;
      counts.nonFinite += nonFinite;
    }
    const gradNormSq = totalNormSq(this.#state, this.#sum, { microBatches, reduce: "raw32" });
    return Promise.resolve({ gradNormSq, ...counts });
  }

  async apply(step: number, options: StepOptions): Promise<void> {
    this.#state.step = step;
    applyTotal(this.#state, this.#sum, options);
    await this.#engine.load(this.#state.params);
  }

  passOver(step: number, options: StepOptions): Promise<void> {
    this.#state.step = step;
    passOver(this.#state, this.#sum, options);
    return Promise.resolve();
  }

  read(): Promise<StateValues> {
    const { params, m, v, exponents } = cloneState(this.#state);
    return Promise.resolve({ params, m, v, exponents });
  }
}
