// The kernels in large register tiles, which software adapters get, against the same references as the plain ones.
// Chosen here by hand: which adapter gets them is decided by attentionKernels and wideTiles, also tested here.
import assert from "node:assert/strict";
import {
  attentionForwardSpec,
  attentionForwardTiledSpec,
  attentionKernels,
  attentionKeyValueGradTiledSpec,
  attentionQueryGradTiledSpec,
} from "../../peer/gpu/kernels/attention.ts";
import {
  MatmulEpilogue,
  type MatmulLayout,
  type MatmulShape,
  matmulSpec,
  wideTiles,
} from "../../peer/gpu/kernels/matmul.ts";
import { attentionBackward, attentionForward } from "../../shaders/reference/attention.ts";
import { matmulNN, matmulNT, matmulTN } from "../../shaders/reference/matmul.ts";
import { assertSameBits, onAdapter, relL2, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** exp and log of a few units in the last place on scores of a few units, sums of up to T terms. */
const ATTENTION_TOLERANCE = 5e-6;
const reference = { nn: matmulNN, nt: matmulNT, tn: matmulTN };

/** Around the 8 rows and 16 columns of an invocation and the 4 x 2 of a workgroup; what divides by 4 only. */
const products: MatmulShape[] = [
  [4, 4, 4],
  [8, 16, 4],
  [12, 20, 8],
  [16, 12, 20],
  [36, 68, 12],
  [128, 96, 64],
].map(([M = 0, N = 0, K = 0]) => ({ M, N, K }));

/** Rows that no tile divides; a transposed left side must divide. */
const uneven: MatmulShape[] = [{ M: 1, N: 4, K: 4 }, { M: 7, N: 20, K: 8 }, { M: 67, N: 36, K: 28 }];

async function compareProduct(layout: MatmulLayout, shape: MatmulShape): Promise<void> {
  const { M, N, K } = shape;
  const spec = matmulSpec(layout, shape, { wide: true });
  assert.equal(spec.name, `matmul_${layout}_wide`);
  const [a, b] = [testValues(M * K, 1), testValues(K * N, 2)];
  const [residual, old] = [testValues(M * N, 3), testValues(M * N, 4)];
  const product = reference[layout](Float64Array.from(a), Float64Array.from(b), shape);
  for (const [name, epilogue] of Object.entries(MatmulEpilogue)) {
    const added = name === "addResidual" ? residual : name === "accumulate" ? old : undefined;
    const inputs = name === "accumulate" ? { a, b, residual, out: old } : { a, b, residual };
    const run = { params: { M, N, K, epilogue }, inputs, outputs: { out: M * N } };
    const error = relL2((await runTwice(gpu, spec, run)).out!, product.map((x, i) => x + (added?.[i] ?? 0)));
    // As for the plain products: f32 sums whose error grows like the square root of the number of terms.
    assert.ok(error <= 2e-6 * Math.sqrt(K), `${spec.name} ${M}x${N}x${K} ${name}: relative error ${error}`);
  }
}

for (const layout of ["nn", "nt", "tn"] as const) {
  Deno.test(onAdapter(gpu, `wide matmul ${layout} equals the reference`), async () => {
    for (const shape of layout === "tn" ? products : [...products, ...uneven]) {
      await compareProduct(layout, shape);
    }
  });
}

Deno.test("wide products are taken where asked for and possible", () => {
  const names = (shape: MatmulShape) =>
    (["nn", "nt", "tn"] as const).map((layout) => matmulSpec(layout, shape, { wide: true }).name);
  assert.deepEqual(names({ M: 7, N: 8, K: 8 }), ["matmul_nn_wide", "matmul_nt_wide", "matmul_tn"]);
  assert.deepEqual(names({ M: 8, N: 7, K: 8 }), ["matmul_nn", "matmul_nt_vec4", "matmul_tn"]);
  assert.deepEqual(names({ M: 8, N: 8, K: 7 }), ["matmul_nn", "matmul_nt", "matmul_tn_vec4"]);
  assert.equal(matmulSpec("nn", { M: 8, N: 8, K: 8 }).name, "matmul_nn_vec4");
  assert.ok(wideTiles("google swiftshader"));
  assert.ok(!wideTiles("llvmpipe (LLVM 15.0.6, 256 bits)"));
  assert.ok(!wideTiles("NVIDIA H200"));
});

interface Heads {
  B: number;
  T: number;
  H: number;
  Hk: number;
  D: number;
}

/** Tiles of four rows and 16 columns, less, more; grouped and plain heads; several sequences. */
const heads: Heads[] = [
  [1, 1, 1, 1, 4],
  [2, 3, 2, 1, 8],
  [2, 4, 1, 1, 16],
  [1, 5, 4, 2, 20],
  [3, 13, 6, 3, 12],
  [1, 33, 2, 2, 16],
  [2, 64, 4, 2, 32],
  [1, 9, 2, 1, 128],
].map(([B = 0, T = 0, H = 0, Hk = 0, D = 0]) => ({ B, T, H, Hk, D }));

function attentionCase(shape: Heads) {
  const { B, T, H, Hk, D } = shape;
  const R = B * T;
  const qkv = testValues(R * (H + 2 * Hk) * D, 1).map((value) => value * 2);
  const dout = testValues(R * H * D, 2);
  const wide = Float64Array.from(qkv);
  const { out, lse } = attentionForward(wide, shape);
  const dqkv = attentionBackward({ qkv: wide, out, lse, dOut: Float64Array.from(dout) }, shape);
  const delta = new Float32Array(R * H);
  for (let i = 0; i < dout.length; i++) delta[Math.floor(i / D)]! += dout[i]! * out[i]!;
  const params = { R, T, H, Hk, D };
  return { params, qkv, dout, out, lse, dqkv, inputs: { qkv, dout, lse: Float32Array.from(lse), delta } };
}

/** Packed values of the queries' columns, or of the keys' and values'. */
function part(dqkv: ArrayLike<number>, { H, Hk, D }: Heads, queries: boolean): number[] {
  const stride = (H + 2 * Hk) * D;
  return Array.from(dqkv).filter((_, i) => (i % stride < H * D) === queries);
}

/** With one visible key the softmax is constant: a query's gradient is zero, and only its size can be compared. */
function close(actual: readonly number[], expected: readonly number[], what: string): void {
  const tiny = expected.every((value) => Math.abs(value) < 1e-6);
  const error = tiny ? Math.max(...actual.map(Math.abs)) : relL2(actual, expected);
  assert.ok(error <= ATTENTION_TOLERANCE, `${what}: error ${error}`);
}

Deno.test(onAdapter(gpu, "attention_forward_tiled equals the reference"), async () => {
  for (const shape of heads) {
    const { params, qkv, out, lse } = attentionCase(shape);
    const outputs = { out: out.length, lse: lse.length };
    const actual = await runTwice(gpu, attentionForwardTiledSpec, { params, inputs: { qkv }, outputs });
    close([...actual.out!], [...out], `out of ${JSON.stringify(shape)}`);
    close([...actual.lse!], [...lse], `lse of ${JSON.stringify(shape)}`);
  }
});

Deno.test(
  onAdapter(gpu, "attention_forward_tiled never looks ahead or into another sequence"),
  async () => {
    const shape = { B: 2, T: 6, H: 2, Hk: 1, D: 4 };
    const { params, qkv, out, lse } = attentionCase(shape);
    const [width, stride] = [shape.H * shape.D, (shape.H + 2 * shape.Hk) * shape.D];
    const run = (values: Float32Array) =>
      runTwice(gpu, attentionForwardTiledSpec, {
        params,
        inputs: { qkv: values },
        outputs: { out: out.length, lse: lse.length },
      });
    const before = (await run(qkv)).out!;
    // Row 2 lies in the middle of the first tile; rows 0 and 1 and the second sequence must keep their bits.
    const after = (await run(qkv.slice().fill(3, 2 * stride, 6 * stride))).out!;
    assertSameBits(after.subarray(0, 2 * width), before.subarray(0, 2 * width), "rows 0 and 1");
    assertSameBits(after.subarray(6 * width), before.subarray(6 * width), "the second sequence");
    assert.notDeepEqual(after.subarray(2 * width, 6 * width), before.subarray(2 * width, 6 * width));
  },
);

Deno.test(onAdapter(gpu, "the tiled attention gradients equal the reference"), async () => {
  for (const shape of heads) {
    const { params, inputs, qkv, dqkv } = attentionCase(shape);
    const run = { params, inputs, outputs: { dqkv: qkv.length } };
    const query = (await runTwice(gpu, attentionQueryGradTiledSpec, run)).dqkv!;
    const keyValue = (await runTwice(gpu, attentionKeyValueGradTiledSpec, run)).dqkv!;
    const what = JSON.stringify(shape);
    close(part(query, shape, true), part(dqkv, shape, true), `dq of ${what}`);
    close(part(keyValue, shape, false), part(dqkv, shape, false), `dk, dv of ${what}`);
    assert.ok(
      part(query, shape, false).every(Number.isNaN),
      `${what}: the query kernel wrote keys or values`,
    );
    assert.ok(part(keyValue, shape, true).every(Number.isNaN), `${what}: the other kernel wrote queries`);
  }
});

Deno.test("tiled attention is for narrow heads on software adapters", () => {
  assert.equal(attentionKernels(16, true).forward, attentionForwardTiledSpec);
  assert.deepEqual(attentionKernels(16, true).overrides, {});
  assert.equal(attentionKernels(64, true).forward, attentionForwardSpec);
  assert.equal(attentionKernels(6, true).forward, attentionForwardSpec);
  assert.equal(attentionKernels(16, false).forward, attentionForwardSpec);
  assert.deepEqual(attentionKernels(16, false).overrides, { headDim: 16 });
});
