// The GPU codecs against their CPU twins: exponents, halves and scales byte for byte, int8 codes except next to ties,
// decoded values bit for bit.
import assert from "node:assert/strict";
import fc from "fast-check";
import { decodeTensor, encodeTensor, payloadBytes } from "../../peer/codec/codec.ts";
import { amaxChunk } from "../../peer/model/stage_tensors.ts";
import { fromHalf } from "../../peer/codec/f16.ts";
import type { KernelSpec } from "../../peer/gpu/kernel.ts";
import {
  amaxChunksSpec,
  amaxExponentSpec,
  decodeF16sSpec,
  decodeI8b64Spec,
  encodeF16sSpec,
  encodeI8b64Spec,
} from "../../peer/gpu/kernels/codec.ts";
import type { CodecId, Encoded } from "../../peer/wire/run.ts";
import { I8_BLOCK } from "../../peer/wire/frame.ts";
import { onAdapter, runTwice, testDevice, testValues, words } from "./support.ts";

const gpu = await testDevice();
const codecs = ["f16s", "i8b64"] as const;
const encoders: Record<string, KernelSpec> = { f16s: encodeF16sSpec, i8b64: encodeI8b64Spec };
const decoders: Record<string, KernelSpec> = { f16s: decodeF16sSpec, i8b64: decodeI8b64Spec };
/** How near to a tie the exact ratio must be where a code may differ by one: a division is off by 2.5 ulp at most. */
const TIE_DISTANCE = 1e-4;
/** Any words that are not what a kernel should write. */
const POISON = 0x7fc12345;
const SEED = 20_251;

/** Exponent word alone. */
async function exponentOnGpu(values: Float32Array): Promise<number> {
  const n = values.length, chunk = amaxChunk(n), count = Math.ceil(n / chunk);
  const first = { params: { n, chunk }, inputs: { values }, outputs: { maxima: count } };
  const { maxima } = await runTwice(gpu, amaxChunksSpec, first);
  const second = { params: { count }, inputs: { maxima: words(maxima!) }, outputs: { encoded: 1 } };
  const { encoded } = await runTwice(gpu, amaxExponentSpec, second);
  return words(encoded!)[0]! | 0;
}

async function encodeOnGpu(codec: CodecId, values: Float32Array): Promise<Encoded> {
  const rows = 1, cols = values.length;
  const exponent = await exponentOnGpu(values);
  const start = new Uint32Array(1 + payloadBytes(codec, rows, cols) / 4).fill(POISON);
  start[0] = exponent >>> 0;
  const { encoded } = await runTwice(gpu, encoders[codec]!, {
    params: { n: cols },
    inputs: { values, encoded: start },
    outputs: { encoded: start.length },
  });
  assert.equal(words(encoded!)[0]! | 0, exponent, "the encoder changed the exponent");
  const payload = new Uint8Array(encoded!.buffer, encoded!.byteOffset + 4, (start.length - 1) * 4).slice();
  return { codec, exponent, rows, cols, payload };
}

async function decodeOnGpu(e: Encoded): Promise<Float32Array> {
  const n = e.rows * e.cols;
  const encoded = new Uint32Array(1 + e.payload.length / 4);
  encoded[0] = e.exponent >>> 0;
  new Uint8Array(encoded.buffer).set(e.payload, 4);
  const run = { params: { n }, inputs: { encoded }, outputs: { values: n } };
  return (await runTwice(gpu, decoders[e.codec]!, run)).values!;
}

/** Equal exponents and payloads; an int8 code may be off by one where y / s lies next to a tie. */
function assertSameEncoding(actual: Encoded, values: Float32Array, what: string): void {
  const expected = encodeTensor(actual.codec, values, 1, values.length);
  assert.equal(actual.exponent, expected.exponent, `${what}: exponent`);
  const codes = actual.codec === "i8b64"
    ? expected.payload.length - Math.ceil(values.length / I8_BLOCK) * I8_BLOCK
    : expected.payload.length;
  assert.deepEqual(actual.payload.subarray(0, codes), expected.payload.subarray(0, codes), what);
  const scales = new DataView(expected.payload.buffer);
  for (let i = codes; i < expected.payload.length; i++) {
    const difference = Math.abs((actual.payload[i]! << 24) - (expected.payload[i]! << 24)) / 2 ** 24;
    if (difference === 0) continue;
    const k = i - codes;
    const s = fromHalf(scales.getUint16(Math.floor(k / I8_BLOCK) * 2, true));
    const ratio = (values[k] ?? 0) * 2 ** -expected.exponent / s;
    const distance = Math.abs(Math.abs(ratio - Math.floor(ratio)) - 0.5);
    assert.ok(difference === 1 && distance <= TIE_DISTANCE, `${what}: code ${k} of ratio ${ratio}`);
  }
}

async function checkBoth(values: Float32Array, what: string): Promise<void> {
  for (const codec of codecs) {
    const encoded = await encodeOnGpu(codec, values);
    assertSameEncoding(encoded, values, `${codec} ${what}`);
    const decoded = decodeTensor(encoded);
    assert.ok(decoded.ok, `${codec} ${what}: the CPU refuses the GPU's encoding`);
    const actual = await decodeOnGpu(encoded);
    assert.deepEqual(words(actual), words(decoded.value), `${codec} ${what}: decoded values`);
  }
}

