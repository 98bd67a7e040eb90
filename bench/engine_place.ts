// All sections of the engine benchmark at one place: this Deno process, or the tab it opened. It opens nothing itself and
// prints nothing; what a place offers (a device, tfjs' backends) is handed in.
import * as tf from "@tensorflow/tfjs-core";
import { createCpuEngine } from "../peer/engine/cpu.ts";
import type { StageBuild, StageEngine } from "../peer/engine/engine.ts";
import { createTfjsEngine } from "../peer/engine/tfjs.ts";
import { TunedEngines } from "../peer/engine/tuned.ts";
import type { AdapterTraits } from "../peer/engine/wgsl_names.ts";
import { productsOf } from "../peer/engine/wgsl_products.ts";
import { backwardName, forwardName, planStage, weightGradName } from "../peer/engine/wgsl_plan.ts";
import type { GpuDevice } from "../peer/gpu/device.ts";
import { paramCount } from "../peer/model/layout.ts";
import { type Ceiling, measureCeiling } from "./engine_ceiling.ts";
import {
  bestSide,
  gflopPerS,
  measureProducts,
  type ProductTimes,
  tfjsSide,
  wgslSide,
} from "./engine_matmul.ts";
import { type BenchModel, benchModel, CHECK_MODEL, type ModelName, products } from "./engine_models.ts";
import { msOfOne } from "./engine_program.ts";
import { tunedChoice } from "./engine_products.ts";
import { buildOf, EngineSide, type TfjsBackend, TfjsSide } from "./engine_sides.ts";
import {
  checkLosses,
  type LossCheck,
  measureSteps,
  type SideOpener,
  type StepResult,
} from "./engine_step.ts";
import { median } from "./support.ts";
import { timestampDevice } from "./engine_timestamps.ts";
import { casesOf, type KernelTime, timeCases, traitsOf } from "./kernels_measure.ts";

export const SECTIONS = ["matmul", "step", "kernels"] as const;
export type Section = (typeof SECTIONS)[number];

export const SIDES = ["wgsl", "fallback", "tfjs-webgpu", "tfjs-wasm"] as const;
export type SideName = (typeof SIDES)[number];

export interface Options {
  sections: Section[];
  sides: SideName[];
  models: ModelName[];
  rounds: number;
  quick: boolean;
}

export interface Place {
  name: "chromium" | "deno";
  gpu: GpuDevice;
  /** Of tfjs; ready to be chosen with tf.setBackend. */
  backends: readonly TfjsBackend[];
  /** Told of everything that begins. */
  note: (text: string) => void;
}

export interface PlaceResult {
  place: Place["name"];
  adapter: string;
  software: boolean;
  ceiling: Ceiling;
  products: ProductTimes[];
  steps: StepResult[];
  checks: LossCheck[];
  kernels: { model: string; timedBy: "timestamps" | "differences"; times: KernelTime[] } | null;
  dispatchesPerLayer: number;
}

export async function measurePlace(place: Place, options: Options): Promise<PlaceResult> {
  const { name, gpu, note } = place;
  const { sections, models, rounds } = options;
  const { software } = gpu;
  note("ceiling of the adapter");
  const ceiling = await measureCeiling(gpu);
  note("autotune of a step");
  const base = buildOf(benchModel("base", software));
  const traits = traitsOf(gpu, await tunedChoice(gpu, productsOf(base, traitsOf(gpu))));
  const result: PlaceResult = {
    ...{ place: name, adapter: `${gpu.adapterName} (${gpu.provider})`, software, ceiling },
    ...{ products: [], steps: [], checks: [], kernels: null },
    dispatchesPerLayer: dispatchesPerLayer(traits),
  };
  if (sections.includes("matmul")) {
    result.products = await timeProducts(place, options);
    // A product that beats the peak shows that the peak was disturbed when it was measured.
    ceiling.gflopPerS = Math.max(ceiling.gflopPerS, ...result.products.map(bestRate));
  }
  if (sections.includes("step")) {
    note("ten steps, ten losses");
    const twin: SideOpener = { name: "f64", open: () => Promise.resolve(cpuSide(CHECK_MODEL)) };
    result.checks = await checkLosses(CHECK_MODEL, [twin, ...openers(place, CHECK_MODEL, options)]);
    for (const model of models.map((known) => benchModel(known, software))) {
      result.steps.push(await measureSteps(model, openers(place, model, options), { rounds, note }));
    }
  }
  if (sections.includes("kernels")) {
    note("kernels of a micro-batch");
    result.kernels = await timeKernels(gpu, { model: benchModel("base", software), traits }, rounds);
  }
  return result;
}

