// The sides that a training step is compared between: Shoal's engines with the exact optimizer, and plain tfjs.
// A side does whole steps, one micro-batch each; it measures nothing but the parts of its own step.
import * as tf from "@tensorflow/tfjs-core";
import type { StageBuild, StageEngine } from "../peer/engine/engine.ts";
import { applyTotal, totalNormSq } from "../peer/exact/optimizer.ts";
import { quantise } from "../peer/exact/quantise.ts";
import { createState, type StageState } from "../peer/exact/state.ts";
import type { Batch } from "../peer/model/data.ts";
import { initParams } from "../peer/model/init.ts";
import { stageLayout, wholeModel } from "../peer/model/layout.ts";
import { assert } from "../peer/wire/errors.ts";
import { type BenchModel, OPTIMISATION, SEED } from "./engine_models.ts";
import { TfjsGpt } from "./tfjs_gpt.ts";

export type TfjsBackend = "tfjs-webgpu" | "tfjs-wasm";

/** Milliseconds by part of a step. */
export type Parts = Record<string, number>;

export interface Peak {
  /** Bytes that the engine holds: GPU buffers, or tfjs' tensors. */
  engine: number;
  /** Bytes that the optimizer holds beside it; 0 where the engine's bytes contain it. */
  optimizer: number;
}

export interface StepDone {
  /** Before the update. */
  loss: number;
  parts: Parts;
  /** After a measured step. */
  peak?: Peak;
}

export interface StepSide {
  step(batch: Batch): Promise<StepDone>;
  /** A step that also tells what it held at most. */
  measuredStep(batch: Batch): Promise<StepDone>;
  destroy(): void;
}

export function buildOf({ spec, batchSize }: BenchModel): StageBuild {
  const codecs = { codecForward: "raw32", codecBackward: "raw32" } as const;
  return { spec, stage: wholeModel(spec), batchSize, slots: 1, ...codecs };
}

/** The whole model as one stage, and the optimizer that every peer runs: integers, clip, AdamW. */
export class EngineSide implements StepSide {
  readonly #engine: StageEngine;
  readonly #state: StageState;
  readonly #total: Int32Array;

  constructor(engine: StageEngine, { spec }: BenchModel) {
    const stage = wholeModel(spec);
    this.#engine = engine;
    this.#state = createState(stageLayout(spec, stage), initParams(spec, stage, SEED));
    this.#total = new Int32Array(this.#state.layout.size);
  }

  async step(batch: Batch): Promise<StepDone> {
    const parts: Parts = {};
    const timed = async <T>(name: string, work: () => T | Promise<T>): Promise<T> => {
      const start = performance.now();
      const result = await work();
      parts[name] = performance.now() - start;
      return result;
    };
    const engine = this.#engine;
    // Nothing to the other engines; one over tfjs expects its backend to be the current one.
    await tf.setBackend("wasm");
    await timed("load", () => engine.load(this.#state.params));
    const { loss } = await timed("forward", () => engine.forward(0, batch));
    // A whole model's B leaves nothing to wait for, so its time can only be told together with W's.
    const gradient = await timed("backward", async () => {
      await engine.backward(0, null);
      return await engine.weightGrad(0);
    });
    await timed("optimizer", () => this.#apply(gradient));
    assert(loss !== undefined, "a whole model computes a loss");
    return { loss, parts };
  }

  async measuredStep(batch: Batch): Promise<StepDone> {
    const done = await this.step(batch);
    const { params, activations, scratch } = this.#engine.memory();
    const { params: values, m, v } = this.#state;
    const held = [values, m, v, this.#total];
    const optimizer = held.reduce((bytes, array) => bytes + array.byteLength, 0);
    // The gradient of the last step is one more array until the next one replaces it.
    const peak = { engine: params + activations + scratch, optimizer: optimizer + values.byteLength };
    return { ...done, peak };
  }

  #apply(gradient: Float32Array): void {
    const rule = { microBatches: 1, reduce: "raw32", seed: SEED, microBatch: 0 } as const;
    const { values } = quantise(gradient, this.#state, { ...rule, out: this.#total });
    const gradNormSq = totalNormSq(this.#state, values, rule);
    const config = { ...OPTIMISATION, reduce: rule.reduce };
    applyTotal(this.#state, values, {
      ...{ microBatches: 1, lr: OPTIMISATION.learning_rate, gradNormSq, config },
    });
  }

  destroy(): void {
    this.#engine.destroy();
  }
}

/** The plain tfjs model on one of its backends. */
export class TfjsSide implements StepSide {
  readonly #backend: string;
  readonly #gpt: TfjsGpt;
  /** Tensor bytes of others, which tfjs counts together with ours. */
  readonly #before: number;

  private constructor(backend: string, gpt: TfjsGpt, before: number) {
    this.#backend = backend;
    this.#gpt = gpt;
    this.#before = before;
  }

  static async create(side: TfjsBackend, { spec, batchSize }: BenchModel): Promise<TfjsSide> {
    const backend = side === "tfjs-wasm" ? "wasm" : "webgpu";
    await tf.setBackend(backend);
    const before = tf.memory().numBytes;
    const model = { spec, batchSize, optimisation: OPTIMISATION, oneHotEmbedding: backend === "wasm" };
    return new TfjsSide(backend, new TfjsGpt(model, initParams(spec, wholeModel(spec), SEED)), before);
  }

  async step(batch: Batch): Promise<StepDone> {
    await tf.setBackend(this.#backend);
    return { loss: await this.#gpt.step(batch), parts: {} };
  }

  async measuredStep(batch: Batch): Promise<StepDone> {
    using most = peakOfTensors();
    return { ...await this.step(batch), peak: { engine: most.bytes() - this.#before, optimizer: 0 } };
  }

  destroy(): void {
    this.#gpt.dispose();
  }
}

/**
 * The most bytes of tensors at the end of any kernel until it is disposed of. tf.profile would tell them too, but it submits
 * each kernel on its own, which is neither the same speed nor the same number of submits.
 */
function peakOfTensors(): Disposable & { bytes(): number } {
  const engine = tf.engine();
  const original = engine.runKernel;
  let most = 0;
  engine.runKernel = function (this: typeof engine, ...args: Parameters<typeof original>) {
    const result = original.apply(this, args);
    most = Math.max(most, engine.state.numBytes);
    return result;
  } as typeof original;
  return {
    bytes: () => most,
    [Symbol.dispose]: () => {
      engine.runKernel = original;
    },
  };
}
