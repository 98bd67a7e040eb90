// Into halves and out of them: rounding, what is beyond their range, the loss scale's way in and out; and the products, norms,
// activations and rotation in halves, each against its double-precision reference on the halves that it reads.
import assert from "node:assert/strict";
import { fromHalf, toHalf } from "../../peer/codec/f16.ts";
import {
  narrowSpec,
  ScaleFactor,
  scaleFactors,
  unscaleGradientSpec,
  widenSpec,
} from "../../peer/gpu/kernels/halves.ts";
import { headLogitGradSpec } from "../../peer/gpu/kernels/head.ts";
import { rmsnormKernels } from "../../peer/gpu/kernels/rmsnorm.ts";
import { rotaryTable, rotaryVec4Spec } from "../../peer/gpu/kernels/rotary.ts";
import { swigluKernels } from "../../peer/gpu/kernels/swiglu.ts";
import { RMSNORM_BLOCK_ROWS } from "../../peer/model/block_tensors.ts";
import { headForward, headLogitGrad } from "../../shaders/reference/head.ts";
import { rmsnormForward, rmsnormInputGrad } from "../../shaders/reference/rmsnorm.ts";
import { rotaryBackward, rotaryForward } from "../../shaders/reference/rotary.ts";
import { swigluBackward, swigluForward } from "../../shaders/reference/swiglu.ts";
import { close, halvesOf, packed, rounded, unpacked } from "./halves_support.ts";
import { assertSameBits, onAdapter, runTwice, testDevice, testValues, words } from "./support.ts";

const gpu = await testDevice();
/** Sums stay in f32, whatever their terms are stored in. */
const SUM_TOLERANCE = 2e-6;
/** Least normal half; adapters may flush what is below, and round it as they like. */
const NORMAL_MIN = 2 ** -14;

async function narrowed(values: Float32Array, factor = 0, exponent = 0): Promise<Float32Array> {
  const params = { count: values.length / 4, factor };
  const inputs = { values, scales: scaleFactors(exponent) };
  return (await runTwice(gpu, narrowSpec, { params, inputs, outputs: { halves: values.length / 2 } }))
    .halves!;
}

async function widened(halves: Uint32Array, { factor = 0, guard = 0, exponent = 0 }) {
  const params = { count: halves.length / 2, factor, guard };
  const inputs = { halves, scales: scaleFactors(exponent), overflow: Uint32Array.of(0) };
  const outputs = { values: halves.length * 2, overflow: 1 };
  const { values, overflow } = await runTwice(gpu, widenSpec, { params, inputs, outputs });
  return { values: values!, overflow: words(overflow!)[0]! };
}

Deno.test(onAdapter(gpu, "narrow rounds to the nearest half, ties to even, up to the largest"), async () => {
  const ties = [
    1 + 2 ** -11,
    1 + 3 * 2 ** -11,
    2049,
    2051,
    -2049,
    65_519,
    -65_519,
    65_504,
    NORMAL_MIN,
    0,
    -1,
  ];
  const values = Float32Array.of(...ties, ...testValues(53, 7).map((value) => value * 1000));
  assert.equal(values.length % 4, 0);
  assertSameBits(unpacked(await narrowed(values)), rounded(values), "rounded values");
});

Deno.test(
  onAdapter(gpu, "values below the least normal half keep within one step of a subnormal"),
  async () => {
    const values = testValues(64, 9).map((value) => value * NORMAL_MIN);
    for (const [i, value] of unpacked(await narrowed(values)).entries()) {
      // An adapter may flush subnormals, which is off by less than the least normal one.
      const off = Math.abs(value - values[i]!);
      assert.ok(off <= 2 ** -24 || (value === 0 && off < NORMAL_MIN), `${values[i]} became ${value}`);
    }
  },
);

Deno.test(
  onAdapter(gpu, "narrow makes what is beyond a half's range no finite number, and only that"),
  async () => {
    const beyond = [65_520, -65_520, 1e9, -3e38, Infinity, -Infinity, NaN, 65_536];
    const values = Float32Array.of(...beyond.flatMap((value) => [value, 1, -2, 65_519]));
    const halves = unpacked(await narrowed(values));
    for (const [i, half] of halves.entries()) {
      assert.equal(Number.isFinite(half), i % 4 !== 0, `${values[i]} became ${half}`);
      if (i % 4 !== 0) assert.equal(half, fromHalf(toHalf(values[i]!)));
    }
  },
);

