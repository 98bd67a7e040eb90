// Every member of the family with every epilogue of its own, in f32 and in halves, against the double-precision references and
// against the kernels that do the same one after the other. Outputs start as NaN; behind the operands lies NaN.
import assert from "node:assert/strict";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import { ANY_ADAPTER, MatmulEpilogue, pickFused } from "../../peer/gpu/kernels/matmul.ts";
import { MATMUL_FAMILY, type MatmulMember, memberSpec } from "../../peer/gpu/kernels/matmul_family.ts";
import {
  fusedSpec,
  fusedSpecs,
  type FusedStorage,
  fusionLayout,
  MATMUL_FUSIONS,
  type MatmulFusion,
} from "../../peer/gpu/kernels/matmul_fused.ts";
import { biasAddSpec } from "../../peer/gpu/kernels/bias.ts";
import { geluBackwardSpec, geluForwardSpec } from "../../peer/gpu/kernels/gelu.ts";
import { rotarySpec, rotaryTable } from "../../peer/gpu/kernels/rotary.ts";
import { swigluBackwardSpec, swigluForwardSpec } from "../../peer/gpu/kernels/swiglu.ts";
import { canRun } from "../../peer/gpu/pipeline.ts";
import { biasForward } from "../../shaders/reference/bias.ts";
import { geluBackward, geluForward } from "../../shaders/reference/gelu.ts";
import { matmulNN, matmulNT } from "../../shaders/reference/matmul.ts";
import { rotaryForward } from "../../shaders/reference/rotary.ts";
import { swigluBackward, swigluForward } from "../../shaders/reference/swiglu.ts";
import { close, packed, rounded, unpacked } from "./halves_support.ts";
import { onAdapter, runKernel, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
const THETA = 10_000;
/** [B, T, H, Hk, D, C]: a single pair of pairs, grouped heads, D that 8 does not divide, rows over a tile of 64 and of 128. */
const HEADS = [[1, 1, 1, 1, 4, 4], [2, 3, 2, 1, 4, 8], [1, 7, 3, 3, 12, 12], [2, 33, 4, 2, 20, 36], [
  1,
  133,
  1,
  1,
  16,
  8,
]];
/** [R, I, C]: I that 4 does not divide where the kernel takes it, widths under, at and over a tile. */
const GATES = [[1, 2, 4], [3, 6, 8], [67, 34, 12], [9, 66, 36], [133, 8, 4]];
const GRADIENTS = [[1, 4, 4], [3, 12, 8], [67, 36, 12], [9, 68, 36], [133, 8, 4]];

/** One case: what a fused kernel is given, and what it must leave, by the name of its binding. */
interface Case {
  params: Record<string, number>;
  /** Kept values; weights and angles are f32 whatever the rest is. */
  inputs: Record<string, Float32Array>;
  expected: Record<string, Float64Array>;
}

const WEIGHTS = ["b", "angles", "bias"];

function wide(values: Float32Array): Float64Array {
  return Float64Array.from(values);
}

/** Behind what a product may read. */
function beforeNaN(values: Float32Array, K: number): Float32Array {
  const longer = new Float32Array(values.length + 16 * K + 64).fill(NaN);
  longer.set(values);
  return longer;
}

function rotaryCase([B = 0, T = 0, H = 0, Hk = 0, D = 0, C = 0]: number[], kept: typeof rounded): Case {
  const [M, N, K] = [B * T, (H + 2 * Hk) * D, C];
  const [a, b] = [kept(testValues(M * K, 1)), testValues(N * K, 2)];
  const out = rotaryForward(matmulNT(wide(a), wide(b), { M, N, K }), { T, H, Hk, D, theta: THETA });
  const params = { M, N, K, T, D, turned: (H + Hk) * D };
  return { params, inputs: { a, b, angles: rotaryTable(T, D, THETA) }, expected: { out } };
}

function swigluCase([M = 0, I = 0, K = 0]: number[], kept: typeof rounded): Case {
  const N = 2 * I;
  const [a, b] = [kept(testValues(M * K, 1)), testValues(N * K, 2)];
  const gate_up = matmulNT(wide(a), wide(b), { M, N, K });
  return { params: { M, N, K }, inputs: { a, b }, expected: { gate_up, act: swigluForward(gate_up, { I }) } };
}

function backwardCase([M = 0, I = 0, K = 0]: number[], kept: typeof rounded): Case {
  const [a, b] = [kept(testValues(M * K, 1)), testValues(K * I, 2)];
  const gate_up = kept(testValues(M * 2 * I, 3).map((value) => value * 4));
  const dact = matmulNN(wide(a), wide(b), { M, N: I, K });
  const expected = {
    gate_up: swigluBackward(wide(gate_up), dact, { I }),
    act: swigluForward(wide(gate_up), { I }),
  };
  return { params: { M, N: I, K }, inputs: { a, b, gate_up }, expected };
}

/** Every second shape has no residual; its binding is then the product's own operand, as a stage has it. */
function biasCase([M = 0, N = 0, K = 0]: number[], kept: typeof rounded): Case {
  const [a, b, bias] = [kept(testValues(M * K, 1)), testValues(N * K, 2), testValues(N, 4)];
  const sums = biasForward(matmulNT(wide(a), wide(b), { M, N, K }), wide(bias));
  if (M % 2 === 0) {
    return { params: { M, N, K, residual: 0 }, inputs: { a, b, bias, residual: a }, expected: { out: sums } };
  }
  const residual = kept(testValues(M * N, 3));
  const out = sums.map((value, i) => value + residual[i]!);
  return { params: { M, N, K, residual: 1 }, inputs: { a, b, bias, residual }, expected: { out } };
}

function geluCase([M = 0, N = 0, K = 0]: number[], kept: typeof rounded): Case {
  const [a, b, bias] = [kept(testValues(M * K, 1)), testValues(N * K, 2), testValues(N, 4)];
  const up = matmulNT(wide(a), wide(b), { M, N, K });
  const act = geluForward(biasForward(up, wide(bias)));
  return { params: { M, N, K }, inputs: { a, b, bias }, expected: { up, act } };
}

function geluBackwardCase([M = 0, N = 0, K = 0]: number[], kept: typeof rounded): Case {
  const [a, b, bias] = [kept(testValues(M * K, 1)), testValues(K * N, 2), testValues(N, 4)];
  const up = kept(testValues(M * N, 3).map((value) => value * 4));
  const z = biasForward(wide(up), wide(bias));
  const expected = { up: geluBackward(z, matmulNN(wide(a), wide(b), { M, N, K })), act: geluForward(z) };
  return { params: { M, N, K }, inputs: { a, b, bias, up }, expected };
}

/** Odd and even numbers of rows. */
const ROWS = [[1, 4, 4], [4, 12, 8], [67, 36, 12], [10, 68, 36], [133, 8, 4]];

const CASES: Record<MatmulFusion, { shapes: number[][]; make: typeof rotaryCase }> = {
  rotary: { shapes: HEADS, make: rotaryCase },
  swiglu: { shapes: GATES, make: swigluCase },
  swiglu_backward: { shapes: GRADIENTS, make: backwardCase },
  bias: { shapes: ROWS, make: biasCase },
  gelu: { shapes: GRADIENTS, make: geluCase },
  gelu_backward: { shapes: GRADIENTS, make: geluBackwardCase },
};

/** f32: sums in order, then what swiglu and rotary add. In halves each value is rounded once, at its store. */
function tolerance(storage: FusedStorage, K: number): number {
  return storage === "halves" ? 5e-4 : 2e-6 * Math.sqrt(K) + 1e-6;
}

function bound(storage: FusedStorage, name: string, values: Float32Array, K: number) {
  const isKept = storage === "halves" && !WEIGHTS.includes(name);
  const product = name === "a" || name === "b";
  if (isKept) return packed(product ? beforeNaN(values, K) : values);
  return product ? beforeNaN(values, K) : values;
}

async function compare(spec: KernelSpec, { params, inputs, expected }: Case, storage: FusedStorage) {
  const half = storage === "halves";
  const lengths = Object.entries(expected).map(([name, { length }]) => [name, half ? length / 2 : length]);
  const made = await runTwice(gpu, spec, {
    params,
    inputs: Object.fromEntries(
      Object.entries(inputs).map(([name, values]) => [name, bound(storage, name, values, params.K!)]),
    ),
    outputs: Object.fromEntries(lengths),
  });
  for (const [name, wanted] of Object.entries(expected)) {
    close(half ? unpacked(made[name]!) : made[name]!, wanted, {
      ...{
        what: `${name} of ${spec.name}, ${JSON.stringify(params)}`,
        tolerance: tolerance(storage, params.K!),
      },
    });
  }
}

/** A driver compiles each kernel for a second. In halves only how values are stored differs, so one kind of each loop is enough. */
const HALVES_MEMBERS = ["registers 8x4", "shared 64x64"];

function members(fusion: MatmulFusion, storage: FusedStorage): [MatmulMember, KernelSpec][] {
  return MATMUL_FAMILY.flatMap((member): [MatmulMember, KernelSpec][] => {
    const spec = fusedSpec(member, fusion, { M: 4, N: 4, K: 4, storage });
    assert.ok(spec, `${member.name} has no ${fusion} in ${storage}`);
    const wanted = storage === "floats" || HALVES_MEMBERS.includes(member.name);
    return wanted && canRun(gpu.device, spec) ? [[member, spec]] : [];
  });
}

for (const fusion of MATMUL_FUSIONS) {
  for (const storage of ["floats", "halves"] as const) {
    Deno.test(onAdapter(gpu, `matmul ${fusion} ${storage}: every member equals the reference`), async () => {
      const { shapes, make } = CASES[fusion];
      const kept = storage === "halves" ? rounded : (values: ArrayLike<number>) => Float32Array.from(values);
      for (const shape of shapes) {
        for (const [, spec] of members(fusion, storage)) await compare(spec, make(shape, kept), storage);
      }
    });
  }
}

/** The product alone, stored. */
async function productOf(member: MatmulMember, fusion: MatmulFusion, { params, inputs }: Case) {
  const { M = 0, N = 0, K = 0 } = params;
  const spec = memberSpec(member, fusionLayout(fusion), { M, N, K })!;
  const { a, b, residual = a } = inputs;
  const epilogue = params.residual === 1 ? MatmulEpilogue.addResidual : MatmulEpilogue.store;
  const { out } = await runKernel(gpu, spec, {
    params: { M, N, K, epilogue, sliceK: K },
    inputs: { a: a!, b: b!, residual: residual! },
    outputs: { out: M * N },
  });
  return out!;
}

/** The same by the kernels that a stage runs apart. */
async function composed(member: MatmulMember, fusion: MatmulFusion, made: Case) {
  const out = await productOf(member, fusion, made);
  const { M: R = 0, N = 0, T = 0, D = 0, turned = 0 } = made.params;
  if (fusion === "rotary") {
    const [H, Hk] = [turned / D - (N - turned) / D, (N - turned) / D];
    const inputs = { angles: made.inputs.angles!, qkv: out };
    const params = { R, T, H, Hk, D, direction: 1 };
    const { qkv } = await runKernel(gpu, rotarySpec, { params, inputs, outputs: { qkv: R * N } });
    return { out: qkv! };
  }
  const { bias, up } = made.inputs;
  if (fusion === "bias") {
    const run = { params: { R, N }, inputs: { bias: bias!, x: out }, outputs: { x: R * N } };
    return { out: (await runKernel(gpu, biasAddSpec, run)).x! };
  }
  if (fusion === "gelu") {
    const run = { params: { R, I: N }, inputs: { bias: bias!, up: out }, outputs: { out: R * N } };
    return { up: out, act: (await runKernel(gpu, geluForwardSpec, run)).out! };
  }
  if (fusion === "gelu_backward") {
    const inputs = { bias: bias!, up: up!, act: out };
    return await runKernel(gpu, geluBackwardSpec, {
      ...{ params: { R, I: N }, inputs, outputs: { up: R * N, act: R * N } },
    });
  }
  if (fusion === "swiglu") {
    const run = { params: { R, I: N / 2 }, inputs: { gate_up: out }, outputs: { out: R * N / 2 } };
    return { gate_up: out, act: (await runKernel(gpu, swigluForwardSpec, run)).out! };
  }
  return await runKernel(gpu, swigluBackwardSpec, {
    params: { R, I: N },
    inputs: { gate_up: made.inputs.gate_up!, act: out },
    outputs: { gate_up: R * 2 * N, act: R * N },
  });
}

/** The sums are the same; what follows may be contracted or divided otherwise, each some units in the last place. */
const COMPOSED_TOLERANCE = 5e-7;

Deno.test(onAdapter(gpu, "a fused product equals its composition"), async () => {
  for (const fusion of MATMUL_FUSIONS) {
    const { shapes, make } = CASES[fusion];
    const made = make(shapes[2]!, (values) => Float32Array.from(values));
    for (const [member, spec] of members(fusion, "floats")) {
      const apart: Record<string, Float32Array> = await composed(member, fusion, made);
      const outputs = Object.fromEntries(Object.entries(apart).map(([name, { length }]) => [name, length]));
      const fused = await runKernel(gpu, spec, { params: made.params, inputs: made.inputs, outputs });
      for (const [name, values] of Object.entries(apart)) {
        close(fused[name]!, values, { what: `${name} of ${spec.name}`, tolerance: COMPOSED_TOLERANCE });
      }
    }
  }
});

Deno.test("fused kernels: shapes that fours do not reach, and fusions kept apart, have none; names are unique", () => {
  assert.equal(
    new Set(fusedSpecs.map(({ name }) => name)).size,
    2 * MATMUL_FAMILY.length * MATMUL_FUSIONS.length,
  );
  assert.equal(pickFused("swiglu", { M: 5, N: 8, K: 6 }, ANY_ADAPTER), undefined);
  assert.equal(pickFused("swiglu", { M: 5, N: 10, K: 4 }, ANY_ADAPTER), undefined);
  const shape = { M: 5, N: 8, K: 4 };
  assert.equal(pickFused("swiglu", shape, ANY_ADAPTER)?.name, "matmul_nt_swiglu_registers_8x4");
  const choice = { ...ANY_ADAPTER, apart: ["swiglu" as const] };
  assert.equal(pickFused("swiglu", shape, choice), undefined);
  assert.equal(
    pickFused("rotary", { ...shape, storage: "halves" }, choice)?.name,
    "matmul_nt_rotary_registers_8x4_halves",
  );
});
