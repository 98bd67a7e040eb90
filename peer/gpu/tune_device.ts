// Checks and times candidates of the autotune on a device, with buffers of its own: one set per product, freed when its
// class is decided. It chooses nothing (tune.ts). Operands are zero while timing, since no kernel's time depends on them.
import { matmulNN, matmulNT, matmulTN } from "../../shaders/reference/matmul.ts";
import { slicedElements } from "../model/product_slices.ts";
import { ShoalError } from "../wire/errors.ts";
import { stagingPieces } from "../model/stage_memory.ts";
import { Arena, arenaLimits, planArena } from "./arena.ts";
import { BufferUsage } from "./constants.ts";
import type { GpuDevice } from "./device.ts";
import { dividesByFour, layoutOf, type MatmulLayout, type MatmulShape } from "./kernels/matmul_family.ts";
import { compileKernel, packParams } from "./pipeline.ts";
import { productDispatches } from "./products.ts";
import { Staging } from "./staging.ts";
import type { Candidate, TuneTools } from "./tune.ts";
import { checkFused, type FusedCandidate, type FusedTimes, timeFused } from "./tune_fused.ts";
import { sample } from "./tune_sample.ts";

/** Shapes that no tile divides, for 16-byte loads and for any; K of several steps of 16, more than one tile of 128 rows. */
const CHECK_SHAPES = { fours: { M: 132, N: 68, K: 36 }, any: { M: 67, N: 35, K: 37 } };
/** K of the check of a product in slices, of which the last one is shorter. */
const CHECK_K_SLICED = 52;
/** f32 sums of so few terms differ by some 1e-6; a wrong term shows as far more. */
const CHECK_TOLERANCE = 1e-4;
/** Floating-point operations of the product that stands for a class, at most: a larger one only takes longer to time. */
const FLOPS_MAX = { hardware: 2 ** 31, software: 2 ** 26 };
/** One measurement lasts about this long, so that waiting for its end weighs little. */
const TARGET_MS = { hardware: 3, software: 30 };
const REPEATS_MAX = 64;
/** A clock may be coarser than a small product; nothing takes no time. */
const LEAST_MS = 1e-3;
/** Rows, or K of a transposed product, are cut to multiples of this, which keeps what divides by 4. */
const CUT = 64;
const FLOAT_BYTES = 4;
/** A compiler's message may be long; its beginning says what is wrong. */
const REASON_CHARS_MAX = 200;

const reference = { nn: matmulNN, nt: matmulNT, tn: matmulTN };

/** The tools of tune.ts on an open device. */
export function tuneTools(gpu: GpuDevice): TuneTools {
  return new DeviceTools(gpu);
}

class DeviceTools implements TuneTools {
  readonly #gpu: GpuDevice;
  readonly #kind: "hardware" | "software";
  #bench: { key: string; bench: ProductBench } | null = null;
  #waitMs: number | null = null;

  constructor(gpu: GpuDevice) {
    this.#gpu = gpu;
    this.#kind = gpu.software ? "software" : "hardware";
  }

  nowMs(): number {
    return performance.now();
  }

