// The three attention kernels against the double-precision reference, and the gradients against differences of the
// forward. Shapes run with the head width as a parameter and as an override.
import assert from "node:assert/strict";
import {
  attentionForwardSpec,
  attentionKeyValueGradSpec,
  attentionOverrides,
  attentionQueryGradSpec,
  HEAD_DIM_MAX,
} from "../../peer/gpu/kernels/attention.ts";
import { rotaryTable } from "../../peer/gpu/kernels/rotary.ts";
import { attentionBackward, attentionForward } from "../../shaders/reference/attention.ts";
import { rotaryBackward, rotaryForward } from "../../shaders/reference/rotary.ts";
import { checkDirections, weighted } from "./difference.ts";
import { type KernelData, onAdapter, relL2, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** exp and log of a few units in the last place on scores of a few units, sums of up to T terms. */
const TOLERANCE = 5e-6;

interface Shape {
  B: number;
  T: number;
  H: number;
  Hk: number;
  D: number;
}

/** Ones, primes, around the four keys of a step, grouped and plain heads, the widest head, a larger one. */
const shapes: Shape[] = [
  [1, 1, 1, 1, 2],
  [2, 1, 2, 1, 4],
  [1, 4, 1, 1, 4],
  [2, 3, 2, 2, 2],
  [2, 5, 4, 2, 4],
  [1, 7, 3, 1, 6],
  [3, 13, 6, 3, 10],
  [1, 33, 2, 2, 16],
  [1, 9, 2, 1, HEAD_DIM_MAX],
  [2, 64, 4, 2, 32],
].map(([B = 0, T = 0, H = 0, Hk = 0, D = 0]) => ({ B, T, H, Hk, D }));

/** Software adapters compile wide heads as constants for many seconds; a narrow one tests the same code. */
const CONSTANT_WIDTH_MAX = gpu.software ? 4 : HEAD_DIM_MAX;

function headDims({ D }: Shape): number[] {
  return D <= CONSTANT_WIDTH_MAX ? [0, D] : [0];
}

function kernelParams({ B, ...rest }: Shape) {
  return { R: B * rest.T, ...rest };
}

const THETA = 10_000;

/** Inputs, and what the reference makes of them; scores have a spread of a few units. */
function tensors(shape: Shape, scale = 2) {
  const { B, T, H, Hk, D } = shape;
  const R = B * T;
  const qkv = testValues(R * (H + 2 * Hk) * D, 1).map((value) => value * scale);
  const dout = testValues(R * H * D, 2);
  const wide = Float64Array.from(qkv);
  const { out, lse } = attentionForward(wide, shape);
  const rotated = attentionBackward({ qkv: wide, out, lse, dOut: Float64Array.from(dout) }, shape);
  const dqkv = rotaryBackward(rotated, { ...shape, theta: THETA });
  const angles = rotaryTable(T, D, THETA);
  const delta = Float64Array.from({ length: R * H }, (_, i) => {
    return weighted(dout.subarray(i * D, (i + 1) * D), out.subarray(i * D, (i + 1) * D));
  });
  return { R, qkv, dout, out, lse, angles, delta, dqkv };
}

type Inputs = Record<string, KernelData>;

function forward(shape: Shape, qkv: Float32Array, headDim = 0): Promise<Record<string, Float32Array>> {
  const R = shape.B * shape.T;
  return runTwice(gpu, attentionForwardSpec, {
    params: kernelParams(shape),
    inputs: { qkv },
    outputs: { out: R * shape.H * shape.D, lse: R * shape.H },
    overrides: { headDim },
  });
}

interface Given {
  inputs: Inputs;
  headDim?: number;
}

function queryGradient(shape: Shape, { inputs, headDim = 0 }: Given) {
  return runTwice(gpu, attentionQueryGradSpec, {
    params: kernelParams(shape),
    inputs,
    outputs: { delta: shape.B * shape.T * shape.H, dqkv: inputs.qkv!.length },
    overrides: { headDim },
  });
}

async function keyValueGradient(shape: Shape, { inputs, headDim = 0 }: Given): Promise<Float32Array> {
  const outputs = { dqkv: inputs.qkv!.length };
  const run = { params: kernelParams(shape), inputs, outputs, overrides: { headDim } };
  return (await runTwice(gpu, attentionKeyValueGradSpec, run)).dqkv!;
}

function close(actual: ArrayLike<number>, expected: ArrayLike<number>, what: string): void {
  const error = relL2(actual, expected);
  assert.ok(error <= TOLERANCE, `${what}: relative error ${error}`);
}

Deno.test(onAdapter(gpu, "attention_forward equals the reference"), async () => {
  for (const shape of shapes) {
    const { qkv, out, lse } = tensors(shape);
    for (const headDim of headDims(shape)) {
      const actual = await forward(shape, qkv, headDim);
      close(actual.out!, out, `out of ${JSON.stringify(shape)} headDim ${headDim}`);
      close(actual.lse!, lse, `lse of ${JSON.stringify(shape)} headDim ${headDim}`);
    }
  }
});

Deno.test(onAdapter(gpu, "attention_forward never looks ahead or into another sequence"), async () => {
  const shape = { B: 2, T: 6, H: 2, Hk: 1, D: 4 };
  const { qkv } = tensors(shape);
  const width = shape.H * shape.D;
  const changed = qkv.slice();
  // Row 3 of the first sequence on: rows 0..2 of it, and all of the second sequence, must keep their bits.
  const stride = (shape.H + 2 * shape.Hk) * shape.D;
  changed.fill(3, 3 * stride, 6 * stride);
  const before = (await forward(shape, qkv)).out!;
  const after = (await forward(shape, changed)).out!;
  assert.deepEqual(after.subarray(0, 3 * width), before.subarray(0, 3 * width));
  assert.deepEqual(after.subarray(6 * width), before.subarray(6 * width));
  assert.notDeepEqual(after.subarray(3 * width, 6 * width), before.subarray(3 * width, 6 * width));
});

Deno.test(
  onAdapter(gpu, "attention_forward stays finite for scores far outside the range of exp"),
  async () => {
    const shape = { B: 1, T: 9, H: 2, Hk: 1, D: 8 };
    const { qkv, out, lse } = tensors(shape, 100);
    const actual = await forward(shape, qkv);
    // Scores near 1e4 carry an absolute rounding error near 1e-3, which is the relative error of their exponentials.
    assert.ok(relL2(actual.out!, out) <= 1e-2, `relative error ${relL2(actual.out!, out)}`);
    close(actual.lse!, lse, "lse");
  },
);

Deno.test("attention_overrides make the head width a constant on hardware only", () => {
  assert.deepEqual(attentionOverrides(64, false), { headDim: 64 });
  assert.deepEqual(attentionOverrides(64, true), { headDim: 0 });
});

/** Splits packed rows into the query columns and the key and value columns. */
function columns(dqkv: ArrayLike<number>, { H, Hk, D }: Shape): { query: number[]; keyValue: number[] } {
  const stride = (H + 2 * Hk) * D;
  const all = Array.from(dqkv);
  return {
    query: all.filter((_, i) => i % stride < H * D),
    keyValue: all.filter((_, i) => i % stride >= H * D),
  };
}

/** Compares with a floor: with one visible key the softmax is constant and the query's gradient is zero. */
function closeOrTiny(actual: readonly number[], expected: readonly number[], what: string): void {
  const size = Math.sqrt(weighted(expected, expected) / expected.length);
  if (size > 1e-6) return close(actual, expected, what);
  const largest = Math.max(...actual.map(Math.abs));
  assert.ok(largest <= 1e-6, `${what}: ${largest} where zero is expected`);
}

Deno.test(
  onAdapter(gpu, "attention_query_grad and attention_keyvalue_grad equal the reference"),
  async () => {
    for (const shape of shapes) {
      const { qkv, dout, out, lse, angles, delta, dqkv } = tensors(shape);
      const given = { qkv, dout, lse: Float32Array.from(lse), angles };
      const expected = columns(dqkv, shape);
      for (const headDim of headDims(shape)) {
        const what = `${JSON.stringify(shape)} headDim ${headDim}`;
        const first = await queryGradient(shape, {
          inputs: { ...given, out: Float32Array.from(out) },
          headDim,
        });
        const query = columns(first.dqkv!, shape);
        close(first.delta!, delta, `delta of ${what}`);
        const keyValue = columns(
          await keyValueGradient(shape, { inputs: { ...given, delta: Float32Array.from(delta) }, headDim }),
          shape,
        );
        closeOrTiny(query.query, expected.query, `dq of ${what}`);
        closeOrTiny(keyValue.keyValue, expected.keyValue, `dk, dv of ${what}`);
        assert.ok(query.keyValue.every(Number.isNaN), `${what}: the query kernel wrote keys or values`);
        assert.ok(keyValue.query.every(Number.isNaN), `${what}: the key/value kernel wrote queries`);
      }
    }
  },
);

Deno.test(
  onAdapter(gpu, "attention gradients are the differences of rotary and attention_forward"),
  async () => {
    const shape = { B: 2, T: 6, H: 4, Hk: 2, D: 4 };
    const { qkv: plain, dout, angles } = tensors(shape, 1);
    const rotate = (values: Float32Array) =>
      Float32Array.from(rotaryForward(Float64Array.from(values), { ...shape, theta: THETA }));
    const qkv = rotate(plain);
    const { out, lse } = await forward(shape, qkv);
    const given = { qkv, dout, lse: lse!, angles };
    const first = await queryGradient(shape, { inputs: { ...given, out: out! } });
    // The second kernel completes what the first one wrote, as in the engine.
    const second = { ...given, delta: first.delta!, dqkv: first.dqkv! };
    const whole = await keyValueGradient(shape, { inputs: second });
    await checkDirections(
      async (moved) => weighted((await forward(shape, rotate(moved))).out!, dout),
      plain,
      whole,
    );
  },
);
