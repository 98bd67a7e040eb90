// The kernels that only a GPT-2 has (LayerNorm, GELU with its bias, biases, learned positions) against the double-precision
// references, and LayerNorm's and GELU's gradients against differences of their forward.
import assert from "node:assert/strict";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import * as bias from "../../peer/gpu/kernels/bias.ts";
import * as gelu from "../../peer/gpu/kernels/gelu.ts";
import * as layernorm from "../../peer/gpu/kernels/layernorm.ts";
import { rmsnormGainGradSpec } from "../../peer/gpu/kernels/rmsnorm.ts";
import { RMSNORM_BLOCK_ROWS } from "../../peer/model/block_tensors.ts";
import * as references from "../../shaders/reference/bias.ts";
import { geluBackward, geluForward } from "../../shaders/reference/gelu.ts";
import {
  layernormForward,
  layernormInputGrad,
  layernormWeightGrad,
} from "../../shaders/reference/layernorm.ts";
import { checkDirections, weighted } from "./difference.ts";
import { onAdapter, relL2, runKernel, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** Rows and columns: ones, primes, around the vec4, the 16 rows of a block and the blocks and columns of a workgroup, and larger. */
const shapes = [
  ...[[1, 1], [1, 7], [3, 5], [7, 4], [15, 33], [16, 12]],
  ...[[17, 32], [129, 3], [260, 96], [18, 260]],
] as [number, number][];
/** f32 sums of a row or a column, one square root or exponential. */
const TOLERANCE = 2e-6;
/** Keeps rows of one or two values from cancelling altogether. */
const EPS = 0.1;

function close(actual: Float32Array, expected: ArrayLike<number>, what: string): void {
  const error = relL2(actual, expected);
  assert.ok(error <= TOLERANCE, `${what}: relative error ${error}`);
}

function wide(values: Float32Array): Float64Array {
  return Float64Array.from(values);
}

/** All of a family's kernels that the width allows, in pairs. */
function norms(C: number): { forward: KernelSpec; backward: KernelSpec }[] {
  const any = { forward: layernorm.layernormForwardSpec, backward: layernorm.layernormBackwardSpec };
  const vec4 = { forward: layernorm.layernormForwardVec4Spec, backward: layernorm.layernormBackwardVec4Spec };
  const group = {
    forward: layernorm.layernormForwardGroupSpec,
    backward: layernorm.layernormBackwardGroupSpec,
  };
  return C % 4 === 0 ? [any, vec4, group] : [any, group];
}

/** An input far from zero, so that a variance taken about zero would show. */
function normCase(R: number, C: number) {
  const x = testValues(R * C, 1).map((value) => value + 5), dy = testValues(R * C, 3);
  const affine = testValues(2 * C, 2), dres = testValues(R * C, 4);
  const [gain, shift] = [wide(affine.subarray(0, C)), wide(affine.subarray(C))];
  const forward = layernormForward(wide(x), { gain, bias: shift }, { C, eps: EPS });
  const stats = Float32Array.from({ length: 2 * R }, (_, i) => {
    return (i % 2 === 0 ? forward.mean : forward.rstd)[i >> 1]!;
  });
  const saved = { x: wide(x), mean: forward.mean, rstd: forward.rstd };
  return { x, dy, affine, dres, gain, forward, stats, saved };
}

async function normGradients(spec: KernelSpec, shape: [number, number], given: Record<string, Float32Array>) {
  const [R, C] = shape, blocks = Math.ceil(R / RMSNORM_BLOCK_ROWS);
  const { dres, ...inputs } = given;
  const { x, dx, partial } = await runTwice(gpu, spec, {
    params: { R, C, residual: dres ? 1 : 0 },
    // Without the residual its buffer holds NaN: reading it would show.
    inputs: { ...inputs, dres: dres ?? new Float32Array(R * C).fill(NaN) },
    outputs: { x: R * C, dx: R * C, partial: blocks * 2 * C },
  });
  return { y: x!, dx: dx!, dAffine: await columnSums(partial!, blocks, 2 * C) };
}

async function columnSums(partial: Float32Array, blocks: number, N: number): Promise<Float32Array> {
  const run = { params: { blocks, C: N }, inputs: { partial }, outputs: { dgain: N } };
  return (await runTwice(gpu, rmsnormGainGradSpec, run)).dgain!;
}

Deno.test(
  onAdapter(gpu, "layernorm kernels equal the reference, with and without the residual"),
  async () => {
    for (const [R, C] of shapes) {
      const { x, dy, affine, dres, gain, forward, stats, saved } = normCase(R, C);
      const alone = layernormInputGrad(saved, wide(dy), { gain, C });
      const weights = layernormWeightGrad(saved, wide(dy), { C });
      for (const kernels of norms(C)) {
        const what = `${R} x ${C}, ${kernels.forward.name}`;
        const run = {
          params: { R, C, eps: EPS },
          inputs: { x, affine },
          outputs: { y: R * C, stats: 2 * R },
        };
        const made = await runTwice(gpu, kernels.forward, run);
        close(made.y!, forward.out, `y of ${what}`);
        close(made.stats!, stats, `stats of ${what}`);
        const plain = await normGradients(kernels.backward, [R, C], { dy, x, affine, stats });
        const added = await normGradients(kernels.backward, [R, C], { dy, x, affine, stats, dres });
        close(added.dx, alone.map((value, i) => value + dres[i]!), `dx with the residual of ${what}`);
        close(plain.y, forward.out, `the norm's output of ${what}`);
        close(plain.dAffine, [...weights.gain, ...weights.bias], `gain and bias of ${what}`);
        // One column has no input gradient at all.
        const size = C === 1 ? 1 : Math.hypot(...alone);
        const off = Math.hypot(...alone.map((value, i) => value - plain.dx[i]!)) / size;
        assert.ok(off <= 2 * TOLERANCE, `dx of ${what}: ${off}`);
      }
    }
  },
);

Deno.test(onAdapter(gpu, "layernorm gradients are the differences of layernorm_forward"), async () => {
  const R = 3, C = 8;
  const { x, dy, affine, stats } = normCase(R, C);
  const { forward, backward } = layernorm.layernormKernels(C, true);
  async function loss(x: Float32Array, affine: Float32Array): Promise<number> {
    const run = { params: { R, C, eps: EPS }, inputs: { x, affine }, outputs: { y: R * C, stats: 2 * R } };
    return weighted((await runKernel(gpu, forward, run)).y!, dy);
  }
  const { dx, dAffine } = await normGradients(backward, [R, C], { dy, x, affine, stats });
  await checkDirections((moved) => loss(moved, affine), x, dx);
  await checkDirections((moved) => loss(x, moved), affine, dAffine);
});

function gelus(I: number) {
  const any = { forward: gelu.geluForwardSpec, backward: gelu.geluBackwardSpec };
  const vec4 = { forward: gelu.geluForwardVec4Spec, backward: gelu.geluBackwardVec4Spec };
  return I % 4 === 0 ? [any, vec4] : [any];
}

async function geluRun(
  { forward, backward }: ReturnType<typeof gelus>[number],
  [R, I]: [number, number],
  { up, row, dact }: { up: Float32Array; row: Float32Array; dact: Float32Array },
) {
  const params = { R, I };
  const made = await runTwice(gpu, forward, { params, inputs: { up, bias: row }, outputs: { out: R * I } });
  const inputs = { up, bias: row, act: dact }, outputs = { up: R * I, act: R * I };
  const back = await runTwice(gpu, backward, { params, inputs, outputs });
  return { out: made.out!, grad: back.up!, act: back.act! };
}

Deno.test(onAdapter(gpu, "gelu kernels equal the reference"), async () => {
  for (const [R, I] of shapes) {
    const up = testValues(R * I, 1).map((value) => value * 4), row = testValues(I, 2);
    const dact = testValues(R * I, 3), z = references.biasForward(wide(up), wide(row));
    const expected = geluForward(z), slopes = geluBackward(z, wide(dact));
    for (const kernels of gelus(I)) {
      const { out, grad, act } = await geluRun(kernels, [R, I], { up, row, dact });
      close(out, expected, `out of ${R} x ${I}, ${kernels.forward.name}`);
      close(act, expected, `act of ${R} x ${I}, ${kernels.backward.name}`);
      close(grad, slopes, `gradient of ${R} x ${I}, ${kernels.backward.name}`);
    }
  }
});

Deno.test(onAdapter(gpu, "gelu stays finite far outside the range of exp"), async () => {
  const up = Float32Array.of(1000, -1000, 30, -30), row = new Float32Array(4);
  const dact = new Float32Array(4).fill(1);
  for (const kernels of gelus(4)) {
    const { out, grad } = await geluRun(kernels, [1, 4], { up, row, dact });
    assert.deepEqual([...out].map((value) => Math.abs(value)), [1000, 0, 30, 0]);
    assert.deepEqual([...grad].map((value) => Math.abs(value)), [1, 0, 1, 0]);
  }
});

Deno.test(onAdapter(gpu, "gelu_backward is the difference of gelu_forward"), async () => {
  const [R, I] = [2, 5], up = testValues(R * I, 1), row = testValues(I, 2), dact = testValues(R * I, 3);
  const kernels = gelus(I)[0]!;
  const { grad } = await geluRun(kernels, [R, I], { up, row, dact });
  await checkDirections(
    async (up) => {
      const run = { params: { R, I }, inputs: { up, bias: row }, outputs: { out: R * I } };
      return weighted((await runKernel(gpu, kernels.forward, run)).out!, dact);
    },
    up,
    grad,
  );
});

Deno.test(onAdapter(gpu, "bias kernels equal the reference"), async () => {
  for (const [R, N] of shapes) {
    const x = testValues(R * N, 1), row = testValues(N, 2), blocks = Math.ceil(R / RMSNORM_BLOCK_ROWS);
    const pairs = [[bias.biasAddSpec, bias.biasPartialSpec], [
      bias.biasAddVec4Spec,
      bias.biasPartialVec4Spec,
    ]];
    for (const [add, partial] of N % 4 === 0 ? pairs : pairs.slice(0, 1)) {
      const params = { R, N };
      const inputs = { x, bias: row };
      const sum = await runTwice(gpu, add!, { params, inputs, outputs: { x: R * N } });
      close(sum.x!, references.biasForward(wide(x), wide(row)), `sum of ${R} x ${N}, ${add!.name}`);
      const outputs = { partial: blocks * N };
      const first = await runTwice(gpu, partial!, { params, inputs: { dy: x }, outputs });
      const gradient = await columnSums(first.partial!, blocks, N);
      close(gradient, references.biasWeightGrad(wide(x), N), `gradient of ${R} x ${N}, ${partial!.name}`);
    }
  }
});

Deno.test(onAdapter(gpu, "position kernels equal the reference"), async () => {
  for (const [B, T, C] of [[1, 1, 1], [1, 7, 5], [3, 4, 6], [2, 65, 3], [17, 5, 12]] as const) {
    const R = B * T, x = testValues(R * C, 1), table = testValues(T * C, 2), params = { R, T, C };
    const run = { params, inputs: { x, table }, outputs: { x: R * C } };
    const sum = await runTwice(gpu, bias.positionsAddSpec, run);
    close(sum.x!, references.positionsForward(wide(x), wide(table)), `positions of ${B} x ${T} x ${C}`);
    const back = { params, inputs: { dout: x }, outputs: { dtable: T * C } };
    const { dtable } = await runTwice(gpu, bias.positionsGradSpec, back);
    close(dtable!, references.positionsWeightGrad(wide(x), { T, C }), `gradient of ${B} x ${T} x ${C}`);
  }
});
