// Checks and times products with what follows them, in one kernel and in two, for the autotune (tune.ts decides). Each question
// has a small program of its own, freed with the answer.
import { biasForward } from "../../shaders/reference/bias.ts";
import { geluBackward, geluForward } from "../../shaders/reference/gelu.ts";
import { matmulNN, matmulNT } from "../../shaders/reference/matmul.ts";
import { rotaryForward } from "../../shaders/reference/rotary.ts";
import { swigluBackward, swigluForward } from "../../shaders/reference/swiglu.ts";
import { ShoalError } from "../wire/errors.ts";
import type { TensorRequest } from "./arena.ts";
import type { GpuDevice } from "./device.ts";
import type { KernelSpec } from "./kernel.ts";
import { biasKernels } from "./kernels/bias.ts";
import { geluKernels } from "./kernels/gelu.ts";
import { fusionLayout, type MatmulFusion } from "./kernels/matmul_fused.ts";
import { MatmulEpilogue } from "./kernels/matmul.ts";
import { rotaryKernel, rotaryTable } from "./kernels/rotary.ts";
import { swigluKernels } from "./kernels/swiglu.ts";
import { type DispatchPlan, type OperationPlan, Program } from "./program.ts";
import { sample } from "./tune_sample.ts";

/** One member's kernel with an end, beside its plain one. */
export interface FusedCandidate {
  fusion: MatmulFusion;
  /** By name, of the family. */
  member: string;
  spec: KernelSpec;
  plain: KernelSpec;
  /** As the stage's dispatch has them: M, N, K, for rotary T, D and turned, for bias whether there is a residual. */
  params: Readonly<Record<string, number>>;
}

/** Shapes that no tile divides, of more than 128 rows: for rotary a grouped key head, and D that 8 does not divide. */
const CHECKS: Readonly<Record<MatmulFusion, Readonly<Record<string, number>>>> = {
  rotary: { M: 133, N: 80, K: 36, T: 133, D: 20, turned: 60 },
  swiglu: { M: 133, N: 68, K: 36 },
  swiglu_backward: { M: 133, N: 68, K: 36 },
  bias: { M: 133, N: 68, K: 36, residual: 1 },
  gelu: { M: 133, N: 68, K: 36 },
  gelu_backward: { M: 133, N: 68, K: 36 },
};
const CHECK_THETA = 10_000;
/** f32 sums of so few terms, an exponential and a division differ by some 1e-6; a wrong term shows as far more. */
const CHECK_TOLERANCE = 1e-4;
/** Runs in one submit; the first that takes TARGET_MS is used, so that waiting for the end weighs little. */
const REPEATS = [1, 8, 64] as const;
const TARGET_MS = { hardware: 3, software: 30 };
/** Both ways take turns so often, and the least of each counts. */
const ROUNDS = 2;
const FLOAT_BYTES = 4;

type Shape = Readonly<Record<string, number>>;

function tensorsOf(fusion: MatmulFusion, { M = 0, N = 0, K = 0, T = 1, D = 1 }: Shape): TensorRequest[] {
  const inner = fusion === "swiglu" ? N / 2 : N;
  const gated = { gate_up: M * 2 * inner, act: M * inner };
  const curved = { bias: N, up: M * N, act: M * N };
  const ends: Record<MatmulFusion, Record<string, number>> = {
    rotary: { angles: T * D, out: M * N },
    ...{ swiglu: gated, swiglu_backward: gated },
    bias: { bias: N, residual: M * N, out: M * N },
    ...{ gelu: curved, gelu_backward: curved },
  };
  return Object.entries({ a: M * K, b: N * K, ...ends[fusion] }).map(([name, count]) => ({
    ...{ name, bytes: count * FLOAT_BYTES },
  }));
}

/** Every tensor has its binding's name. */
function fused({ spec, params }: Pick<FusedCandidate, "spec" | "params">): DispatchPlan[] {
  return [{ spec, params, tensors: Object.fromEntries(spec.bindings.map(({ name }) => [name, name])) }];
}

