// What a device can do at most, measured: multiplications and additions in registers, and bytes through its memory.
// Rates of kernels are given as fractions of these. Not a data sheet: a ceiling that no kernel of ours reaches proves little.
import type { GpuDevice } from "../peer/gpu/device.ts";
import type { KernelSpec } from "../peer/gpu/kernel.ts";
import { bindings, cover } from "../peer/gpu/kernels/define.ts";
import type { DispatchPlan } from "../peer/gpu/program.ts";
import { CasesProgram, enoughRepeats, msOfOne } from "./engine_program.ts";
import copyWgsl from "./shaders/copy.wgsl" with { type: "text" };
import fmaPeakWgsl from "./shaders/fma_peak.wgsl" with { type: "text" };

export interface Ceiling {
  gflopPerS: number;
  /** Read and written together. */
  gbytePerS: number;
}

/** Of fma_peak.wgsl: eight vectors of four, one multiplication and one addition each. */
const FLOPS_PER_STEP = 64;
const INVOCATIONS = { software: 2048, hardware: 131_072 };
const STEPS = 2048;
/** One that fits a cache, as the tensors of a small model do, and one that fits none of a CPU's; the better one counts. */
const COPY_BYTES = [2 ** 20, 2 ** 26];
/** Passes over all cases; the best counts, for a ceiling is no average. */
const ROUNDS = 3;

export const fmaPeakSpec: KernelSpec = {
  name: "fma_peak",
  wgsl: fmaPeakWgsl,
  bindings: bindings([], ["out"]),
  params: [
    { name: "N", type: "u32" },
    { name: "steps", type: "u32" },
    { name: "a", type: "f32" },
    { name: "b", type: "f32" },
  ],
  overrides: { workgroupSize: 64, fused: 0 },
  workgroups: ({ N = 0 }, overrides) => cover(N, overrides),
};

export const copySpec: KernelSpec = {
  name: "copy",
  wgsl: copyWgsl,
  bindings: bindings(["x"], ["out"]),
  params: [{ name: "N", type: "u32" }],
  overrides: { workgroupSize: 64 },
  workgroups: ({ N = 0 }, overrides) => cover(Math.ceil(N / 4), overrides),
};

export async function measureCeiling(gpu: GpuDevice): Promise<Ceiling> {
  const N = gpu.software ? INVOCATIONS.software : INVOCATIONS.hardware;
  const cases = new Map<string, DispatchPlan[]>();
  const works = new Map<string, number>();
  for (const fused of [0, 1]) {
    const params = { N, steps: STEPS, a: 0.999, b: 0.001 };
    cases.set(`fma ${fused}`, [{ spec: fmaPeakSpec, params, overrides: { fused }, tensors: { out: "out" } }]);
    works.set(`fma ${fused}`, N * STEPS * FLOPS_PER_STEP);
  }
  for (const bytes of COPY_BYTES) {
    const slice = (tensor: string) => ({ tensor, offset: 0, bytes });
    const tensors = { x: slice("x"), out: slice("out") };
    cases.set(`copy ${bytes}`, [{ spec: copySpec, params: { N: bytes / 16 }, tensors }]);
    works.set(`copy ${bytes}`, 2 * bytes);
  }
  const rates = await bestRates(gpu, cases, works);
  const best = (kind: string) =>
    Math.max(...[...rates].filter(([name]) => name.startsWith(kind)).map(([, rate]) => rate));
  return { gflopPerS: best("fma"), gbytePerS: best("copy") };
}

/** Units of work per nanosecond, the best of the rounds. */
async function bestRates(
  gpu: GpuDevice,
  cases: ReadonlyMap<string, readonly DispatchPlan[]>,
  works: ReadonlyMap<string, number>,
): Promise<Map<string, number>> {
  const tensors = ["x", "out"].map((name) => ({ name, bytes: Math.max(...COPY_BYTES) }));
  const program = await CasesProgram.build(gpu, "ceiling", { tensors, cases });
  try {
    const rates = new Map<string, number>();
    for (const [name, work] of works) {
      const repeatable = program.repeatable(name);
      const repeats = await enoughRepeats(repeatable);
      for (let round = 0; round < ROUNDS; round++) {
        const rate = work / (await msOfOne(repeatable, repeats)) / 1e6;
        rates.set(name, Math.max(rate, rates.get(name) ?? 0));
      }
    }
    return rates;
  } finally {
    program.destroy();
  }
}
