// Matrix products of transformers on several sides in turn: Shoal's kernels as the engine would choose them, tfjs on its
// backends, and, where asked, the best of Shoal's own family. It judges nothing (engine_report.ts does).
import * as tf from "@tensorflow/tfjs-core";
import type { StageBuild } from "../peer/engine/engine.ts";
import type { GpuDevice } from "../peer/gpu/device.ts";
import type { MatmulChoice } from "../peer/gpu/kernels/matmul.ts";
import { messageOf } from "../peer/wire/errors.ts";
import { flopsOfProduct, type Product } from "./engine_models.ts";
import { type CasesPlan, CasesProgram, enoughRepeats, msOfOne, type Repeatable } from "./engine_program.ts";
import { chosenCase, familyCases } from "./engine_products.ts";
import type { TfjsBackend } from "./engine_sides.ts";

export interface ProductTimes extends Product {
  /** By side: milliseconds of one product, one value per round; the sides of a round belong together. */
  ms: Record<string, number[]>;
  /** By side: the kernel. */
  kernels: Record<string, string>;
  /** By side: why there are no figures. */
  failures: Record<string, string>;
}

/** Passes over the members that came near the best before one is called the best. */
const SEARCH_ROUNDS = 3;
const CONTENDER = 1.4;

/** A side with its operands in place. */
interface PreparedProduct extends Repeatable {
  /** Which kernel computes it, where the side has several. */
  name?: string;
  destroy(): void;
}

export interface ProductSide {
  name: string;
  prepare(product: Product): Promise<PreparedProduct>;
}

/** All sides of one product do a round before the next round begins. */
export async function measureProducts(
  all: readonly Product[],
  sides: readonly ProductSide[],
  { rounds, note }: { rounds: number; note: (text: string) => void },
): Promise<ProductTimes[]> {
  const times: ProductTimes[] = [];
  for (const product of all) {
    const { name, layout, M, N, K } = product;
    note(`${name} ${layout} ${M}x${N}x${K}`);
    times.push(await measureProduct(product, sides, rounds));
  }
  return times;
}

async function measureProduct(
  product: Product,
  sides: readonly ProductSide[],
  rounds: number,
): Promise<ProductTimes> {
  const result: ProductTimes = { ...product, ms: {}, kernels: {}, failures: {} };
  const ready: { name: string; work: PreparedProduct; repeats: number }[] = [];
  for (const { name, prepare } of sides) {
    try {
      const work = await prepare(product);
      ready.push({ name, work, repeats: await enoughRepeats(work) });
      result.ms[name] = [];
      if (work.name !== undefined) result.kernels[name] = work.name;
    } catch (error) {
      result.failures[name] = messageOf(error);
    }
  }
  for (let round = 0; round < rounds; round++) {
    for (const { name, work, repeats } of ready) result.ms[name]!.push(await msOfOne(work, repeats));
  }
  for (const { work } of ready) work.destroy();
  return result;
}

export function gflopPerS(product: Product, ms: number): number {
  return flopsOfProduct(product) / ms / 1e6;
}

/** Values in [-1, 1); a product's time does not depend on them. */
function operand(length: number, seed: number): Float32Array<ArrayBuffer> {
  let state = seed;
  return Float32Array.from({ length }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state >>> 8) / 2 ** 23 - 1;
  });
}

/** What a side of ours needs: a device, the stage that products belong to, and a measured choice where there is one. */
export interface Ours {
  gpu: GpuDevice;
  build: StageBuild;
  choice?: MatmulChoice | undefined;
}

/** Shoal's kernel for the product, as the engine would choose it. */
export function wgslSide({ gpu, build, choice }: Ours): ProductSide {
  const prepare = (product: Product) =>
    prepareWgsl(gpu, product, chosenCase(gpu, { build, product, choice }));
  return { name: "wgsl", prepare };
}

/** The member of Shoal's family that an exhaustive search finds for the product: what a perfect choice would be. */
export function bestSide({ gpu, build }: Ours): ProductSide {
  const prepare = (product: Product) => prepareWgsl(gpu, product, familyCases(gpu, build, product));
  return { name: BEST_SIDE, prepare };
}

export const BEST_SIDE = "best of family";

/** Of several cases the quickest. */
async function prepareWgsl(gpu: GpuDevice, { M, N, K }: Product, plan: CasesPlan): Promise<PreparedProduct> {
  const program = await CasesProgram.build(gpu, "product", plan);
  program.fill("a", operand(M * K, 1));
  program.fill("b", operand(N * K, 2));
  const name = await quickest(program, [...plan.cases.keys()]);
  return { name, run: program.repeatable(name).run, destroy: () => program.destroy() };
}

/** All are timed, then those that came near the best a few times more: a single time may have been disturbed. */
async function quickest(program: CasesProgram, names: readonly string[]): Promise<string> {
  if (names.length === 1) return names[0]!;
  const tried: { name: string; work: Repeatable; repeats: number; ms: number }[] = [];
  for (const name of names) {
    const work = program.repeatable(name);
    const repeats = await enoughRepeats(work);
    tried.push({ name, work, repeats, ms: await msOfOne(work, repeats) });
  }
  const least = Math.min(...tried.map(({ ms }) => ms));
  const near = tried.filter(({ ms }) => ms <= least * CONTENDER);
  for (let round = 0; round < SEARCH_ROUNDS; round++) {
    for (const candidate of near) {
      candidate.ms = Math.min(candidate.ms, await msOfOne(candidate.work, candidate.repeats));
    }
  }
  return near.reduce((best, candidate) => candidate.ms < best.ms ? candidate : best).name;
}

export function tfjsSide(name: TfjsBackend): ProductSide {
  const backend = name === "tfjs-wasm" ? "wasm" : "webgpu";
  return {
    name,
    prepare: async ({ layout, M, N, K }) => {
      await tf.setBackend(backend);
      const a = tf.tensor2d(operand(M * K, 1), layout === "tn" ? [K, M] : [M, K]);
      const b = tf.tensor2d(operand(N * K, 2), layout === "nt" ? [N, K] : [K, N]);
      let out = tf.matMul(a, b, layout === "tn", layout === "nt");
      return {
        run: async (repeats) => {
          await tf.setBackend(backend);
          for (let i = 0; i < repeats; i++) {
            out.dispose();
            out = tf.matMul(a, b, layout === "tn", layout === "nt");
          }
          const corner = tf.slice(out, [0, 0], [1, 1]);
          await corner.data();
          corner.dispose();
        },
        destroy: () => tf.dispose([a, b, out]),
      };
    },
  };
}
