// Every member of the family of matrix products against the double-precision reference: layouts, epilogues, slices.
// Shapes cover 1, primes, a tile's size and one more, multiples of 4 that no tile divides; outputs start as NaN.
import assert from "node:assert/strict";
import {
  ANY_ADAPTER,
  MatmulEpilogue,
  pickMatmul,
  presumedChoice,
  productClass,
  sumSlicesSpec,
} from "../../peer/gpu/kernels/matmul.ts";
import {
  dividesByFour,
  MATMUL_FAMILY,
  MATMUL_LAYOUTS,
  type MatmulLayout,
  type MatmulMember,
  type MatmulShape,
  matmulSpecs,
  memberSpec,
} from "../../peer/gpu/kernels/matmul_family.ts";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import { canRun } from "../../peer/gpu/pipeline.ts";
import { PRODUCT_SLICES, sliceLength } from "../../peer/model/product_slices.ts";
import { matmulNN, matmulNT, matmulTN } from "../../shaders/reference/matmul.ts";
import { assertSameBits, onAdapter, relL2, runKernel, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
const reference = { nn: matmulNN, nt: matmulNT, tn: matmulTN };
/** Repeats that must all give the same bits. */
const REPEATS = 20;

function shapesOf(...triples: [M: number, N: number, K: number][]): MatmulShape[] {
  return triples.map(([M, N, K]) => ({ M, N, K }));
}

/** Any shape: 1, primes, one more or less than the tiles' rows, columns and fours of k. */
const uneven = shapesOf([1, 1, 1], [3, 5, 7], [1, 5, 3], [9, 33, 5], [16, 32, 9], [65, 67, 33]);
/** Divides by 4: a single four, less than a tile, no multiple of a tile, just over a tile of 64 and of 128, a larger one. */
const even = shapesOf([4, 4, 4], [8, 16, 4], [12, 20, 8], [36, 68, 12], [68, 132, 20], [132, 68, 36]);
/** Rows that do not divide by 4, which 16-byte loads take where a is not transposed. */
const unevenRows = shapesOf([1, 4, 4], [7, 20, 8], [67, 36, 28]);

/** f32 sums in order: the relative error grows like the square root of the number of terms. */
function tolerance({ K }: MatmulShape): number {
  return 2e-6 * Math.sqrt(K);
}

/** Behind a and b lies what no sum may contain, so that reading past the end of K is noticed. */
function operands({ M, N, K }: MatmulShape) {
  return {
    ...{ a: beforeNaN(testValues(M * K, 1), M), b: beforeNaN(testValues(K * N, 2), N) },
    ...{ residual: testValues(M * N, 3), old: testValues(M * N, 4) },
  };
}

/** At least a step of 16 k more. */
function beforeNaN(values: Float32Array, width: number): Float32Array {
  const longer = new Float32Array(values.length + 16 * width + 64).fill(NaN);
  longer.set(values);
  return longer;
}

function productOf(layout: MatmulLayout, shape: MatmulShape): Float64Array {
  const { a, b } = operands(shape);
  return reference[layout](Float64Array.from(a), Float64Array.from(b), shape);
}

/** One kernel on one shape, with every epilogue or only the plain store. */
async function compare(
  spec: KernelSpec,
  { layout, shape, epilogues = ["store"] }: {
    layout: MatmulLayout;
    shape: MatmulShape;
    epilogues?: readonly (keyof typeof MatmulEpilogue)[];
  },
): Promise<void> {
  const { M, N, K } = shape;
  const { old, ...inputs } = operands(shape);
  const product = productOf(layout, shape);
  for (const name of epilogues) {
    const added = name === "addResidual" ? inputs.residual : name === "accumulate" ? old : undefined;
    const { out } = await runKernel(gpu, spec, {
      params: { M, N, K, epilogue: MatmulEpilogue[name], sliceK: K },
      inputs: name === "accumulate" ? { ...inputs, out: old } : inputs,
      outputs: { out: M * N },
    });
    const error = relL2(out!, product.map((value, i) => value + (added?.[i] ?? 0)));
    assert.ok(error <= tolerance(shape), `${spec.name} ${M}x${N}x${K} ${name}: relative error ${error}`);
  }
}

/** The members that this device can run, each with the kernel for a shape. */
function membersFor(layout: MatmulLayout, shape: MatmulShape): [MatmulMember, KernelSpec][] {
  return MATMUL_FAMILY.flatMap((member): [MatmulMember, KernelSpec][] => {
    const spec = memberSpec(member, layout, shape);
    return spec && canRun(gpu.device, spec) ? [[member, spec]] : [];
  });
}

for (const layout of MATMUL_LAYOUTS) {
  Deno.test(
    onAdapter(gpu, `matmul ${layout}: every member equals the reference where fours divide`),
    async () => {
      for (const shape of layout === "tn" ? even : [...even, ...unevenRows]) {
        assert.ok(dividesByFour(layout, shape));
        for (const [, spec] of membersFor(layout, shape)) await compare(spec, { layout, shape });
      }
    },
  );

  Deno.test(onAdapter(gpu, `matmul ${layout}: members for any shape equal the reference`), async () => {
    const members = membersFor(layout, uneven[0]!).map(([{ name }]) => name);
    assert.ok(members.includes("registers 8x4") && members.includes("shared 64x64"), members.join());
    for (const shape of uneven) {
      assert.ok(!dividesByFour(layout, shape));
      for (const [, spec] of membersFor(layout, shape)) await compare(spec, { layout, shape });
    }
  });
}

Deno.test(onAdapter(gpu, "matmul: every kernel gives the same bits each time"), async () => {
  const shape = { M: 36, N: 68, K: 52 };
  const { old: _, ...inputs } = operands(shape);
  for (const layout of MATMUL_LAYOUTS) {
    for (const [, spec] of membersFor(layout, shape)) {
      const run = {
        params: { ...shape, epilogue: MatmulEpilogue.store, sliceK: shape.K },
        inputs,
        outputs: { out: shape.M * shape.N },
      };
      const first = (await runKernel(gpu, spec, run)).out!;
      for (let i = 1; i < REPEATS; i++) {
        assertSameBits((await runKernel(gpu, spec, run)).out!, first, `${spec.name}, run ${i}`);
      }
    }
  }
});

Deno.test(
  onAdapter(gpu, "matmul: every kernel adds the residual or the old output where asked"),
  async () => {
    const epilogues = ["addResidual", "accumulate"] as const;
    for (const shape of shapesOf([36, 68, 20], [9, 33, 5])) {
      for (const layout of MATMUL_LAYOUTS) {
        for (const [, spec] of membersFor(layout, shape)) await compare(spec, { layout, shape, epilogues });
      }
    }
  },
);

/** Both passes of a product in slices. */
async function sliced(spec: KernelSpec, shape: MatmulShape, { slices, epilogue }: Record<string, number>) {
  const { M, N, K } = shape;
  const { old, ...inputs } = operands(shape);
  const params = { M, N, K, epilogue: MatmulEpilogue.store, sliceK: sliceLength(K, slices!) };
  const count = M * N;
  const cut = spec.workgroups(params, spec.overrides)[2];
  const { out: parts } = await runKernel(gpu, spec, { params, inputs, outputs: { out: cut * count } });
  assert.ok(!parts!.some(Number.isNaN), `${spec.name} leaves a slice unwritten`);
  const accumulates = epilogue === MatmulEpilogue.accumulate;
  const { out } = await runTwice(gpu, sumSlicesSpec, {
    params: { count, slices: cut, epilogue: epilogue! },
    inputs: { parts: parts!, residual: inputs.residual, ...(accumulates ? { out: old } : {}) },
    outputs: { out: count },
  });
  return { cut, out: out!, residual: inputs.residual, old };
}

Deno.test(
  onAdapter(gpu, "matmul in slices of K equals the reference, the last slice being short or not"),
  async () => {
    for (const shape of shapesOf([12, 20, 64], [36, 68, 52], [9, 7, 37], [68, 12, 260])) {
      const product = productOf("tn", shape);
      for (const [, spec] of membersFor("tn", shape)) {
        for (const [name, epilogue] of Object.entries(MatmulEpilogue)) {
          const { cut, out, residual, old } = await sliced(spec, shape, { slices: PRODUCT_SLICES, epilogue });
          assert.equal(cut, Math.ceil(shape.K / sliceLength(shape.K, PRODUCT_SLICES)), spec.name);
          assert.ok(cut > 1 && cut <= PRODUCT_SLICES, `${spec.name}: ${cut} slices`);
          const added = name === "addResidual" ? residual : name === "accumulate" ? old : undefined;
          const error = relL2(out, product.map((value, i) => value + (added?.[i] ?? 0)));
          assert.ok(error <= tolerance(shape), `${spec.name} in slices, ${name}: relative error ${error}`);
        }
      }
    }
  },
);

Deno.test("matmul: names are unique, and each member has the three layouts", () => {
  assert.equal(new Set(matmulSpecs.map(({ name }) => name)).size, matmulSpecs.length);
  const four = { M: 4, N: 4, K: 4 };
  for (const member of MATMUL_FAMILY) {
    for (const layout of MATMUL_LAYOUTS) assert.ok(memberSpec(member, layout, four), member.name);
  }
});

Deno.test("matmul: without a measurement the adapter's kind decides, and odd shapes get a kernel that takes them", () => {
  const name = (choice: typeof ANY_ADAPTER, shape: MatmulShape) => pickMatmul("nt", shape, choice).spec.name;
  const swift = { software: true, adapterName: "google swiftshader" };
  const four = { M: 64, N: 64, K: 64 };
  const odd = { M: 7, N: 7, K: 7 };
  assert.equal(name(ANY_ADAPTER, four), "matmul_nt_registers_8x4");
  assert.equal(name(ANY_ADAPTER, odd), "matmul_nt_registers_8x4_any");
  assert.equal(name(presumedChoice({ ...swift, subgroups: true }), four), "matmul_nt_quads_16x16");
  assert.equal(name(presumedChoice({ ...swift, subgroups: true }), odd), "matmul_nt_quads_16x16_any");
  assert.equal(name(presumedChoice({ ...swift, subgroups: false }), four), "matmul_nt_registers_8x16");
  assert.equal(name(presumedChoice({ ...swift, subgroups: false }), odd), "matmul_nt_registers_8x4_any");
  const mesa = { software: true, adapterName: "llvmpipe (LLVM 15.0.6, 256 bits)", subgroups: true };
  assert.equal(name(presumedChoice(mesa), four), "matmul_nt_registers_8x4");
  const hardware = { software: false, adapterName: "NVIDIA H200", subgroups: true };
  assert.equal(name(presumedChoice(hardware), four), "matmul_nt_shared_64x64");
});

Deno.test("matmul: a measured pick holds for its class, and slices only where a product may be cut", () => {
  const shape = { M: 64, N: 64, K: 256 };
  const picked = (layout: MatmulLayout, other: Partial<MatmulShape> = {}) => {
    const key = productClass("tn", shape);
    const measured = {
      [key]: { member: "shared 128x64", slices: 4 },
      "nn fours small": { member: "no such", slices: 4 },
    };
    const { member, slices } = pickMatmul(layout, { ...shape, ...other }, {
      preferred: ["registers 4x4"],
      measured,
    });
    return [member.name, slices];
  };
  assert.deepEqual(picked("tn"), ["shared 128x64", 4]);
  assert.deepEqual(picked("tn", { K: 128 }), ["shared 128x64", 1], "too short to cut");
  assert.deepEqual(picked("nn"), ["registers 4x4", 1], "an unknown name is passed over");
  assert.deepEqual(picked("tn", { M: 4096 }), ["registers 4x4", 1], "another class");
});