Deno.test(onAdapter(gpu, "the loss scale goes in and comes out exactly"), async () => {
  // Nothing so small that a half of it is subnormal: adapters differ there.
  const gradient = testValues(256, 3).map((value) => (value + 3) * 2 ** -20);
  for (const exponent of [12, 24, 33]) {
    const halves = await narrowed(gradient, ScaleFactor.up, exponent);
    const scaled = rounded(gradient.map((value) => value * 2 ** exponent));
    assertSameBits(unpacked(halves), scaled, `scaled by 2^${exponent}`);
    const back = await widened(words(halves), { factor: ScaleFactor.down, guard: 1, exponent });
    const wanted = unpacked(halves).map((value) => value * 2 ** -exponent);
    assertSameBits(back.values, wanted, `without 2^${exponent}`);
    assert.equal(back.overflow, 0);
  }
});

Deno.test(
  onAdapter(gpu, "what leaves a stage is sane, and tells of an overflow; inside it goes on"),
  async () => {
    const values = Float32Array.of(1, Infinity, -3, NaN, -Infinity, 0.5, 65_504, 2);
    const halves = packed(values);
    halves[1] = (toHalf(-3) | (0x7e00 << 16)) >>> 0;
    const leaving = await widened(halves, { guard: 1 });
    assert.deepEqual([...leaving.values], [1, 0, -3, 0, 0, 0.5, 65_504, 2]);
    assert.equal(leaving.overflow, 1);
    const staying = await widened(halves, {});
    assert.deepEqual([...staying.values].map(Number.isFinite), [...values].map(Number.isFinite));
    assert.equal(staying.overflow, 0);
  },
);

Deno.test(
  onAdapter(gpu, "unscale_gradient divides exactly, and passes an overflow on in the first value"),
  async () => {
    const gradient = testValues(4 * 37, 5);
    gradient.set([Infinity, NaN, -Infinity], 17);
    for (const [overflow, first] of [[0, 1], [1, 0], [1, 1]]) {
      const { gradient: unscaled } = await runTwice(gpu, unscaleGradientSpec, {
        params: { count: 37, factor: ScaleFactor.down, first: first! },
        inputs: { gradient, scales: scaleFactors(12), overflow: Uint32Array.of(overflow!) },
        outputs: { gradient: gradient.length },
      });
      const wanted = gradient.map((value) => value * 2 ** -12);
      if (overflow === 1 && first === 1) wanted[0] = Infinity;
      assertSameBits(unscaled!, wanted, `overflow ${overflow}, first ${first}`);
    }
  },
);

for (const software of [true, false]) {
  Deno.test(
    onAdapter(gpu, `norms in halves equal the reference, ${software ? "vectors" : "groups"}`),
    async () => {
      for (const [R = 0, C = 0] of [[1, 4], [7, 8], [16, 12], [17, 64], [33, 260]]) {
        await testNorm({ R, C, software });
      }
    },
  );
}

async function testNorm({ R, C, software }: { R: number; C: number; software: boolean }): Promise<void> {
  const what = `${R} x ${C}`;
  const { forward, backward } = rmsnormKernels(C, software);
  const x = rounded(testValues(R * C, 1)), gain = testValues(C, 2), dy = testValues(R * C, 3);
  const dres = rounded(testValues(R * C, 4));
  const wide = { x: Float64Array.from(x), gain: Float64Array.from(gain) };
  const expected = rmsnormForward(wide.x, wide.gain, { C, eps: 0.1 });
  const rstd = Float32Array.from(expected.rstd);
  const made = await runTwice(gpu, halvesOf(forward), {
    params: { R, C, eps: 0.1 },
    inputs: { x: packed(x), gain },
    outputs: { y: R * C / 2, rstd: R },
  });
  close(unpacked(made.y!), expected.out, { what: `y of ${what}` });
  close(made.rstd!, expected.rstd, { what: `rstd of ${what}`, tolerance: SUM_TOLERANCE });
  const saved = { x: wide.x, rstd: expected.rstd, dOut: Float64Array.from(dy) };
  const alone = rmsnormInputGrad(saved, wide.gain, { C });
  for (const residual of [0, 1]) {
    const back = await runTwice(gpu, halvesOf(backward), {
      params: { R, C, residual },
      inputs: { dy, gain, rstd, dres: packed(dres), x: packed(x) },
      outputs: { x: R * C / 2, dx: R * C / 2, partial: Math.ceil(R / RMSNORM_BLOCK_ROWS) * C },
    });
    const dx = residual === 1 ? alone.map((value, i) => value + dres[i]!) : alone;
    close(unpacked(back.dx!), dx, { what: `dx of ${what}` });
    close(unpacked(back.x!), expected.out, { what: `the norm's output of ${what}` });
    close(gainOf(back.partial!, C), gainOf(products({ R, C, x, rstd, dy }), C), {
      what: `partial of ${what}`,
      tolerance: 1e-5,
    });
  }
}