/** Which tensor the product alone writes. */
const PLAIN_OUT: Readonly<Record<MatmulFusion, string>> = {
  rotary: "out",
  swiglu: "gate_up",
  swiglu_backward: "act",
  bias: "out",
  gelu: "up",
  gelu_backward: "act",
};

function apart({ fusion, plain, params }: FusedCandidate): DispatchPlan[] {
  const { M = 0, N = 0, K = 0 } = params;
  const adds = params.residual === 1;
  const product: DispatchPlan = {
    spec: plain,
    params: { M, N, K, epilogue: adds ? MatmulEpilogue.addResidual : MatmulEpilogue.store, sliceK: K },
    tensors: { a: "a", b: "b", residual: adds ? "residual" : "a", out: PLAIN_OUT[fusion] },
  };
  return [product, endOf(fusion, params)];
}

function endOf(fusion: MatmulFusion, { M: R = 0, N = 0, T = 0, D = 1, turned = 0 }: Shape): DispatchPlan {
  if (fusion === "rotary") {
    const Hk = (N - turned) / D;
    const params = { R, T, H: turned / D - Hk, Hk, D, direction: 1 };
    return { spec: rotaryKernel(D), params, tensors: { angles: "angles", qkv: "out" } };
  }
  if (fusion === "bias") {
    return { spec: biasKernels(N).add, params: { R, N }, tensors: { bias: "bias", x: "out" } };
  }
  if (fusion === "gelu" || fusion === "gelu_backward") {
    const spec = geluKernels(N)[fusion === "gelu" ? "forward" : "backward"];
    return { spec, params: { R, I: N }, tensors: { up: "up", bias: "bias", out: "act", act: "act" } };
  }
  const I = fusion === "swiglu" ? N / 2 : N;
  const { forward, backward } = swigluKernels(I);
  const spec = fusion === "swiglu" ? forward : backward;
  return { spec, params: { R, I }, tensors: { gate_up: "gate_up", out: "act", act: "act" } };
}

/** Null if the kernel gives the references' values, else why not. */
export async function checkFused(gpu: GpuDevice, candidate: FusedCandidate): Promise<string | null> {
  const { fusion, spec } = candidate;
  const params = CHECKS[fusion];
  const { inputs, expected } = checkCase(fusion, params);
  const tensors = tensorsOf(fusion, params);
  const readback = [...expected.keys()];
  const operations = new Map([["check", { dispatches: fused({ spec, params }), readback }]]);
  try {
    const program = await Program.build(gpu, { label: "tuning", tensors, operations });
    try {
      for (const [name, values] of Object.entries(inputs)) program.upload(name, bytesOf(values));
      return wrongIn(new Float32Array(await program.run("check")), [...expected.values()]);
    } finally {
      program.destroy();
    }
  } catch (error) {
    if (!(error instanceof ShoalError) || error.code !== "shader-invalid") throw error;
    return error.message;
  }
}

function checkCase(fusion: MatmulFusion, { M = 0, N = 0, K = 0, T = 1, D = 1, turned = 0 }: Shape) {
  const [a, b] = [sample(M * K, 1), sample(N * K, 2)];
  const product = (fusionLayout(fusion) === "nn" ? matmulNN : matmulNT)(wide(a), wide(b), { M, N, K });
  const [bias, kept] = [sample(N, 4), sample(M * N, 3)];
  if (fusion === "bias") {
    const out = biasForward(product, wide(bias)).map((value, i) => value + kept[i]!);
    return { inputs: { a, b, bias, residual: kept }, expected: new Map([["out", out]]) };
  }
  if (fusion === "gelu") {
    const act = geluForward(biasForward(product, wide(bias)));
    return { inputs: { a, b, bias }, expected: new Map([["up", product], ["act", act]]) };
  }
  if (fusion === "gelu_backward") {
    const z = biasForward(wide(kept), wide(bias));
    const expected = new Map([["up", geluBackward(z, product)], ["act", geluForward(z)]]);
    return { inputs: { a, b, bias, up: kept }, expected };
  }
  if (fusion === "rotary") {
    const Hk = (N - turned) / D;
    const out = rotaryForward(product, { T, H: turned / D - Hk, Hk, D, theta: CHECK_THETA });
    return { inputs: { a, b, angles: rotaryTable(T, D, CHECK_THETA) }, expected: new Map([["out", out]]) };
  }
  if (fusion === "swiglu") {
    const act = swigluForward(product, { I: N / 2 });
    return { inputs: { a, b }, expected: new Map([["gate_up", product], ["act", act]]) };
  }
  const gate_up = sample(M * 2 * N, 3);
  const gradient = swigluBackward(wide(gate_up), product, { I: N });
  const act = swigluForward(wide(gate_up), { I: N });
  return { inputs: { a, b, gate_up }, expected: new Map([["gate_up", gradient], ["act", act]]) };
}

