// The head's kernels against the double-precision reference: loss, logit gradients tile by tile, and the plan that
// turns them into dx and dW with matmul kernels.
import assert from "node:assert/strict";
import { headLogitGradSpec, headLossSpec, sumRowsSpec } from "../../peer/gpu/kernels/head.ts";
import { MatmulEpilogue, matmulNnSpec, matmulTnSpec } from "../../peer/gpu/kernels/matmul.ts";
import { randomTokens } from "../../shaders/reference/check.ts";
import {
  headBackward,
  headForward,
  headInputGrad,
  headLogitGrad,
  mean,
} from "../../shaders/reference/head.ts";
import { checkDirections } from "./difference.ts";
import { onAdapter, relL2, runKernel, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** exp and log of a few units in the last place on logits of a few units, dot products of up to 64 terms. */
const TOLERANCE = 5e-6;

interface Shape {
  R: number;
  C: number;
  V: number;
}

/** Ones, primes, around the 4 rows and 8 entries of an invocation, and one larger. */
const shapes: Shape[] = [
  [1, 1, 1],
  [1, 3, 2],
  [3, 5, 7],
  [4, 8, 8],
  [5, 4, 9],
  [7, 16, 15],
  [13, 33, 65],
  [66, 64, 257],
].map(([R = 0, C = 0, V = 0]) => ({ R, C, V }));

function tensors({ R, C, V }: Shape) {
  const x = testValues(R * C, 1).map((value) => value * 2);
  const weight = testValues(V * C, 2);
  const targets = randomTokens(R, R, V);
  const wide = { x: Float64Array.from(x), weight: Float64Array.from(weight) };
  const forward = headForward(wide.x, wide.weight, { targets, C, V });
  return { x, weight, targets, wide, forward, lse: Float32Array.from(forward.lse) };
}

function close(actual: ArrayLike<number>, expected: ArrayLike<number>, what: string): void {
  const error = relL2(actual, expected);
  assert.ok(error <= TOLERANCE, `${what}: relative error ${error}`);
}

Deno.test(onAdapter(gpu, "head_loss equals the reference"), async () => {
  for (const shape of shapes) {
    const { x, weight, targets, forward } = tensors(shape);
    const run = {
      params: { ...shape },
      inputs: { x, weight, targets },
      outputs: { loss: shape.R, lse: shape.R },
    };
    const { loss, lse } = await runTwice(gpu, headLossSpec, run);
    close(loss!, forward.losses, `loss of ${JSON.stringify(shape)}`);
    close(lse!, forward.lse, `lse of ${JSON.stringify(shape)}`);
  }
});

Deno.test(onAdapter(gpu, "head_loss stays finite for logits far outside the range of exp"), async () => {
  const run = {
    params: { R: 2, C: 1, V: 3 },
    inputs: {
      x: Float32Array.of(1000, -1000),
      weight: Float32Array.of(1, 2, -3),
      targets: Uint32Array.of(0, 2),
    },
    outputs: { loss: 2, lse: 2 },
  };
  const { loss, lse } = await runTwice(gpu, headLossSpec, run);
  assert.deepEqual([...loss!], [1000, 0]);
  assert.deepEqual([...lse!], [2000, 3000]);
});

Deno.test(onAdapter(gpu, "head_logit_grad equals the reference for every tile"), async () => {
  for (const shape of shapes) {
    const { R, C, V } = shape;
    const { x, weight, targets, forward, lse } = tensors(shape);
    const expected = headLogitGrad(forward, targets, { V });
    for (const width of [V, 5, 8, 128]) {
      const actual = new Float32Array(R * V).fill(NaN);
      for (let vocabOffset = 0; vocabOffset < V; vocabOffset += width) {
        const tile = Math.min(width, V - vocabOffset);
        const run = {
          params: { R, C, vocabOffset, tile },
          inputs: { x, weight, targets, lse },
          outputs: { dlogits: R * tile },
        };
        const { dlogits } = await runTwice(gpu, headLogitGradSpec, run);
        for (let r = 0; r < R; r++) {
          actual.set(dlogits!.subarray(r * tile, (r + 1) * tile), r * V + vocabOffset);
        }
      }
      close(actual, expected, `${JSON.stringify(shape)} in tiles of ${width}`);
    }
  }
});

/** dx and dW by the plan in peer/gpu/kernels/head.ts. */
async function backward({ R, C, V }: Shape, { x, weight, targets, lse }: ReturnType<typeof tensors>) {
  const width = 24;
  let dx = new Float32Array(R * C).fill(NaN);
  const dW = new Float32Array(V * C).fill(NaN);
  const residual = new Float32Array(1);
  for (let vocabOffset = 0; vocabOffset < V; vocabOffset += width) {
    const tile = Math.min(width, V - vocabOffset);
    const { dlogits } = await runKernel(gpu, headLogitGradSpec, {
      params: { R, C, vocabOffset, tile },
      inputs: { x, weight, targets, lse },
      outputs: { dlogits: R * tile },
    });
    const rows = weight.slice(vocabOffset * C, (vocabOffset + tile) * C);
    const epilogue = vocabOffset === 0 ? MatmulEpilogue.store : MatmulEpilogue.accumulate;
    const input = await runKernel(gpu, matmulNnSpec, {
      params: { M: R, N: C, K: tile, epilogue },
      inputs: { a: dlogits!, b: rows, residual, out: dx },
      outputs: { out: R * C },
    });
    dx = Float32Array.from(input.out!);
    const gradient = await runKernel(gpu, matmulTnSpec, {
      params: { M: tile, N: C, K: R, epilogue: MatmulEpilogue.store },
      inputs: { a: dlogits!, b: x, residual },
      outputs: { out: tile * C },
    });
    dW.set(gradient.out!, vocabOffset * C);
  }
  return { dx, dW };
}

Deno.test(onAdapter(gpu, "tiles of logit gradients and matmuls give the head's gradients"), async () => {
  const shape = { R: 13, C: 33, V: 65 };
  const made = tensors(shape);
  const { dX, dW } = headBackward(made.wide.x, made.wide.weight, { targets: made.targets, ...shape });
  const actual = await backward(shape, made);
  close(actual.dx, dX, "dx");
  close(actual.dW, dW, "dW");
});

Deno.test(onAdapter(gpu, "head_logit_grad is the difference of head_loss"), async () => {
  const shape = { R: 3, C: 5, V: 11 };
  const { R, C, V } = shape;
  const { x, weight, targets, wide, lse } = tensors(shape);
  const { dlogits } = await runKernel(gpu, headLogitGradSpec, {
    params: { R, C, vocabOffset: 0, tile: V },
    inputs: { x, weight, targets, lse },
    outputs: { dlogits: R * V },
  });
  async function meanLoss(x: Float32Array): Promise<number> {
    const run = { params: { ...shape }, inputs: { x, weight, targets }, outputs: { loss: R, lse: R } };
    return mean(Float64Array.from((await runKernel(gpu, headLossSpec, run)).loss!));
  }
  await checkDirections(meanLoss, x, headInputGrad(Float64Array.from(dlogits!), wide.weight, { C, V }));
});

Deno.test(onAdapter(gpu, "sum_rows gives the mean"), async () => {
  for (const R of [1, 2, 63, 64, 65, 1009, 8192]) {
    const values = testValues(R, R).map((value) => value + 3);
    const { mean: actual } = await runTwice(gpu, sumRowsSpec, {
      params: { R },
      inputs: { values },
      outputs: { mean: 1 },
    });
    const expected = mean(Float64Array.from(values));
    // f32 sums in blocks of 64: at most 64 + R / 64 roundings of 6e-8, which partly cancel.
    assert.ok(Math.abs(actual![0]! - expected) <= 1e-6 * expected, `R ${R}: ${actual![0]} for ${expected}`);
  }
});
