// The GPU's optimizer of one stage (StageOptimizer): uploads factors, runs the pre-built operations, adds up their few bytes.
// It plans nothing (wgsl_optimizer_plan.ts). What must stay true: bits repeat from run to run on one adapter as long as
// gradients are added in the same order; nothing of a gradient's size is read back but by read().
import { leastExponent, onNormGrid, stepFactors, type StepOptions } from "../exact/optimizer.ts";
import type { StageState } from "../exact/state.ts";
import type { Program } from "../gpu/program.ts";
import {
  COUNTER_COUNT,
  FACTOR_COUNT,
  normChunks,
  NORMS_AT,
  optimizerTables,
} from "../model/optimizer_tensors.ts";
import { assert, ShoalError } from "../wire/errors.ts";
import type { GradientFacts, StageOptimizer } from "./engine.ts";
import type { StagePlanning } from "./wgsl_names.ts";
import {
  addGradientName,
  CLEAR_SUM,
  NORM,
  PASS_OVER,
  READ_EXPONENTS,
  readName,
  type StateSide,
  STEP,
} from "./wgsl_optimizer_plan.ts";
import { type ParamSide, partName } from "./wgsl_params.ts";

/** What the optimizer needs of its engine. */
export interface OptimizerBench {
  planning: StagePlanning;
  program: Program;
  /** One operation at a time, also of F, B and W. */
  alone<T>(operation: () => Promise<T>): Promise<T>;
  /** From here on the state on the device is trained; every slot is free. */
  loaded(): void;
  /** `slot` had its B and is free from here on; false if its gradient is in the sum already. */
  takeSlot(slot: number): boolean;
}

export class WgslOptimizer implements StageOptimizer {
  readonly #bench: OptimizerBench;
  /** Tensor of each entry of the norms. */
  readonly #chunkTensors: string[];

  constructor(bench: OptimizerBench) {
    this.#bench = bench;
    const { layout } = bench.planning;
    this.#chunkTensors = normChunks(layout).map(({ tensor }) => tensor);
    const { blocks, chunks, decays } = optimizerTables(layout);
    for (const [name, table] of Object.entries({ blocks, chunks, decays })) {
      bench.program.upload(name, new Uint8Array(table.buffer));
    }
  }

  load(state: Pick<StageState, "params" | "m" | "v" | "exponents">): Promise<void> {
    return this.#bench.alone(() => {
      const { planning: { layout: { size } }, program } = this.#bench;
      if (state.params.length !== size) {
        const text = `a state of ${state.params.length} values does not fit a stage of ${size}`;
        throw new ShoalError("bad-state", `${text}; reload the state`);
      }
      for (const side of ["params", "m", "v"] as const) this.#upload(side, state[side]);
      program.upload("exponents", bytesOf(Int32Array.from(state.exponents)));
      this.#bench.loaded();
      return Promise.resolve();
    });
  }

  #upload(side: ParamSide, values: Float32Array): void {
    const { planning, program } = this.#bench;
    for (const part of planning.parts) {
      program.upload(partName(side, part), bytesOf(values.subarray(part.offset, part.offset + part.size)));
    }
  }

  async begin(): Promise<void> {
    await this.#bench.alone(() => this.#bench.program.run(CLEAR_SUM));
  }

  async addGradient(slot: number): Promise<void> {
    await this.#bench.alone(async () => {
      if (this.#bench.takeSlot(slot)) await this.#bench.program.run(addGradientName(slot));
    });
  }

  facts(microBatches: number): Promise<GradientFacts> {
    return this.#bench.alone(async () => {
      const { program } = this.#bench;
      program.upload("factors", bytesOf(Float32Array.of(1 / microBatches)));
      const bytes = await program.run(NORM);
      const [saturated = 0, nonFinite = 0] = new Uint32Array(bytes, 0, COUNTER_COUNT);
      const norms = new Float32Array(bytes).subarray(NORMS_AT);
      return { gradNormSq: this.#normSq(norms), saturated, nonFinite };
    });
  }

  /** In doubles, tensor by tensor, as the exact core adds them. */
  #normSq(norms: Float32Array): number {
    const sums = new Map<string, number>();
    norms.forEach((norm, i) => {
      const tensor = this.#chunkTensors[i]!;
      sums.set(tensor, (sums.get(tensor) ?? 0) + norm);
    });
    return [...sums.values()].reduce((sum, value) => sum + onNormGrid(value), 0);
  }

  async apply(step: number, options: StepOptions): Promise<void> {
    await this.#end(STEP, step, options);
  }

  async passOver(step: number, options: StepOptions): Promise<void> {
    await this.#end(PASS_OVER, step, options);
  }

  async #end(operation: string, step: number, options: StepOptions): Promise<void> {
    await this.#bench.alone(async () => {
      this.#bench.program.upload("factors", bytesOf(factorValues(step, options)));
      await this.#bench.program.run(operation);
    });
  }

  read(): Promise<Pick<StageState, "params" | "m" | "v" | "exponents">> {
    return this.#bench.alone(async () => {
      const exponents = new Int32Array(await this.#bench.program.run(READ_EXPONENTS));
      const [params, m, v] = [await this.#read("params"), await this.#read("m"), await this.#read("v")];
      return { params, m, v, exponents: Int16Array.from(exponents) };
    });
  }

  async #read(side: StateSide): Promise<Float32Array> {
    return new Float32Array(await this.#bench.program.run(readName(side)));
  }
}

/** In the order of shaders/lib/optimizer.wgsl; `step` committed steps are in the state before. */
function factorValues(step: number, options: StepOptions): Float32Array<ArrayBuffer> {
  const { reduce } = options.config;
  const { clip, beta1, rest1, beta2, rest2, rate, rootScale, decay, eps } = stepFactors(step + 1, options);
  const fallsFreely = reduce === "int8" && step === 0 ? 1 : 0;
  const values = Float32Array.of(
    ...[1 / options.microBatches, clip, beta1, rest1, beta2, rest2, rate, rootScale, decay, eps],
    ...[leastExponent(reduce), fallsFreely],
  );
  assert(values.length === FACTOR_COUNT, "the factors of a step are those of the shaders");
  return values;
}

function bytesOf(values: Float32Array | Int32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}
