// The head's kernels against the double-precision reference: loss and logit gradients, tile by tile. That they and matmuls
// together give dx and dW is for engine_test.ts.
import assert from "node:assert/strict";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import {
  headLogitGradSpec,
  headLossGroupSpec,
  headLossSpec,
  sumRowsSpec,
} from "../../peer/gpu/kernels/head.ts";
import { WORKGROUPS_PER_DIMENSION_MAX } from "../../peer/gpu/library.ts";
import { randomTokens } from "../../shaders/reference/check.ts";
import { headForward, headInputGrad, headLogitGrad, mean } from "../../shaders/reference/head.ts";
import { checkDirections } from "./difference.ts";
import { assertSameBits, onAdapter, relL2, runTwice, testDevice, testValues } from "./support.ts";

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

/** x · Wᵀ of entries [from, to) in f32, as the matmul before the kernels leaves it. */
function logitsOf({ R, C }: Shape, { wide }: ReturnType<typeof tensors>, [from, to]: [number, number]) {
  return Float32Array.from({ length: R * (to - from) }, (_, i) => {
    const [r, v] = [Math.floor(i / (to - from)), from + i % (to - from)];
    let sum = 0;
    for (let c = 0; c < C; c++) sum += wide.x[r * C + c]! * wide.weight[v * C + c]!;
    return sum;
  });
}

function tilesOf(V: number, width: number): [number, number][] {
  return Array.from({ length: Math.ceil(V / width) }, (_, i) => [i * width, Math.min(V, (i + 1) * width)]);
}

/** loss and lse by folding tile after tile. */
async function foldTiles(
  spec: KernelSpec,
  run: {
    R: number;
    targets: Uint32Array;
    tiles: [number, number][];
    logits(tile: [number, number]): Float32Array;
  },
) {
  const { R, targets, tiles } = run;
  let state = { loss: new Float32Array(R).fill(NaN), lse: new Float32Array(R).fill(NaN) };
  for (const [i, tile] of tiles.entries()) {
    const flags = { begins: i === 0 ? 1 : 0, ends: i === tiles.length - 1 ? 1 : 0 };
    const { loss, lse } = await runTwice(gpu, spec, {
      params: { R, tile: tile[1] - tile[0], vocabOffset: tile[0], ...flags },
      inputs: { logits: run.logits(tile), targets, ...state },
      outputs: { loss: R, lse: R },
    });
    state = { loss: Float32Array.from(loss!), lse: Float32Array.from(lse!) };
  }
  return state;
}

for (const spec of [headLossSpec, headLossGroupSpec]) {
  Deno.test(onAdapter(gpu, `${spec.name} equals the reference in any tiles`), async () => {
    for (const shape of shapes) {
      const made = tensors(shape);
      for (const width of [shape.V, Math.ceil(shape.V / 3)]) {
        const { loss, lse } = await foldTiles(spec, {
          ...{ R: shape.R, targets: made.targets, tiles: tilesOf(shape.V, width) },
          logits: (tile) => logitsOf(shape, made, tile),
        });
        close(loss, made.forward.losses, `loss of ${JSON.stringify(shape)} in tiles of ${width}`);
        close(lse, made.forward.lse, `lse of ${JSON.stringify(shape)} in tiles of ${width}`);
      }
    }
  });

  Deno.test(onAdapter(gpu, `${spec.name} stays finite for logits far outside the range of exp`), async () => {
    const rows = [[1000, 2000, -3000], [-1000, -2000, 3000]];
    for (const width of [1, 2, 3]) {
      const { loss, lse } = await foldTiles(spec, {
        ...{ R: 2, targets: Uint32Array.of(0, 2), tiles: tilesOf(3, width) },
        logits: ([from, to]) => Float32Array.from(rows.flatMap((row) => row.slice(from, to))),
      });
      assert.deepEqual([...loss], [1000, 0], `tiles of ${width}`);
      assert.deepEqual([...lse], [2000, 3000], `tiles of ${width}`);
    }
  });
}

Deno.test(
  onAdapter(gpu, "head_loss_group reaches every row when workgroups need a second dimension"),
  async () => {
    const R = WORKGROUPS_PER_DIMENSION_MAX + 3;
    const logits = testValues(R, 1);
    const run = { R, targets: new Uint32Array(R), tiles: [[0, 1] as [number, number]], logits: () => logits };
    const { loss, lse } = await foldTiles(headLossGroupSpec, run);
    assert.ok(loss.every((value) => value === 0));
    assertSameBits(lse, logits, "lse of a single logit");
  },
);

/** The gradient of a tile's logits. */
async function logitGrad(shape: Shape, made: ReturnType<typeof tensors>, tile: [number, number]) {
  const { logits } = await runTwice(gpu, headLogitGradSpec, {
    params: { R: shape.R, tile: tile[1] - tile[0], vocabOffset: tile[0] },
    inputs: { targets: made.targets, lse: made.lse, logits: logitsOf(shape, made, tile) },
    outputs: { logits: shape.R * (tile[1] - tile[0]) },
  });
  return logits!;
}

Deno.test(onAdapter(gpu, "head_logit_grad equals the reference for every tile"), async () => {
  for (const shape of shapes) {
    const { R, V } = shape;
    const made = tensors(shape);
    const expected = headLogitGrad(made.forward, made.targets, { V });
    for (const width of [V, Math.ceil(V / 3)]) {
      const actual = new Float32Array(R * V).fill(NaN);
      for (const tile of tilesOf(V, width)) {
        const part = await logitGrad(shape, made, tile);
        const count = tile[1] - tile[0];
        for (let r = 0; r < R; r++) actual.set(part.subarray(r * count, (r + 1) * count), r * V + tile[0]);
      }
      close(actual, expected, `${JSON.stringify(shape)} in tiles of ${width}`);
    }
  }
});

Deno.test(onAdapter(gpu, "head_logit_grad is the difference of head_loss"), async () => {
  const shape = { R: 3, C: 5, V: 11 };
  const { R, C, V } = shape;
  const made = tensors(shape);
  const dlogits = await logitGrad(shape, made, [0, V]);
  async function meanLoss(x: Float32Array): Promise<number> {
    const moved = { ...made, wide: { ...made.wide, x: Float64Array.from(x) } };
    const { loss } = await foldTiles(headLossSpec, {
      ...{ R, targets: made.targets, tiles: [[0, V]] },
      logits: (tile) => logitsOf(shape, moved, tile),
    });
    return mean(Float64Array.from(loss));
  }
  const gradient = headInputGrad(Float64Array.from(dlogits), made.wide.weight, { C, V });
  await checkDirections(meanLoss, made.x, gradient);
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
