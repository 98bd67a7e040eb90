// Matrix products and attention in halves, each kernel against its double-precision reference on the halves that it reads. Which
// member and which attention run is decided as for f32; here all of them are made to run.
import assert from "node:assert/strict";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import { type AttentionKernels, attentionKernels } from "../../peer/gpu/kernels/attention.ts";
import { ANY_ADAPTER, MatmulEpilogue, pickMatmul } from "../../peer/gpu/kernels/matmul.ts";
import {
  MATMUL_FAMILY,
  type MatmulLayout,
  type MatmulShape,
  type MatmulStorage,
  memberSpec,
} from "../../peer/gpu/kernels/matmul_family.ts";
import { rotaryTable } from "../../peer/gpu/kernels/rotary.ts";
import { canRun } from "../../peer/gpu/pipeline.ts";
import { attentionBackward, attentionForward } from "../../shaders/reference/attention.ts";
import { matmulNN, matmulNT, matmulTN } from "../../shaders/reference/matmul.ts";
import { rotaryBackward } from "../../shaders/reference/rotary.ts";
import { close, halvesOf, packed, rounded, unpacked } from "./halves_support.ts";
import { onAdapter, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
const reference = { nn: matmulNN, nt: matmulNT, tn: matmulTN };
/** What is stored in halves: a, b, and out with what is added to it. */
const HALVES: Record<MatmulStorage, [a: boolean, b: boolean, out: boolean]> = {
  floats: [false, false, false],
  halves: [true, false, true],
  halves_in: [true, false, false],
  halves_both: [true, true, false],
};
/** All that a stage in halves needs. */
const USED: [MatmulLayout, MatmulStorage][] = [
  ["nt", "halves"],
  ["nn", "halves"],
  ["nn", "halves_in"],
  ["tn", "halves_both"],
];
/** One four, less than a tile, no multiple of one, over a tile of 64 and of 128. */
const SHAPES = [[4, 4, 4], [12, 20, 8], [36, 68, 12], [132, 68, 36]];

/** Within what the issue asks of products in halves, 2e-3. f32 sums; of an output in halves each value is rounded once. */
function tolerance(inHalves: boolean, K: number): number {
  return inHalves ? 5e-4 : 2e-6 * Math.sqrt(K);
}

async function compare(spec: KernelSpec, layout: MatmulLayout, shape: MatmulShape): Promise<void> {
  const { M, N, K, storage = "floats" } = shape;
  const [halfA, halfB, halfOut] = HALVES[storage];
  const of = (half: boolean, values: Float32Array) => half ? rounded(values) : values;
  const bind = (half: boolean, values: Float32Array) => half ? packed(values) : values;
  const [a, b] = [of(halfA, testValues(M * K, 1)), of(halfB, testValues(K * N, 2))];
  const [residual, old] = [of(halfOut, testValues(M * N, 3)), of(halfOut, testValues(M * N, 4))];
  const product = reference[layout](Float64Array.from(a), Float64Array.from(b), shape);
  for (const [name, epilogue] of Object.entries(MatmulEpilogue)) {
    const given = { a: bind(halfA, a), b: bind(halfB, b), residual: bind(halfOut, residual) };
    const { out } = await runTwice(gpu, spec, {
      params: { M, N, K, epilogue, sliceK: K },
      inputs: name === "accumulate" ? { ...given, out: bind(halfOut, old) } : given,
      outputs: { out: halfOut ? M * N / 2 : M * N },
    });
    const added = name === "addResidual" ? residual : name === "accumulate" ? old : undefined;
    close(halfOut ? unpacked(out!) : out!, product.map((value, i) => value + (added?.[i] ?? 0)), {
      ...{ what: `${spec.name} ${M}x${N}x${K} ${name}`, tolerance: tolerance(halfOut, K) },
    });
  }
}

for (const [layout, storage] of USED) {
  Deno.test(onAdapter(gpu, `matmul ${layout} ${storage}: every member equals the reference`), async () => {
    for (const [M = 0, N = 0, K = 0] of SHAPES) {
      const shape = { M, N, K, storage };
      for (const member of MATMUL_FAMILY) {
        const spec = memberSpec(member, layout, shape);
        assert.ok(spec, `${member.name} has no form in ${storage}`);
        if (canRun(gpu.device, spec)) await compare(spec, layout, shape);
      }
    }
  });
}

Deno.test("matmul: halves run the member that f32 would, and only shapes of fours", () => {
  const [M, N, K] = [64, 64, 64];
  const measured = { "nn fours small": { member: "shared 64x64", slices: 1 } };
  const choice = { ...ANY_ADAPTER, measured };
  const picked = pickMatmul("nn", { M, N, K, storage: "halves_in" }, choice);
  assert.equal(picked.spec.name, "matmul_nn_shared_64x64_halves_in");
  assert.equal(pickMatmul("nn", { M, N, K }, choice).member, picked.member);
  const odd = { M, N: 63, K, storage: "halves" } as const;
  for (const member of MATMUL_FAMILY) assert.equal(memberSpec(member, "nn", odd), undefined);
  assert.throws(() => pickMatmul("nn", odd, ANY_ADAPTER), TypeError);
});

interface Heads {
  B: number;
  T: number;
  H: number;
  Hk: number;
  D: number;
}

/** Tiles of four rows and less, chunks of 32 columns and more, grouped heads, several sequences. */
function headsOf(...shapes: number[][]): Heads[] {
  return shapes.map(([B = 0, T = 0, H = 0, Hk = 0, D = 0]) => ({ B, T, H, Hk, D }));
}

/** By the width that makes attentionKernels take each kind. */
const ATTENTION: { kind: string; software: boolean; suffix: string; heads: Heads[] }[] = [
  {
    ...{ kind: "narrow tiles", software: true, suffix: "_tiled_f16" },
    heads: headsOf([1, 1, 1, 1, 8], [2, 5, 4, 2, 16], [1, 9, 2, 1, 128]),
  },
  {
    ...{ kind: "wide tiles", software: true, suffix: "_tiled_wide_f16" },
    heads: headsOf([1, 3, 2, 1, 24], [2, 13, 4, 2, 64]),
  },
  {
    ...{ kind: "workgroups", software: false, suffix: "_flash_f16" },
    heads: headsOf([1, 1, 1, 1, 8], [2, 5, 4, 2, 40], [1, 33, 2, 1, 64]),
  },
];

function attentionCase(shape: Heads) {
  const { B, T, H, Hk, D } = shape;
  const R = B * T;
  const qkv = rounded(testValues(R * (H + 2 * Hk) * D, 1).map((value) => value * 2));
  const dout = testValues(R * H * D, 2);
  const wide = Float64Array.from(qkv);
  const { out, lse } = attentionForward(wide, shape);
  // Backward reads the output that forward has left, in halves.
  const kept = Float64Array.from(rounded(out));
  const gradient = attentionBackward({ qkv: wide, out: kept, lse, dOut: Float64Array.from(dout) }, shape);
  const dqkv = rotaryBackward(gradient, { ...shape, theta: 10_000 });
  const delta = new Float32Array(R * H);
  for (let i = 0; i < dout.length; i++) delta[Math.floor(i / D)]! += dout[i]! * kept[i]!;
  const given = { qkv: packed(qkv), dout, lse: Float32Array.from(lse), angles: rotaryTable(T, D, 10_000) };
  return { params: { R, T, H, Hk, D }, out, lse, kept, dqkv, delta, given };
}

async function testAttention(kernels: AttentionKernels, shape: Heads): Promise<void> {
  // A software adapter compiles unrolled loops for half a minute.
  const overrides = gpu.software && kernels.overrides.headDim !== undefined
    ? { headDim: 0 }
    : kernels.overrides;
  const { params, out, lse, kept, dqkv, delta, given } = attentionCase(shape);
  const what = JSON.stringify(shape);
  const half = given.qkv.length;
  const made = await runTwice(gpu, halvesOf(kernels.forward), {
    ...{ params, inputs: { qkv: given.qkv }, overrides },
    outputs: { out: out.length / 2, lse: lse.length },
  });
  close(unpacked(made.out!), out, { what: `out of ${what}` });
  close(made.lse!, lse, { what: `lse of ${what}`, tolerance: 5e-6 });
  const query = await runTwice(gpu, halvesOf(kernels.queryGrad), {
    ...{ params, inputs: { ...given, out: packed(kept) }, overrides },
    outputs: { delta: delta.length, dqkv: half },
  });
  close(query.delta!, delta, { what: `delta of ${what}`, tolerance: 5e-6 });
  const keyValue = await runTwice(gpu, halvesOf(kernels.keyValueGrad), {
    ...{ params, inputs: { ...given, delta }, overrides, outputs: { dqkv: half } },
  });
  const stride = (shape.H + 2 * shape.Hk) * shape.D;
  const [queries, rest] = [unpacked(query.dqkv!), unpacked(keyValue.dqkv!)];
  const both = queries.map((value, i) => i % stride < shape.H * shape.D ? value : rest[i]!);
  close(both, dqkv, { what: `dqkv of ${what}` });
}

for (const { kind, software, suffix, heads } of ATTENTION) {
  Deno.test(onAdapter(gpu, `attention in halves equals the reference, ${kind}`), async () => {
    for (const shape of heads) {
      const kernels = attentionKernels(shape.D, software, true);
      for (const spec of [kernels.forward, kernels.queryGrad, kernels.keyValueGrad]) {
        assert.ok(halvesOf(spec).name.endsWith(suffix), spec.name);
      }
      await testAttention(kernels, shape);
    }
  });
}
