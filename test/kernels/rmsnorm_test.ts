// The rmsnorm kernels against the double-precision reference, and the gradient against differences of the forward.
import assert from "node:assert/strict";
import {
  rmsnormForwardSpec,
  rmsnormInputGradSpec,
  rmsnormWeightGradSpec,
} from "../../peer/gpu/kernels/rmsnorm.ts";
import { rmsnormForward, rmsnormInputGrad, rmsnormWeightGrad } from "../../shaders/reference/rmsnorm.ts";
import { checkDirections, weighted } from "./difference.ts";
import { onAdapter, relL2, runKernel, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** [R, C]: ones, primes, around the vec4 and the 32 rows of a block, and one larger. */
const shapes = [[1, 1], [1, 7], [3, 5], [7, 4], [31, 33], [32, 3], [33, 32], [260, 96]];
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

function tensors({ R, C, eps }: Case) {
  const x = testValues(R * C, 1), gain = testValues(C, 2), dy = testValues(R * C, 3);
  const dres = testValues(R * C, 4);
  const wide = { x: Float64Array.from(x), gain: Float64Array.from(gain), dy: Float64Array.from(dy) };
  const forward = rmsnormForward(wide.x, wide.gain, { C, eps });
  const saved = { x: wide.x, rstd: forward.rstd, dOut: wide.dy };
  return { x, gain, dy, dres, wide, forward, saved, rstd: Float32Array.from(forward.rstd) };
}

function close(actual: Float32Array, expected: ArrayLike<number>, what: string): void {
  const error = relL2(actual, expected);
  assert.ok(error <= TOLERANCE, `${what}: relative error ${error}`);
}

Deno.test(onAdapter(gpu, "rmsnorm_forward equals the reference"), async () => {
  for (const { R, C, eps } of cases) {
    const { x, gain, forward } = tensors({ R, C, eps });
    const run = { params: { R, C, eps }, inputs: { x, gain }, outputs: { y: R * C, rstd: R } };
    const { y, rstd } = await runTwice(gpu, rmsnormForwardSpec, run);
    close(y!, forward.out, `y of ${R} x ${C}`);
    close(rstd!, forward.rstd, `rstd of ${R} x ${C}`);
  }
});

Deno.test(onAdapter(gpu, "rmsnorm_forward of a row of zeros is zero"), async () => {
  const run = {
    params: { R: 1, C: 6, eps: 1e-5 },
    inputs: { x: new Float32Array(6), gain: new Float32Array(6).fill(2) },
    outputs: { y: 6, rstd: 1 },
  };
  const { y } = await runTwice(gpu, rmsnormForwardSpec, run);
  assert.deepEqual([...y!], [0, 0, 0, 0, 0, 0]);
});

Deno.test(
  onAdapter(gpu, "rmsnorm_input_grad equals the reference, with and without the residual"),
  async () => {
    for (const { R, C, eps } of cases) {
      const { x, gain, dy, dres, wide, saved, rstd } = tensors({ R, C, eps });
      const alone = rmsnormInputGrad(saved, wide.gain, { C });
      for (const residual of [0, 1]) {
        // Without the residual its buffer holds NaN: reading it would show.
        const bound = residual ? dres : new Float32Array(R * C).fill(NaN);
        const inputs = { dy, x, gain, rstd, dres: bound };
        const run = { params: { R, C, residual }, inputs, outputs: { dx: R * C } };
        const { dx } = await runTwice(gpu, rmsnormInputGradSpec, run);
        const expected = alone.map((value, i) => value + residual * dres[i]!);
        close(dx!, expected, `dx of ${R} x ${C}, residual ${residual}`);
      }
    }
  },
);

Deno.test(onAdapter(gpu, "rmsnorm_weight_grad equals the reference"), async () => {
  for (const { R, C, eps } of cases) {
    const { x, dy, saved, rstd } = tensors({ R, C, eps });
    const run = { params: { R, C }, inputs: { dy, x, rstd }, outputs: { dgain: C } };
    const { dgain } = await runTwice(gpu, rmsnormWeightGradSpec, run);
    close(dgain!, rmsnormWeightGrad(saved, { C }), `dgain of ${R} x ${C}`);
  }
});

Deno.test(onAdapter(gpu, "rmsnorm gradients are the differences of rmsnorm_forward"), async () => {
  const R = 3, C = 7, eps = 1e-5;
  const { x, gain, dy, rstd } = tensors({ R, C, eps });
  async function loss(x: Float32Array, gain: Float32Array): Promise<number> {
    const run = { params: { R, C, eps }, inputs: { x, gain }, outputs: { y: R * C, rstd: R } };
    return weighted((await runKernel(gpu, rmsnormForwardSpec, run)).y!, dy);
  }
  const { dx } = await runKernel(gpu, rmsnormInputGradSpec, {
    params: { R, C, residual: 0 },
    inputs: { dy, x, gain, rstd, dres: x },
    outputs: { dx: R * C },
  });
  const { dgain } = await runKernel(gpu, rmsnormWeightGradSpec, {
    params: { R, C },
    inputs: { dy, x, rstd },
    outputs: { dgain: C },
  });
  await checkDirections((moved) => loss(moved, gain), x, dx!);
  await checkDirections((moved) => loss(x, moved), gain, dgain!);
});
