// The six matrix products against the double-precision reference, with every epilogue.
// Shapes cover 1, primes, tile size ± 1, multiples and a larger one; outputs start as NaN and runs repeat bit for bit.
import assert from "node:assert/strict";
import * as matmul from "../../peer/gpu/kernels/matmul.ts";
import {
  MatmulEpilogue,
  type MatmulLayout,
  type MatmulShape,
  matmulSpec,
} from "../../peer/gpu/kernels/matmul.ts";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import { matmulNN, matmulNT, matmulTN } from "../../shaders/reference/matmul.ts";
import { onAdapter, relL2, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
const reference = { nn: matmulNN, nt: matmulNT, tn: matmulTN };

const shapes: MatmulShape[] = [
  [1, 1, 1],
  [1, 5, 3],
  [3, 1, 7],
  [7, 11, 13],
  [8, 4, 4],
  [9, 33, 5],
  [7, 31, 9],
  [16, 32, 8],
  [12, 36, 20],
  [4, 8, 64],
  [65, 67, 129],
  [128, 96, 64],
].map(([M = 0, N = 0, K = 0]) => ({ M, N, K }));

/** f32 sums in order: the relative error grows like the square root of the number of terms. */
function tolerance({ K }: MatmulShape): number {
  return 2e-6 * Math.sqrt(K);
}

async function compare(spec: KernelSpec, layout: MatmulLayout, shape: MatmulShape): Promise<void> {
  const { M, N, K } = shape;
  const a = testValues(M * K, 1);
  const b = testValues(K * N, 2);
  const residual = testValues(M * N, 3);
  const old = testValues(M * N, 4);
  const product = reference[layout](Float64Array.from(a), Float64Array.from(b), shape);
  for (const [name, epilogue] of Object.entries(MatmulEpilogue)) {
    const added = name === "addResidual" ? residual : name === "accumulate" ? old : undefined;
    const inputs = name === "accumulate" ? { a, b, residual, out: old } : { a, b, residual };
    const run = { params: { M, N, K, epilogue }, inputs, outputs: { out: M * N } };
    const { out } = await runTwice(gpu, spec, run);
    const expected = product.map((value, i) => value + (added?.[i] ?? 0));
    const error = relL2(out!, expected);
    const limit = tolerance(shape);
    assert.ok(error <= limit, `${spec.name} ${M}x${N}x${K} ${name}: relative error ${error} above ${limit}`);
  }
}

for (const layout of ["nn", "nt", "tn"] as const) {
  Deno.test(onAdapter(gpu, `matmul ${layout} equals the reference, kernel chosen by shape`), async () => {
    for (const shape of shapes) await compare(matmulSpec(layout, shape), layout, shape);
  });

  Deno.test(onAdapter(gpu, `matmul ${layout}: the scalar kernel takes every shape`), async () => {
    const scalar = { nn: matmul.matmulNnSpec, nt: matmul.matmulNtSpec, tn: matmul.matmulTnSpec }[layout];
    for (const shape of shapes) await compare(scalar, layout, shape);
  });
}

Deno.test("matmulSpec takes vec4 kernels only where the shape divides", () => {
  const odd = { M: 7, N: 7, K: 7 };
  const even = { M: 8, N: 8, K: 8 };
  const names = (shape: MatmulShape) => (["nn", "nt", "tn"] as const).map((l) => matmulSpec(l, shape).name);
  assert.deepEqual(names(odd), ["matmul_nn", "matmul_nt", "matmul_tn"]);
  assert.deepEqual(names(even), ["matmul_nn_vec4", "matmul_nt_vec4", "matmul_tn_vec4"]);
  assert.equal(matmulSpec("nt", { M: 7, N: 7, K: 8 }).name, "matmul_nt_vec4");
  assert.equal(matmulSpec("tn", { M: 8, N: 8, K: 7 }).name, "matmul_tn_vec4");
});
