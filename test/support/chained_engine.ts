// The whole model in one process as a chain of stages, whose boundary tensors are encoded as on the wire: what a run with lossy
// codecs must equal bit for bit. Not a pipeline: one micro-batch goes through all stages before the next begins.
import type {
  StageBuild,
  StageEngine,
  StageInput,
  StageMemory,
  StageOutput,
} from "../../peer/engine/engine.ts";
import { findTensor, type StageLayout, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { assert } from "../../peer/wire/errors.ts";
import type { BoundaryCodecs, Encoded, ModelSpec } from "../../peer/wire/run.ts";

export interface ChainOptions {
  spec: ModelSpec;
  batchSize: number;
  /** First layer of each stage but the first. */
  cuts: readonly number[];
  /** One per cut. */
  codecs: readonly BoundaryCodecs[];
  createEngine(build: StageBuild): StageEngine;
}

export function createChain(options: ChainOptions): StageEngine {
  return new Chain(options);
}

class Chain implements StageEngine {
  readonly name = "a chain of stages";
  readonly #whole: StageLayout;
  readonly #links: { engine: StageEngine; layout: StageLayout }[];

  constructor({ spec, batchSize, cuts, codecs, createEngine }: ChainOptions) {
    this.#whole = stageLayout(spec, wholeModel(spec));
    const firsts = [0, ...cuts];
    this.#links = firsts.map((firstLayer, index) => {
      const [embed, head] = [index === 0, index === cuts.length];
      const stage = { index, firstLayer, endLayer: firsts[index + 1] ?? spec.n_layer, embed, head };
      const before = codecs[index - 1] ?? codecs[index]!;
      const after = codecs[index] ?? before;
      const build: StageBuild = {
        ...{ spec, stage, batchSize, slots: 1, codecsBefore: before },
        ...{ codecForward: after.forward, codecBackward: after.backward },
      };
      return { engine: createEngine(build), layout: stageLayout(spec, stage) };
    });
  }

  async load(params: Float32Array): Promise<void> {
    for (const { engine, layout } of this.#links) {
      const own = new Float32Array(layout.size);
      for (const { name, offset, size } of layout.tensors) {
        const from = findTensor(this.#whole, name)!.offset;
        own.set(params.subarray(from, from + size), offset);
      }
      await engine.load(own);
    }
  }

  async forward(slot: number | null, { tokens, targets }: StageInput): Promise<StageOutput> {
    let output: StageOutput = {};
    for (const [s, { engine }] of this.#links.entries()) {
      output = await engine.forward(slot, {
        ...(s === 0 ? { tokens: tokens! } : { activation: output.activation! }),
        ...(s === this.#links.length - 1 ? { targets: targets! } : {}),
      });
    }
    return output;
  }

  async backward(slot: number): Promise<null> {
    let gradient: Encoded | null = null;
    for (const { engine } of this.#links.toReversed()) gradient = await engine.backward(slot, gradient);
    assert(gradient === null, "the first stage has nobody to send a gradient to");
    return null;
  }

  async weightGrad(slot: number): Promise<Float32Array> {
    const all = new Float32Array(this.#whole.size);
    for (const { engine, layout } of this.#links) {
      const own = await engine.weightGrad(slot);
      for (const { name, offset, size } of layout.tensors) {
        all.set(own.subarray(offset, offset + size), findTensor(this.#whole, name)!.offset);
      }
    }
    return all;
  }

  memory(): StageMemory {
    return { params: 0, activations: 0, scratch: 0 };
  }

  destroy(): void {
    for (const { engine } of this.#links) engine.destroy();
  }
}
