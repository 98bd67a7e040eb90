// WGSL engines whose matrix products were measured on their adapter: tunes for each stage's shapes before its engine is
// built, remembers the result, and says it in words. Engines are built one after the other, so that nothing computes
// while something is measured by the same peer.
import { arenaLimits } from "../gpu/arena.ts";
import type { GpuDevice } from "../gpu/device.ts";
import { matmulTraits } from "../gpu/kernels/matmul.ts";
import { type TuneResult, type TuneTools, Tuning } from "../gpu/tune.ts";
import { kernelVersion, readTuning, writeTuning } from "../gpu/tune_cache.ts";
import { tuneTools } from "../gpu/tune_device.ts";
import type { Notes } from "../store/notes.ts";
import type { StageBuild, StageEngine } from "./engine.ts";
import { createWgslEngine } from "./wgsl.ts";
import { productsOf } from "./wgsl_products.ts";

export interface TunedEnginesOptions {
  /** Where results outlive the peer; default: nowhere. */
  notes?: Notes | null;
  /** Default: measure on the device. */
  tools?: TuneTools;
  /** Milliseconds of measuring in all; default: what a peer that wants to join may take. */
  budgetMs?: number;
}

export class TunedEngines {
  readonly #gpu: GpuDevice;
  readonly #notes: Notes | null;
  readonly #tuning: Tuning;
  readonly #kernelVersion = kernelVersion();
  #tail: Promise<unknown>;

  constructor(gpu: GpuDevice, options: TunedEnginesOptions = {}) {
    const { notes = null, tools = tuneTools(gpu), budgetMs } = options;
    this.#gpu = gpu;
    this.#notes = notes;
    this.#tuning = new Tuning(matmulTraits(gpu), tools, budgetMs);
    this.#tail = this.#recall();
  }

  /** As createWgslEngine, which see for errors; measures first what no earlier stage has needed. */
  createEngine(build: StageBuild): Promise<StageEngine> {
    const made = this.#tail.then(async () => {
      await this.#tune(build);
      return await createWgslEngine(this.#gpu, build, { matmul: this.#tuning.choice() });
    });
    this.#tail = made.catch(() => {});
    return made;
  }

  /** Measures what a stage needs without building it. */
  tune(build: StageBuild): Promise<TuneResult> {
    const tuned = this.#tail.then(async () => {
      await this.#tune(build);
      return this.result();
    });
    this.#tail = tuned.catch(() => {});
    return tuned;
  }

  result(): TuneResult {
    const { adapterName: adapter, provider } = this.#gpu;
    const { choices, fusions, excluded, spentMs } = this.#tuning;
    return { adapter, provider, kernelVersion: this.#kernelVersion, choices, fusions, excluded, spentMs };
  }

  async #recall(): Promise<void> {
    const kept = this.#notes && await readTuning(this.#notes, this.result());
    if (kept) this.#tuning.adopt(kept);
  }

  async #tune(build: StageBuild): Promise<void> {
    const { software, limits } = this.#gpu;
    const products = productsOf(build, { software, limits: arenaLimits(limits) });
    if (await this.#tuning.run(products) && this.#notes) await writeTuning(this.#notes, this.result());
  }
}