function wide(values: Float32Array): Float64Array {
  return Float64Array.from(values);
}

/** What is wrong with what was read back, one expected tensor after the other. */
function wrongIn(actual: Float32Array, expected: readonly Float64Array[]): string | null {
  let at = 0;
  for (const wanted of expected) {
    let [difference, norm] = [0, 0];
    for (const value of wanted) {
      difference += (actual[at++]! - value) ** 2;
      norm += value ** 2;
    }
    const error = Math.sqrt(difference / norm);
    // Not "greater": an error that is not a number is wrong too.
    if (!(error <= CHECK_TOLERANCE)) return `its values are wrong: relative error ${error.toExponential(1)}`;
  }
  return null;
}

export interface FusedTimes {
  /** Milliseconds of the product with its end. */
  fused: number;
  apart: number;
}

/** Times both ways; operands are zero, since no kernel's time depends on them. */
export async function timeFused(gpu: GpuDevice, candidate: FusedCandidate): Promise<FusedTimes> {
  const { fusion, params } = candidate;
  const ways = { fused: fused(candidate), apart: apart(candidate) };
  const readback = { tensor: PLAIN_OUT[fusion], offset: 0, bytes: FLOAT_BYTES };
  const operations = new Map<string, OperationPlan>([["wait", { dispatches: [], readback }]]);
  for (const [way, dispatches] of Object.entries(ways)) {
    for (const repeats of REPEATS) {
      const repeated = new Array<readonly DispatchPlan[]>(repeats).fill(dispatches).flat();
      operations.set(`${way} ${repeats}`, { dispatches: repeated, readback });
    }
  }
  // Waiting is what is timed, so nothing may rest before it asks.
  const plan = { label: "tuning", tensors: tensorsOf(fusion, params), operations };
  const program = await Program.build({ ...gpu, polls: false }, plan);
  try {
    return await takeTurns(program, TARGET_MS[gpu.software ? "software" : "hardware"]);
  } finally {
    program.destroy();
  }
}

async function takeTurns(program: Program, targetMs: number): Promise<FusedTimes> {
  const repeats = await enough(program, targetMs);
  const least: FusedTimes = { fused: Infinity, apart: Infinity };
  for (let round = 0; round < ROUNDS; round++) {
    const wait = await elapsedMs(program, "wait");
    for (const way of ["apart", "fused"] as const) {
      const all = await elapsedMs(program, `${way} ${repeats}`);
      least[way] = Math.min(least[way], Math.max(all - wait, all / 2) / repeats);
    }
  }
  return least;
}

/** Repeats that take long enough. The first run of each way also pays for what a driver leaves until then. */
async function enough(program: Program, targetMs: number): Promise<number> {
  await program.run(`fused ${REPEATS[0]}`);
  await program.run(`apart ${REPEATS[0]}`);
  for (const repeats of REPEATS) {
    if (await elapsedMs(program, `apart ${repeats}`) >= targetMs) return repeats;
  }
  return REPEATS.at(-1)!;
}

async function elapsedMs(program: Program, operation: string): Promise<number> {
  const start = performance.now();
  await program.run(operation);
  return performance.now() - start;
}

function bytesOf(values: Float32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}