/** In Deno also against the whole family: in a tab that would take as long as tfjs does. */
async function timeProducts(
  { name, gpu, backends, note }: Place,
  { sides, rounds, quick }: Options,
): Promise<ProductTimes[]> {
  const all = products(gpu.software, quick);
  note("autotune of the products");
  const ours = { gpu, build: buildOf(CHECK_MODEL), choice: await tunedChoice(gpu, all) };
  const others = backends.filter((backend) => gpu.software || !onCpu(backend)).map(tfjsSide);
  const wanted = [wgslSide(ours), ...others].filter((side) => isAmong(sides, side.name));
  const search = name === "deno" ? [bestSide(ours)] : [];
  return await measureProducts(all, [...wanted, ...search], { rounds, note });
}

/** GFLOP/s of the quicker of Shoal's own sides, which run on the device of the ceiling. */
function bestRate({ ms, ...product }: ProductTimes): number {
  const times = Object.entries(ms).filter(([side]) => !side.startsWith("tfjs")).map(([, each]) =>
    median(each)
  );
  return times.length === 0 ? 0 : gflopPerS(product, Math.min(...times));
}

/** The sizes that suit a GPU would keep a CPU busy for minutes a step. */
const CPU_PARAMETERS_MAX = 1_000_000;

function bearableOnCpu({ spec }: BenchModel, software: boolean): boolean {
  return software || paramCount(spec) <= CPU_PARAMETERS_MAX;
}

function onCpu(side: string): boolean {
  return side === "fallback" || side === "tfjs-wasm";
}

function isAmong(sides: readonly SideName[], name: string): boolean {
  return sides.some((side) => side === name);
}

function cpuSide(model: BenchModel): EngineSide {
  return new EngineSide(createCpuEngine(buildOf(model)), model);
}

/** Shoal's engines first, then tfjs; they take their turns in this order. */
function openers({ gpu, backends }: Place, model: BenchModel, { sides }: Options): SideOpener[] {
  const engine = (create: (build: StageBuild) => Promise<StageEngine>) => async () => {
    await tf.setBackend("wasm");
    return new EngineSide(await create(buildOf(model)), model);
  };
  const all: SideOpener[] = [
    { name: "wgsl", open: engine((build) => new TunedEngines(gpu).createEngine(build)) },
    { name: "fallback", open: engine((build) => createTfjsEngine(build, { backend: "wasm" })) },
    ...backends.map((name) => ({ name, open: () => TfjsSide.create(name, model) })),
  ];
  return all.filter(({ name }) =>
    isAmong(sides, name) && (!onCpu(name) || bearableOnCpu(model, gpu.software))
  );
}

async function timeKernels(
  gpu: GpuDevice,
  { model, traits }: { model: BenchModel; traits: AdapterTraits },
  rounds: number,
): Promise<NonNullable<PlaceResult["kernels"]>> {
  using stamped = timestampDevice(gpu);
  const cases = casesOf(buildOf(model), traits);
  const { times } = await timeCases(stamped?.gpu ?? gpu, cases, {
    rounds,
    vocabulary: model.spec.vocab_size,
    msOf: async (work, repeats) => {
      if (stamped === null) return await msOfOne(work, repeats);
      await work.run(repeats);
      return await stamped.lastPassMs() / repeats;
    },
  });
  return { model: model.name, timedBy: stamped === null ? "differences" : "timestamps", times };
}

/** What one more layer adds to F, B and W of a micro-batch; planned, so it needs no device. */
export function dispatchesPerLayer(traits: AdapterTraits): number {
  const counts = [1, 2].map((n_layer) => {
    const { name, spec, batchSize, note } = benchModel("base", true);
    const build = buildOf({ name, spec: { ...spec, n_layer }, batchSize, note });
    const { operations } = planStage(build, traits).plan;
    return [forwardName(0), backwardName(0), weightGradName(0)]
      .reduce((total, operation) => total + operations.get(operation)!.dispatches.length, 0);
  });
  return counts[1]! - counts[0]!;
}
