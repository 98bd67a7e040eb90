// A stage whose adapters are trained beside a frozen base: any engine behind the same contract, which computes with the merged
// weights and gives the adapters' gradient, or that of the whole matrices. What goes in and out here is adapters only. What must
// stay true: both are linear in the rows' gradients and sum in one order, so sums over peers mean the same and bits do not depend on who computed.
import { baseSpec, stageLayout } from "../model/layout.ts";
import { addProduct, besideBase, type LoraMatrix, loraOf, loraScale, loraTargets } from "../model/lora.ts";
import { loraMemory } from "../model/lora_memory.ts";
import { assert, ShoalError } from "../wire/errors.ts";
import type { Encoded } from "../wire/run.ts";
import type { BoundarySums } from "./boundary_times.ts";
import type { StageBuild, StageEngine, StageInput, StageMemory, StageOutput } from "./engine.ts";

export type CreateEngine = (build: StageBuild) => Promise<StageEngine>;

/** What an engine computes from: the weights, and once more those of the matrices that adapters change. */
export interface StageBase {
  /** Flat f32 in the layout of baseSpec. The matrices with adapters are the engine's to change. */
  weights: Float32Array;
  /** The base's own values of those matrices, one after the other in the order of loraTargets; not to be changed. */
  frozen: Float32Array;
}

/** The frozen weights of a stage. */
export type BaseOf = (build: StageBuild) => StageBase | Promise<StageBase>;

/** @param weights flat f32 in the layout of baseSpec; taken over */
export function stageBase(
  { spec, stage }: Pick<StageBuild, "spec" | "stage">,
  weights: Float32Array,
): StageBase {
  const matrices = loraTargets(spec, stage);
  const frozen = new Float32Array(matrices.reduce((sum, { rows, cols }) => sum + rows * cols, 0));
  let at = 0;
  for (const { baseOffset, rows, cols } of matrices) {
    frozen.set(weights.subarray(baseOffset, baseOffset + rows * cols), at);
    at += rows * cols;
  }
  return { weights, frozen };
}

/** Makes engines of adapters where the build has some, and leaves all others as they are. */
export function withLora(create: CreateEngine, baseOf: BaseOf): CreateEngine {
  return async (build) => {
    if (build.spec.lora === undefined) return await create(build);
    // Fetched first: a base that cannot be had is told before anything is allocated for it.
    const base = await baseOf(build);
    const inner = await create(besideBase(build));
    try {
      return new LoraEngine(build, inner, base);
    } catch (error) {
      inner.destroy();
      throw error;
    }
  };
}

export class LoraEngine implements StageEngine {
  readonly name: string;
  readonly scaleLoss?: (exponent: number) => void;
  readonly boundary?: BoundarySums;
  readonly #build: StageBuild;
  readonly #inner: StageEngine;
  readonly #matrices: readonly LoraMatrix[];
  readonly #rank: number;
  readonly #scale: number;
  readonly #size: number;
  /** What the inner engine is loaded with: the base, and the merged matrices in place of those that have adapters. */
  readonly #weights: Float32Array;
  /** The base's values of the matrices with adapters, one after the other. */
  readonly #frozen: Float32Array;
  /** As loaded; W needs A for B's gradient, and B for A's. */
  #adapters: Float32Array = new Float32Array(0);

  /** @throws {ShoalError} bad-state if the base is not one of this stage */
  constructor(build: StageBuild, inner: StageEngine, { weights, frozen }: StageBase) {
    const { spec, stage } = build;
    const wanted = stageLayout(baseSpec(spec), stage).size;
    if (weights.length !== wanted) {
      throw new ShoalError(
        "bad-state",
        `a base of ${weights.length} parameters does not fit a stage of ${wanted}; fetch it again`,
      );
    }
    [this.#build, this.#inner, this.#weights, this.#frozen] = [build, inner, weights, frozen];
    [this.#rank, this.#scale] = [loraOf(spec).rank, loraScale(spec)];
    this.#size = stageLayout(spec, stage).size;
    this.#matrices = loraTargets(spec, stage);
    this.name = `${inner.name}, LoRA of rank ${this.#rank}`;
    if (inner.scaleLoss !== undefined) this.scaleLoss = (exponent) => inner.scaleLoss!(exponent);
    if (inner.boundary !== undefined) this.boundary = inner.boundary;
  }

  async load(adapters: Float32Array): Promise<void> {
    if (adapters.length !== this.#size) {
      throw new ShoalError(
        "bad-state",
        `${adapters.length} parameters do not fit adapters of ${this.#size}; reload the state`,
      );
    }
    this.#adapters = adapters.slice();
    let at = 0;
    for (const matrix of this.#matrices) {
      const { baseOffset, rows, cols } = matrix;
      const weights = this.#weights.subarray(baseOffset, baseOffset + rows * cols);
      weights.set(this.#frozen.subarray(at, at + rows * cols));
      addProduct(weights, adapters, { ...matrix, rank: this.#rank, scale: this.#scale });
      at += rows * cols;
    }
    await this.#inner.load(this.#weights);
    await this.#inner.loadAdapters?.(this.#adapters);
  }

  forward(slot: number | null, input: StageInput): Promise<StageOutput> {
    return this.#inner.forward(slot, input);
  }

  backward(slot: number, gradient: Encoded | null): Promise<Encoded | null> {
    return this.#inner.backward(slot, gradient);
  }

  async weightGrad(slot: number): Promise<Float32Array> {
    if (this.#inner.loadAdapters !== undefined) return await this.#inner.weightGrad(slot);
    const dense = await this.#inner.weightGrad(slot);
    assert(this.#adapters.length === this.#size, "adapters were loaded");
    assert(dense.length === this.#weights.length, "a gradient of whole matrices");
    const out = new Float32Array(this.#size);
    for (const matrix of this.#matrices) this.#project(dense, matrix, out);
    // An overflow anywhere must be seen, though only some matrices are looked at.
    if (this.#build.dtype === "f16" && !dense.every(Number.isFinite)) out[this.#matrices[0]!.aOffset] = NaN;
    return out;
  }

  /** The chain rule through W + s·B·A, with G the gradient of that sum: dB = s·G·Aᵀ, dA = s·Bᵀ·G. */
  #project(dense: Float32Array, matrix: LoraMatrix, out: Float32Array): void {
    const { rows, cols, aOffset, bOffset, baseOffset } = matrix;
    const adapters = this.#adapters, rank = this.#rank, scale = this.#scale;
    const sums = new Float64Array(rank * cols);
    for (let row = 0; row < rows; row++) {
      const from = baseOffset + row * cols;
      for (let r = 0; r < rank; r++) {
        const b = adapters[bOffset + row * rank + r]!, a = aOffset + r * cols, to = r * cols;
        let dot = 0;
        for (let i = 0; i < cols; i++) {
          const g = dense[from + i]!;
          dot += g * adapters[a + i]!;
          sums[to + i] = sums[to + i]! + b * g;
        }
        out[bOffset + row * rank + r] = scale * dot;
      }
    }
    for (let i = 0; i < sums.length; i++) out[aOffset + i] = scale * sums[i]!;
  }

  memory(): StageMemory {
    const inner = this.#inner.memory(), own = loraMemory(this.#build);
    return {
      params: inner.params + own.params,
      activations: inner.activations,
      scratch: inner.scratch + own.scratch,
    };
  }

  destroy(): void {
    this.#inner.destroy();
  }
}
