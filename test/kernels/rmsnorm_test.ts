// The rmsnorm kernels against the double-precision reference, and the gradient against differences of the forward.
import assert from "node:assert/strict";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import {
  rmsnormBackwardGroupSpec,
  rmsnormBackwardSpec,
  rmsnormBackwardVec4Spec,
  rmsnormForwardGroupSpec,
  rmsnormForwardSpec,
  rmsnormForwardVec4Spec,
  rmsnormGainGradSpec,
  rmsnormKernels,
} from "../../peer/gpu/kernels/rmsnorm.ts";
import { RMSNORM_BLOCK_ROWS } from "../../peer/model/block_tensors.ts";
import { rmsnormForward, rmsnormInputGrad, rmsnormWeightGrad } from "../../shaders/reference/rmsnorm.ts";
import { checkDirections, weighted } from "./difference.ts";
import { onAdapter, relL2, runKernel, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** [R, C]: ones, primes, around the vec4, the 16 rows of a block and the blocks and columns of a workgroup, and larger. */
const shapes = [[1, 1], [1, 7], [3, 5], [7, 4], [15, 33], [16, 12], [17, 32], [129, 3], [260, 96], [18, 260]];
/** f32 sums of C (or R) values and one square root. */
const TOLERANCE = 2e-6;

interface Case {
  R: number;
  C: number;
  eps: number;
}

/** A large eps keeps the input gradient of C = 1 away from total cancellation; the last case has the usual one. */
const cases: Case[] = [
  ...shapes.map(([R = 0, C = 0]) => ({ R, C, eps: 0.1 })),
  { R: 5, C: 48, eps: 1e-5 },
];

/** The kernels that a width allows. */
function kernelsOf({ C }: Case): { forward: KernelSpec; backward: KernelSpec }[] {
  const any = { forward: rmsnormForwardSpec, backward: rmsnormBackwardSpec };
  const vec4 = { forward: rmsnormForwardVec4Spec, backward: rmsnormBackwardVec4Spec };
  const group = { forward: rmsnormForwardGroupSpec, backward: rmsnormBackwardGroupSpec };
  return C % 4 === 0 ? [any, vec4, group] : [any, group];
}

function tensors({ R, C, eps }: Case) {
  const x = testValues(R * C, 1), gain = testValues(C, 2), dy = testValues(R * C, 3);
  const dres = testValues(R * C, 4);
  const wide = { x: Float64Array.from(x), gain: Float64Array.from(gain), dy: Float64Array.from(dy) };
  const forward = rmsnormForward(wide.x, wide.gain, { C, eps });
  const saved = { x: wide.x, rstd: forward.rstd, dOut: wide.dy };
  return { x, gain, dy, dres, wide, forward, saved, rstd: Float32Array.from(forward.rstd) };
}

interface Given {
  dy: Float32Array;
  x: Float32Array;
  gain: Float32Array;
  rstd: Float32Array;
  dres?: Float32Array;
}

/** dx, the norm's output in x's place, and dgain by both passes. */
async function gradients(spec: KernelSpec, { R, C }: { R: number; C: number }, given: Given) {
  const blocks = Math.ceil(R / RMSNORM_BLOCK_ROWS);
  const { dres, ...inputs } = given;
  // Without the residual its buffer holds NaN: reading it would show.
  const bound = dres ?? new Float32Array(R * C).fill(NaN);
  const { x, dx, partial } = await runTwice(gpu, spec, {
    params: { R, C, residual: dres ? 1 : 0 },
    inputs: { ...inputs, dres: bound },
    outputs: { x: R * C, dx: R * C, partial: blocks * C },
  });
  const second = { params: { blocks, C }, inputs: { partial: partial! }, outputs: { dgain: C } };
  const { dgain } = await runTwice(gpu, rmsnormGainGradSpec, second);
  return { y: x!, dx: dx!, dgain: dgain! };
}

function close(actual: Float32Array, expected: ArrayLike<number>, what: string): void {
  const error = relL2(actual, expected);
  assert.ok(error <= TOLERANCE, `${what}: relative error ${error}`);
}

Deno.test(onAdapter(gpu, "rmsnorm_forward equals the reference"), async () => {
  for (const one of cases) {
    const { R, C, eps } = one;
    const { x, gain, forward } = tensors(one);
    const run = { params: { R, C, eps }, inputs: { x, gain }, outputs: { y: R * C, rstd: R } };
    for (const kernels of kernelsOf(one)) {
      const { y, rstd } = await runTwice(gpu, kernels.forward, run);
      close(y!, forward.out, `y of ${R} x ${C}, ${kernels.forward.name}`);
      close(rstd!, forward.rstd, `rstd of ${R} x ${C}, ${kernels.forward.name}`);
    }
  }
});

Deno.test(onAdapter(gpu, "rmsnorm_forward of a row of zeros is zero"), async () => {
  for (const C of [6, 8]) {
    const run = {
      params: { R: 1, C, eps: 1e-5 },
      inputs: { x: new Float32Array(C), gain: new Float32Array(C).fill(2) },
      outputs: { y: C, rstd: 1 },
    };
    for (const software of [true, false]) {
      const { y } = await runTwice(gpu, rmsnormKernels(C, software).forward, run);
      assert.ok(y!.every((value) => value === 0));
    }
  }
});

Deno.test(
  onAdapter(gpu, "rmsnorm_backward equals the reference, with and without the residual"),
  async () => {
    for (const one of cases) {
      const { R, C } = one;
      const { x, gain, dy, dres, wide, saved, rstd, forward } = tensors(one);
      const alone = rmsnormInputGrad(saved, wide.gain, { C });
      for (const { backward } of kernelsOf(one)) {
        const given = { dy, x, gain, rstd };
        const plain = await gradients(backward, one, given);
        const added = await gradients(backward, one, { ...given, dres });
        const what = `${R} x ${C}, ${backward.name}`;
        close(plain.dx, alone, `dx of ${what}`);
        close(added.dx, alone.map((value, i) => value + dres[i]!), `dx with the residual of ${what}`);
        close(plain.dgain, rmsnormWeightGrad(saved, { C }), `dgain of ${what}`);
        close(plain.y, forward.out, `the norm's output of ${what}`);
      }
    }
  },
);

Deno.test("software adapters get vectors where rows divide by four, GPUs get workgroups", () => {
  const names = (C: number, software: boolean) =>
    Object.values(rmsnormKernels(C, software)).map((k) => k.name);
  assert.deepEqual(names(768, true), ["rmsnorm_forward_vec4", "rmsnorm_backward_vec4"]);
  assert.deepEqual(names(18, true), ["rmsnorm_forward", "rmsnorm_backward"]);
  assert.deepEqual(names(18, false), ["rmsnorm_forward_group", "rmsnorm_backward_group"]);
});

Deno.test(onAdapter(gpu, "rmsnorm gradients are the differences of rmsnorm_forward"), async () => {
  const R = 3, C = 8, eps = 1e-5;
  const { x, gain, dy, rstd } = tensors({ R, C, eps });
  const { forward, backward } = rmsnormKernels(C, true);
  async function loss(x: Float32Array, gain: Float32Array): Promise<number> {
    const run = { params: { R, C, eps }, inputs: { x, gain }, outputs: { y: R * C, rstd: R } };
    return weighted((await runKernel(gpu, forward, run)).y!, dy);
  }
  const { dx, dgain } = await gradients(backward, { R, C }, { dy, x, gain, rstd });
  await checkDirections((moved) => loss(moved, gain), x, dx);
  await checkDirections((moved) => loss(x, moved), gain, dgain);
});
