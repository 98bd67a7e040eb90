// The attention kernels in register tiles (software adapters, narrow and wide heads) and in workgroup memory (GPUs) against
// the same reference as the plain ones. Chosen here by hand: which adapter gets them is decided by attentionKernels, also tested here.
import assert from "node:assert/strict";
import {
  attentionForwardFlashSpec,
  attentionForwardSpec,
  attentionForwardTiledSpec,
  attentionForwardTiledWideSpec,
  type AttentionKernels,
  attentionKernels,
  attentionKeyValueGradFlashSpec,
  attentionKeyValueGradTiledSpec,
  attentionKeyValueGradTiledWideSpec,
  attentionQueryGradFlashSpec,
  attentionQueryGradTiledSpec,
  attentionQueryGradTiledWideSpec,
} from "../../peer/gpu/kernels/attention.ts";
import { rotaryTable } from "../../peer/gpu/kernels/rotary.ts";
import { attentionBackward, attentionForward } from "../../shaders/reference/attention.ts";
import { rotaryBackward } from "../../shaders/reference/rotary.ts";
import { assertSameBits, onAdapter, relL2, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** exp and log of a few units in the last place on scores of a few units, sums of up to T terms. */
const ATTENTION_TOLERANCE = 5e-6;

interface Heads {
  B: number;
  T: number;
  H: number;
  Hk: number;
  D: number;
}

/** Tiles of four rows and 16 columns, less, more; grouped and plain heads; several sequences. */
const heads: Heads[] = [
  [1, 1, 1, 1, 8],
  [2, 3, 2, 1, 8],
  [2, 4, 1, 1, 16],
  [1, 5, 4, 2, 40],
  [3, 13, 6, 3, 24],
  [1, 33, 2, 2, 16],
  [2, 64, 4, 2, 32],
  [1, 9, 2, 1, 128],
].map(([B = 0, T = 0, H = 0, Hk = 0, D = 0]) => ({ B, T, H, Hk, D }));

/** What the wide tiles take, to their widest. */
const wideHeads: Heads[] = [
  ...heads.filter(({ D }) => D <= 64),
  { B: 1, T: 1, H: 2, Hk: 1, D: 64 },
  { B: 2, T: 9, H: 4, Hk: 2, D: 64 },
];

/** Around the 32 rows of a workgroup and the 32 columns of a chunk, and several of both. */
const longer: Heads[] = [
  [1, 31, 2, 1, 32],
  [2, 32, 3, 1, 40],
  [2, 65, 4, 2, 72],
  [1, 97, 2, 2, 64],
].map(([B = 0, T = 0, H = 0, Hk = 0, D = 0]) => ({ B, T, H, Hk, D }));

const THETA = 10_000;

function attentionCase(shape: Heads) {
  const { B, T, H, Hk, D } = shape;
  const R = B * T;
  const qkv = testValues(R * (H + 2 * Hk) * D, 1).map((value) => value * 2);
  const dout = testValues(R * H * D, 2);
  const wide = Float64Array.from(qkv);
  const { out, lse } = attentionForward(wide, shape);
  const rotated = attentionBackward({ qkv: wide, out, lse, dOut: Float64Array.from(dout) }, shape);
  const dqkv = rotaryBackward(rotated, { ...shape, theta: THETA });
  const delta = new Float32Array(R * H);
  for (let i = 0; i < dout.length; i++) delta[Math.floor(i / D)]! += dout[i]! * out[i]!;
  const params = { R, T, H, Hk, D };
  const given = { qkv, dout, lse: Float32Array.from(lse), angles: rotaryTable(T, D, THETA) };
  return { params, qkv, out, lse, dqkv, delta, given };
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

const tiled: AttentionKernels = {
  forward: attentionForwardTiledSpec,
  queryGrad: attentionQueryGradTiledSpec,
  keyValueGrad: attentionKeyValueGradTiledSpec,
  overrides: {},
};
const wide: AttentionKernels = {
  forward: attentionForwardTiledWideSpec,
  queryGrad: attentionQueryGradTiledWideSpec,
  keyValueGrad: attentionKeyValueGradTiledWideSpec,
  overrides: {},
};
const flash: AttentionKernels = {
  forward: attentionForwardFlashSpec,
  queryGrad: attentionQueryGradFlashSpec,
  keyValueGrad: attentionKeyValueGradFlashSpec,
  overrides: { headDim: 0 },
};
/** The kernels as a GPU gets them. A software adapter compiles unrolled loops for half a minute each, so it never does. */
function variants(kernels: AttentionKernels, { D }: Heads): AttentionKernels[] {
  if (kernels !== flash || gpu.software) return [kernels];
  return [kernels, { ...kernels, overrides: attentionKernels(D, false).overrides }];
}

async function testForward({ forward, overrides }: AttentionKernels, shape: Heads): Promise<void> {
  const { params, qkv, out, lse } = attentionCase(shape);
  const outputs = { out: out.length, lse: lse.length };
  const actual = await runTwice(gpu, forward, { params, inputs: { qkv }, outputs, overrides });
  close([...actual.out!], [...out], `out of ${JSON.stringify(shape)}`);
  close([...actual.lse!], [...lse], `lse of ${JSON.stringify(shape)}`);
}

async function testGradients(kernels: AttentionKernels, shape: Heads): Promise<void> {
  const { queryGrad, keyValueGrad, overrides } = kernels;
  const { params, qkv, out, delta, dqkv, given } = attentionCase(shape);
  const first = await runTwice(gpu, queryGrad, {
    params,
    inputs: { ...given, out: Float32Array.from(out) },
    outputs: { delta: delta.length, dqkv: qkv.length },
    overrides,
  });
  const second = { params, inputs: { ...given, delta }, outputs: { dqkv: qkv.length }, overrides };
  const keyValue = (await runTwice(gpu, keyValueGrad, second)).dqkv!;
  const query = first.dqkv!;
  const what = JSON.stringify(shape);
  close([...first.delta!], [...delta], `delta of ${what}`);
  close(part(query, shape, true), part(dqkv, shape, true), `dq of ${what}`);
  close(part(keyValue, shape, false), part(dqkv, shape, false), `dk, dv of ${what}`);
  assert.ok(part(query, shape, false).every(Number.isNaN), `${what}: the query kernel wrote keys or values`);
  assert.ok(part(keyValue, shape, true).every(Number.isNaN), `${what}: the other kernel wrote queries`);
}

/** The row at `changed` lies inside a tile: rows before it and the second sequence must keep their bits. */
async function testCausal({ forward, overrides }: AttentionKernels, shape: Heads, changed: number) {
  const { params, qkv, out, lse } = attentionCase(shape);
  const [width, stride] = [shape.H * shape.D, (shape.H + 2 * shape.Hk) * shape.D];
  const outputs = { out: out.length, lse: lse.length };
  const run = async (values: Float32Array) =>
    (await runTwice(gpu, forward, { params, inputs: { qkv: values }, outputs, overrides })).out!;
  const before = await run(qkv);
  const after = await run(qkv.slice().fill(3, changed * stride, shape.T * stride));
  const [from, to] = [changed * width, shape.T * width];
  assertSameBits(after.subarray(0, from), before.subarray(0, from), "rows before");
  assertSameBits(after.subarray(to), before.subarray(to), "the second sequence");
  assert.notDeepEqual(after.subarray(from, to), before.subarray(from, to));
}

const families = [
  { name: "tiled", kernels: tiled, all: heads },
  { name: "tiled_wide", kernels: wide, all: wideHeads },
  { name: "flash", kernels: flash, all: [...heads, ...longer] },
];
for (const { name, kernels, all } of families) {
  Deno.test(onAdapter(gpu, `attention_forward_${name} equals the reference`), async () => {
    for (const shape of all) {
      for (const variant of variants(kernels, shape)) await testForward(variant, shape);
    }
  });
  Deno.test(onAdapter(gpu, `the ${name} attention gradients equal the reference`), async () => {
    for (const shape of all) {
      for (const variant of variants(kernels, shape)) await testGradients(variant, shape);
    }
  });
  Deno.test(
    onAdapter(gpu, `attention_forward_${name} never looks ahead or into another sequence`),
    async () => {
      await testCausal(kernels, { B: 2, T: 6, H: 2, Hk: 1, D: 8 }, 2);
      await testCausal(kernels, { B: 2, T: 70, H: 1, Hk: 1, D: 8 }, 37);
    },
  );
}

Deno.test(
  onAdapter(gpu, "attention_forward_flash stays finite for scores far outside the range of exp"),
  async () => {
    const shape = { B: 1, T: 40, H: 2, Hk: 1, D: 8 };
    const { params, qkv } = attentionCase(shape);
    const large = qkv.map((value) => value * 50);
    const { out, lse } = attentionForward(Float64Array.from(large), shape);
    const outputs = { out: out.length, lse: lse.length };
    const actual = await runTwice(gpu, attentionForwardFlashSpec, {
      params,
      inputs: { qkv: large },
      outputs,
    });
    // Scores near 1e4 carry an absolute rounding error near 1e-3, which is the relative error of their exponentials.
    assert.ok(relL2(actual.out!, out) <= 1e-2, `relative error ${relL2(actual.out!, out)}`);
    close([...actual.lse!], [...lse], "lse");
  },
);

Deno.test("who gets which attention kernels", () => {
  assert.equal(attentionKernels(16, true).forward, attentionForwardTiledSpec);
  assert.deepEqual(attentionKernels(16, true).overrides, {});
  for (const D of [24, 32, 64]) assert.deepEqual(attentionKernels(D, true), wide);
  assert.equal(attentionKernels(72, true).forward, attentionForwardSpec);
  assert.equal(attentionKernels(12, true).forward, attentionForwardSpec);
  assert.equal(attentionKernels(12, false).forward, attentionForwardSpec);
  assert.deepEqual(attentionKernels(12, false).overrides, { headDim: 12 });
  assert.equal(attentionKernels(16, false).forward, attentionForwardFlashSpec);
  assert.deepEqual(attentionKernels(16, false).overrides, { headDim: 16 });
});