/** dy * h of each value: what the gain's gradient sums over the rows. */
function products(
  of: { R: number; C: number; x: Float32Array; rstd: Float32Array; dy: Float32Array },
): Float64Array {
  return Float64Array.from(
    { length: of.R * of.C },
    (_, i) => of.dy[i]! * of.x[i]! * of.rstd[Math.floor(i / of.C)]!,
  );
}

function gainOf(partial: ArrayLike<number>, C: number): Float64Array {
  const sum = new Float64Array(C);
  for (let i = 0; i < partial.length; i++) sum[i % C]! += partial[i]!;
  return sum;
}

Deno.test(onAdapter(gpu, "swiglu in halves equals the reference, forward and back"), async () => {
  for (const [R = 0, I = 0] of [[1, 4], [5, 12], [7, 64], [130, 96]]) {
    const gateUp = rounded(testValues(R * 2 * I, 1).map((value) => value * 4));
    const dact = rounded(testValues(R * I, 2));
    const wide = Float64Array.from(gateUp);
    const { forward, backward } = swigluKernels(I);
    const params = { R, I };
    const made = await runTwice(gpu, halvesOf(forward), {
      ...{ params, inputs: { gate_up: packed(gateUp) }, outputs: { out: R * I / 2 } },
    });
    const what = `${R} x ${I}`;
    close(unpacked(made.out!), swigluForward(wide, { I }), { what: `forward ${what}` });
    const back = await runTwice(gpu, halvesOf(backward), {
      params,
      inputs: { gate_up: packed(gateUp), act: packed(dact) },
      outputs: { gate_up: R * I, act: R * I / 2 },
    });
    const gradient = swigluBackward(wide, Float64Array.from(dact), { I });
    close(unpacked(back.gate_up!), gradient, { what: `backward ${what}` });
    close(unpacked(back.act!), swigluForward(wide, { I }), { what: `activation ${what}` });
  }
});

Deno.test(onAdapter(gpu, "rotary in halves equals the reference in both directions"), async () => {
  for (const [B = 0, T = 0, H = 0, Hk = 0, D = 0] of [[1, 1, 1, 1, 8], [2, 3, 2, 1, 24], [1, 33, 4, 2, 64]]) {
    const shape = { R: B * T, T, H, Hk, D };
    const qkv = rounded(testValues(B * T * (H + 2 * Hk) * D, 5));
    const wide = Float64Array.from(qkv);
    for (const direction of [1, -1]) {
      const inputs = { angles: rotaryTable(T, D, 10_000), qkv: packed(qkv) };
      const outputs = { qkv: qkv.length / 2 };
      const params = { ...shape, direction };
      const turned = await runTwice(gpu, halvesOf(rotaryVec4Spec), { params, inputs, outputs });
      const reference = direction === 1 ? rotaryForward : rotaryBackward;
      const what = `${JSON.stringify(shape)}, direction ${direction}`;
      close(unpacked(turned.qkv!), reference(wide, { ...shape, theta: 10_000 }), { what });
    }
  }
});

Deno.test(onAdapter(gpu, "the loss's gradient is multiplied by the loss scale"), async () => {
  const [R, C, V] = [5, 3, 11];
  const targets = Uint32Array.of(0, 10, 4, 7, 4);
  const [x, w] = [testValues(R * C, 1), testValues(V * C, 2)].map((values) => Float64Array.from(values));
  const head = headForward(x!, w!, { targets, C, V });
  const gradient = headLogitGrad(head, targets, { V });
  const { logits } = await runTwice(gpu, halvesOf(headLogitGradSpec), {
    params: { R, tile: V, vocabOffset: 0 },
    inputs: {
      ...{ targets, lse: Float32Array.from(head.lse), logits: Float32Array.from(head.logits) },
      scales: scaleFactors(10),
    },
    outputs: { logits: R * V },
  });
  close(logits!, gradient.map((value) => value * 2 ** 10), { what: "scaled gradient", tolerance: 1e-5 });
});
