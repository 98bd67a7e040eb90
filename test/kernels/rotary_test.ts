// The rotary kernels against the double-precision reference, forward and back.
import assert from "node:assert/strict";
import { rotaryKernel, rotarySpec, rotaryTable, rotaryVec4Spec } from "../../peer/gpu/kernels/rotary.ts";
import { rotaryBackward, rotaryForward } from "../../shaders/reference/rotary.ts";
import { onAdapter, relL2, runTwice, testDevice, testValues } from "./support.ts";

const gpu = await testDevice();
/** [B, T, H, Hk, D]. */
const shapes = [
  [1, 1, 1, 1, 2],
  [2, 3, 2, 1, 4],
  [1, 7, 3, 3, 6],
  [3, 5, 4, 2, 10],
  [2, 33, 4, 2, 16],
  [1, 5, 1, 1, 8],
  [2, 3, 2, 1, 24],
  [1, 64, 2, 1, 128],
];
const THETA = 10_000;
/** Two products and a sum in f32, and the rounding of the table. */
const TOLERANCE = 3e-7;

interface RotaryCase {
  params: { R: number; T: number; H: number; Hk: number; D: number };
  qkv: Float32Array;
}

function makeCase([B = 0, T = 0, H = 0, Hk = 0, D = 0]: number[]): RotaryCase {
  return { params: { R: B * T, T, H, Hk, D }, qkv: testValues(B * T * (H + 2 * Hk) * D, 5) };
}

async function rotate(
  { params, qkv }: RotaryCase,
  direction: number,
  spec = rotaryKernel(params.D),
): Promise<Float32Array> {
  const angles = rotaryTable(params.T, params.D, THETA);
  const inputs = { angles, qkv };
  const outputs = { qkv: qkv.length };
  return (await runTwice(gpu, spec, { params: { ...params, direction }, inputs, outputs })).qkv!;
}

Deno.test(onAdapter(gpu, "rotary equals the reference in both directions"), async () => {
  for (const shape of shapes) {
    const { params, qkv } = makeCase(shape);
    const wide = Float64Array.from(qkv);
    const forward = rotaryForward(wide, { ...params, theta: THETA });
    const back = rotaryBackward(wide, { ...params, theta: THETA });
    const errors = [
      relL2(await rotate({ params, qkv }, 1), forward),
      relL2(await rotate({ params, qkv }, -1), back),
    ];
    assert.ok(Math.max(...errors) <= TOLERANCE, `shape ${shape}: relative errors ${errors}`);
    const plain = relL2(await rotate({ params, qkv }, 1, rotarySpec), forward);
    assert.ok(plain <= TOLERANCE, `shape ${shape}, any width: relative error ${plain}`);
  }
});

Deno.test("heads that divide by eight get vectors of four", () => {
  assert.equal(rotaryKernel(64), rotaryVec4Spec);
  assert.equal(rotaryKernel(12), rotarySpec);
});

Deno.test(onAdapter(gpu, "rotary leaves the values alone and -1 undoes +1"), async () => {
  const { params, qkv } = makeCase([2, 9, 4, 2, 8]);
  const turned = await rotate({ params, qkv }, 1);
  const restored = await rotate({ params, qkv: turned }, -1);
  const { H, Hk, D } = params;
  const stride = (H + 2 * Hk) * D;
  for (let i = 0; i < qkv.length; i++) {
    if (i % stride >= (H + Hk) * D) assert.equal(turned[i], qkv[i], `value ${i} moved`);
  }
  assert.ok(relL2(restored, qkv) <= TOLERANCE);
  assert.ok(relL2(turned, qkv) > 0.1, "nothing was rotated");
});