  async check(candidate: Candidate): Promise<string | null> {
    const { layout, slices } = candidate;
    const shape = { ...CHECK_SHAPES[dividesByFour(layout, candidate.shape) ? "fours" : "any"] };
    if (slices > 1) shape.K = CHECK_K_SLICED;
    const bench = await ProductBench.allocate(this.#gpu, shape, shape.M * shape.N * FLOAT_BYTES);
    try {
      const error = await bench.error(candidate, layout);
      return error <= CHECK_TOLERANCE ? null : `its sums are wrong: relative error ${error.toExponential(1)}`;
    } catch (error) {
      if (!(error instanceof ShoalError) || error.code !== "shader-invalid") throw error;
      return error.message.slice(0, REASON_CHARS_MAX);
    } finally {
      bench.destroy();
    }
  }

  async time(candidate: Candidate): Promise<number> {
    const shape = cutToSize(candidate.layout, candidate.shape, FLOPS_MAX[this.#kind]);
    const whole = candidate.shape;
    const share = (shape.M * shape.N * shape.K) / (whole.M * whole.N * whole.K);
    return await this.#timeCut(candidate, shape) / share;
  }

  async #timeCut(candidate: Candidate, shape: MatmulShape): Promise<number> {
    const bench = await this.#benchFor(shape);
    const steps = await bench.prepare(candidate);
    const target = TARGET_MS[this.#kind];
    this.#waitMs ??= Math.min(await bench.elapsedMs([], 1), await bench.elapsedMs([], 1));
    // The first run also pays for what a driver leaves until then.
    await bench.elapsedMs(steps, 1);
    const once = Math.max(target / REPEATS_MAX, await bench.elapsedMs(steps, 1) - this.#waitMs);
    const repeats = Math.max(1, Math.min(REPEATS_MAX, Math.ceil(target / once)));
    const ms = repeats === 1 ? once : await bench.elapsedMs(steps, repeats) - this.#waitMs;
    return Math.max(ms, LEAST_MS) / repeats;
  }

  async #benchFor(shape: MatmulShape): Promise<ProductBench> {
    const key = JSON.stringify(shape);
    if (this.#bench?.key === key) return this.#bench.bench;
    this.release();
    const bench = await ProductBench.allocate(this.#gpu, shape, FLOAT_BYTES);
    this.#bench = { key, bench };
    return bench;
  }

  async checkFused(candidate: FusedCandidate): Promise<string | null> {
    const reason = await checkFused(this.#gpu, candidate);
    return reason === null ? null : reason.slice(0, REASON_CHARS_MAX);
  }

  async timeFused(candidate: FusedCandidate): Promise<FusedTimes> {
    const { plain, params } = candidate;
    const { M = 0, N = 0, K = 0 } = params;
    const cut = cutToSize(layoutOf(plain) ?? "nt", { M, N, K }, FLOPS_MAX[this.#kind]);
    return await timeFused(this.#gpu, { ...candidate, params: { ...params, M: cut.M } });
  }

  release(): void {
    this.#bench?.bench.destroy();
    this.#bench = null;
  }
}

/** The product with fewer rows, or with a shorter K where the rows are the weights'. */
export function cutToSize(layout: MatmulLayout, shape: MatmulShape, flopsMax: number): MatmulShape {
  const axis = layout === "tn" ? "K" : "M";
  const perUnit = 2 * shape.M * shape.N * shape.K / shape[axis];
  const most = Math.max(CUT, Math.floor(flopsMax / perUnit / CUT) * CUT);
  return { ...shape, [axis]: Math.min(shape[axis], most) };
}

interface Step {
  pipeline: GPUComputePipeline;
  bindGroup: GPUBindGroup;
  workgroups: [number, number, number];
}

/** Operands, result and scratch of one product. */
class ProductBench {
  readonly #gpu: GpuDevice;
  readonly #shape: MatmulShape;
  readonly #arena: Arena;
  readonly #own: GPUBuffer[] = [];
  readonly #staging: Staging;

  private constructor(gpu: GpuDevice, shape: MatmulShape, parts: { arena: Arena; staging: Staging }) {
    this.#gpu = gpu;
    this.#shape = shape;
    this.#arena = parts.arena;
    this.#staging = parts.staging;
  }

  /** Errors: out-of-memory. `readBytes`: most that is brought back at once. */
  static async allocate(gpu: GpuDevice, shape: MatmulShape, readBytes: number): Promise<ProductBench> {
    const { M, N, K } = shape;
    const sizes = {
      a: M * K,
      b: K * N,
      residual: M * N,
      out: M * N,
      slices: Math.max(slicedElements([shape]), 4 * M * N),
    };
    const requests = Object.entries(sizes).map(([name, count]) => ({ name, bytes: count * FLOAT_BYTES }));
    const apart = ["a", "b", "residual"].flatMap((read) =>
      [[read, "out"], [read, "slices"]] as [string, string][]
    );
    const plan = planArena(requests, [...apart, ["slices", "out"]], arenaLimits(gpu.limits));
    const arena = await Arena.allocate(gpu, "tuning", plan);
    // Waiting is what is timed, so nothing may rest before it asks.
    const staging = new Staging({ ...gpu, polls: false }, "tuning", stagingPieces(readBytes));
    return new ProductBench(gpu, shape, { arena, staging });
  }

  /** What one product takes: compiled, bound, with its parameters. */
  async prepare({ spec, slices }: Pick<Candidate, "spec" | "slices">): Promise<Step[]> {
    const names = { a: "a", b: "b", residual: "residual", out: "out", slices: "slices" };
    const steps: Step[] = [];
    for (const dispatch of productDispatches({ spec, slices }, this.#shape, names)) {
      const { device } = this.#gpu;
      const kernel = await compileKernel(device, dispatch.spec);
      const params = this.#buffer(32, BufferUsage.uniform | BufferUsage.copyDst);
      device.queue.writeBuffer(params, 0, packParams(dispatch.spec, dispatch.params));
      const entries = dispatch.spec.bindings.map(({ name }, binding) => ({
        binding,
        resource: binding === 0 ? { buffer: params } : this.#arena.range(dispatch.tensors[name]!),
      }));
      steps.push({
        pipeline: kernel.pipeline,
        bindGroup: device.createBindGroup({ label: "tuning", layout: kernel.layout, entries }),
        workgroups: dispatch.spec.workgroups(dispatch.params, kernel.overrides),
      });
    }
    return steps;
  }

  /** Milliseconds until a few bytes of the result are back. */
  async elapsedMs(steps: readonly Step[], repeats: number): Promise<number> {
    const start = performance.now();
    await this.#run(steps, { repeats, bytes: FLOAT_BYTES });
    return performance.now() - start;
  }

  /** Relative error of a product with residual, against the double-precision reference. */
  async error(candidate: Pick<Candidate, "spec" | "slices">, layout: MatmulLayout): Promise<number> {
    const { M, N, K } = this.#shape;
    const [a, b, residual] = [sample(M * K, 1), sample(K * N, 2), sample(M * N, 3)];
    for (const [name, values] of Object.entries({ a, b, residual })) {
      const { buffer, offset } = this.#arena.range(name);
      this.#gpu.device.queue.writeBuffer(buffer, offset, values);
    }
    const steps = await this.prepare(candidate);
    const bytes = M * N * FLOAT_BYTES;
    const actual = new Float32Array(await this.#run(steps, { repeats: 1, bytes }));
    const product = reference[layout](Float64Array.from(a), Float64Array.from(b), this.#shape);
    let [difference, norm] = [0, 0];
    for (const [i, value] of product.entries()) {
      const expected = value + residual[i]!;
      difference += (actual[i]! - expected) ** 2;
      norm += expected ** 2;
    }
    return Math.sqrt(difference / norm);
  }

  async #run(
    steps: readonly Step[],
    { repeats, bytes }: { repeats: number; bytes: number },
  ): Promise<ArrayBuffer> {
    const { device } = this.#gpu;
    const encoder = device.createCommandEncoder({ label: "tuning" });
    const pass = encoder.beginComputePass({ label: "tuning" });
    for (let i = 0; i < repeats; i++) {
      for (const { pipeline, bindGroup, workgroups } of steps) {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, bindGroup);
        pass.dispatchWorkgroups(...workgroups);
      }
    }
    pass.end();
    return await this.#staging.submitAndRead(
      encoder,
      [{ ...this.#arena.range("out"), size: bytes }],
      "tuning",
    );
  }

  #buffer(size: number, usage: number): GPUBuffer {
    const buffer = this.#gpu.device.createBuffer({ label: "tuning", size, usage });
    this.#own.push(buffer);
    return buffer;
  }

  destroy(): void {
    this.#arena.destroy();
    this.#staging.destroy();
    for (const buffer of this.#own) buffer.destroy();
  }
}