Deno.test(onAdapter(gpu, "codecs equal their CPU twins for lengths around the blocks"), async () => {
  for (const n of [1, 2, 3, 63, 64, 65, 127, 128, 129, 1009, 8192]) {
    await checkBoth(testValues(n, n), `${n} values`);
  }
});

Deno.test(onAdapter(gpu, "codecs equal their CPU twins over magnitudes 1e-30 to 1e30"), async () => {
  for (const exponent of [-30, -12, -7, -3, 0, 4, 12, 30]) {
    const values = testValues(200, exponent + 50).map((value) => value * 10 ** exponent);
    await checkBoth(values, `magnitude 1e${exponent}`);
  }
});

const special: Record<string, number[]> = {
  zeros: Array(70).fill(0),
  "negative zeros": Array(5).fill(-0),
  "one block of zeros": [...Array(64).fill(0), 1, -2, 3],
  "powers of two": Array.from({ length: 140 }, (_, i) => (i % 2 ? -1 : 1) * 2 ** -i),
  "a block far below the tensor's maximum": [...Array(64).fill(1), ...Array(64).fill(1e-37)],
  "maxima that are 127 halves": Array.from({ length: 130 }, (_, i) => i % 64 === 0 ? 127 * (1024 + i) : i),
  "ties of the codes": Array.from({ length: 64 }, (_, i) => i === 0 ? 127 : i - 31.5),
  "ties of the halves": Array.from({ length: 64 }, (_, i) => 1 + (2 * i + 1) * 2 ** -11),
  "largest significands": Array.from({ length: 66 }, (_, i) => (2 - 2 ** -23) * 2 ** -i),
  subnormals: [1e-40, -1e-42, 1.4e-45],
  "subnormals beside normals": [1e-40, -1e-42, 1e-36, 2e-38],
  "the smallest exponent": [2 ** -110, -(2 ** -112), 2 ** -126],
  "the largest exponent": [(2 - 2 ** -23) * 2 ** 99, -(2 ** 90), 1],
};

Deno.test(onAdapter(gpu, "codecs equal their CPU twins on special values"), async () => {
  for (const [what, values] of Object.entries(special)) await checkBoth(Float32Array.from(values), what);
});

Deno.test(onAdapter(gpu, "codecs equal their CPU twins on arbitrary values"), async () => {
  const value = fc.float({ noNaN: true, min: -(2 ** 99), max: 2 ** 99 });
  const near = fc.tuple(fc.integer({ min: -(2 ** 24), max: 2 ** 24 }), fc.integer({ min: -12, max: 12 }));
  const values = fc.oneof(
    fc.array(value, { minLength: 1, maxLength: 150 }),
    fc.array(near.map(([m, e]) => m * 2 ** e), { minLength: 1, maxLength: 150 }),
  );
  const property = fc.asyncProperty(values, (list) => checkBoth(Float32Array.from(list), "arbitrary"));
  await fc.assert(property, { seed: SEED, numRuns: 40 });
});

Deno.test(
  onAdapter(gpu, "decoders equal their CPU twins on arbitrary payloads that pass the check"),
  async () => {
    const cases = fc.tuple(
      fc.constantFrom(...codecs),
      fc.integer({ min: -100, max: 100 }),
      fc.array(fc.integer({ min: 0, max: 0xffff }), { minLength: 1, maxLength: 70 }),
    );
    const property = fc.asyncProperty(cases, async ([codec, exponent, seeds]) => {
      const cols = codec === "f16s" ? seeds.length : seeds.length * 3;
      const payload = new Uint8Array(payloadBytes(codec, 1, cols));
      const view = new DataView(payload.buffer);
      for (let i = 0; i < payload.length / 2; i++) view.setUint16(i * 2, seeds[i % seeds.length]!, true);
      const scales = codec === "f16s" ? cols : Math.ceil(cols / I8_BLOCK);
      for (let i = 0; i < scales; i++) {
        const half = view.getUint16(i * 2, true);
        view.setUint16(i * 2, codec === "f16s" ? half % 0x7400 | half & 0x8000 : half % 0x2400, true);
      }
      const e: Encoded = { codec, exponent, rows: 1, cols, payload };
      const expected = decodeTensor(e);
      assert.ok(expected.ok, "the payload should pass the check");
      assert.deepEqual(words(await decodeOnGpu(e)), words(expected.value));
    });
    await fc.assert(property, { seed: SEED, numRuns: 40 });
  },
);

Deno.test(
  onAdapter(gpu, "the exponent word tells of values that are not finite or far too large"),
  async () => {
    for (const bad of [NaN, Infinity, -Infinity, 3e38, 2 ** 100]) {
      const values = testValues(300, 1);
      values[217] = bad;
      const exponent = await exponentOnGpu(values);
      assert.ok(exponent > 100, `${bad} gave the exponent ${exponent}`);
    }
  },
);
