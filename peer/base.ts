// The frozen weights that adapters stand beside, on a peer: of each tensor of its stages one copy, fetched and verified by base_tensors.ts.
// It computes nothing. What must stay true: no tensor is fetched that no stage here needs, and none twice while one does.
import { type BaseOptions, BaseTensors } from "./base_tensors.ts";
import type { StageBuild } from "./engine/engine.ts";
import { type StageBase, stageBase } from "./engine/lora.ts";
import { baseSpec, stageLayout, type TensorLayout } from "./model/layout.ts";
import { loraTargets } from "./model/lora.ts";
import type { ModelSpec, StageSpec } from "./wire/run.ts";

/**
 * Values that were verified, for a peer that comes back to its run in another session: it holds what the last one held, until the new
 * one says what it needs.
 */
export class KeptBase {
  #hash = "";
  #values = new Map<string, Float32Array>();

  /** Of the base with this hash, to be filled; what belonged to another one is forgotten. */
  of(hash: string): Map<string, Float32Array> {
    if (hash !== this.#hash) [this.#hash, this.#values] = [hash, new Map()];
    return this.#values;
  }

  /** Its memory is wanted for something else. */
  forget(): void {
    this.#values.clear();
  }
}

export class PeerBase {
  readonly #spec: ModelSpec;
  readonly #tensors: BaseTensors;
  /** Values that are here already, as views of what engines hold. */
  readonly #known: Map<string, Float32Array>;
  /** One stage after the other, so that nothing is fetched for two at once. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(options: BaseOptions, kept = new KeptBase()) {
    this.#spec = options.spec;
    this.#known = kept.of(options.spec.lora?.base ?? "");
    this.#tensors = new BaseTensors(options);
  }

  /** The base of one stage. @throws {ShoalError} bad-state if it cannot be had, or is not what the run names */
  stage(build: Pick<StageBuild, "spec" | "stage">): Promise<StageBase> {
    const next = this.#last.then(() => this.#stage(build));
    this.#last = next.catch(() => {});
    return next;
  }

  async #stage(build: Pick<StageBuild, "spec" | "stage">): Promise<StageBase> {
    const layout = stageLayout(baseSpec(build.spec), build.stage);
    const weights = new Float32Array(layout.size);
    const missing: TensorLayout[] = [];
    for (const tensor of layout.tensors) {
      const known = this.#known.get(tensor.name);
      if (known === undefined) missing.push(tensor);
      else weights.set(known, tensor.offset);
    }
    if (missing.length > 0) await this.#tensors.fetch(missing, weights);
    const base = stageBase(build, weights);
    this.#remember(build, base);
    return base;
  }

  /** Forgets what none of these stages needs. */
  keep(stages: readonly StageSpec[]): void {
    const spec = this.#spec;
    const needed = new Set(
      stages.flatMap((stage) => stageLayout(baseSpec(spec), stage).tensors.map((it) => it.name)),
    );
    for (const name of this.#known.keys()) if (!needed.has(name)) this.#known.delete(name);
  }

  /** Names of the tensors that are here; for checks. */
  names(): string[] {
    return [...this.#known.keys()];
  }

  #remember({ spec, stage }: Pick<StageBuild, "spec" | "stage">, { weights, frozen }: StageBase): void {
    for (const { name, offset, size } of stageLayout(baseSpec(spec), stage).tensors) {
      this.#known.set(name, weights.subarray(offset, offset + size));
    }
    let at = 0;
    for (const { name, rows, cols } of loraTargets(spec, stage)) {
      this.#known.set(name, frozen.subarray(at, at + rows * cols));
      at += rows * cols;
    }
  }
}
