// The CPU codecs: golden bytes, error bounds over twelve decades, ties and edges of rounding, and a judge
// that lets no stranger's bytes become a NaN.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../wire/errors.ts";
import type { CodecId, Encoded } from "../wire/run.ts";
import { checkEncoded, decodeTensor, encodeTensor, payloadBytes } from "./codec.ts";
import { fromHalf, toHalf } from "./f16.ts";

const SEED = { seed: 20240613, numRuns: 500 };
const CODECS: CodecId[] = ["raw32", "f16s", "i8b64"];
/** Values between tile edges of 64: one, a prime, one below, exact, one above, several blocks. */
const LENGTHS = [1, 2, 3, 61, 63, 64, 65, 127, 128, 1009];

/** Sum of uniform variates, near enough to normal; a fixed integer recurrence, the same everywhere. */
function bellCurve(length: number, scale: number, salt = 1): Float32Array {
  let state = (salt * 2654435761) >>> 0;
  const uniform = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32 - 0.5;
  };
  return Float32Array.from({ length }, () => (uniform() + uniform() + uniform() + uniform()) * 1.7 * scale);
}

function roundTrip(codec: CodecId, values: Float32Array): Float32Array {
  const decoded = decodeTensor(encodeTensor(codec, values, values.length, 1));
  assert.ok(decoded.ok, decoded.ok ? "" : decoded.reason);
  return decoded.value;
}

function relL2(values: Float32Array, decoded: Float32Array): number {
  let error = 0;
  let norm = 0;
  for (let i = 0; i < values.length; i++) {
    error += (values[i]! - decoded[i]!) ** 2;
    norm += values[i]! ** 2;
  }
  return Math.sqrt(error / norm);
}

function codes(e: Encoded): Int8Array {
  const n = Math.ceil((e.rows * e.cols) / 64) * 64;
  return new Int8Array(e.payload.buffer, e.payload.byteOffset + e.payload.length - n, n);
}

function refusal(e: Encoded): string {
  const result = decodeTensor(e);
  return result.ok ? "accepted" : result.code;
}

interface Golden {
  codec: CodecId;
  rows: number;
  cols: number;
  /** Little-endian f32. */
  values: string;
  exponent: number;
  payload: string;
}

Deno.test("codec: golden bytes of version 1", async () => {
  const url = new URL("../../test/fixtures/wire/v1/codecs.json", import.meta.url);
  const golden: Golden[] = JSON.parse(await Deno.readTextFile(url));
  assert.ok(golden.length >= 9);
  for (const { codec, rows, cols, values, exponent, payload } of golden) {
    const encoded = encodeTensor(codec, new Float32Array(Uint8Array.fromHex(values).buffer), rows, cols);
    assert.equal(encoded.exponent, exponent);
    assert.equal(encoded.payload.toHex(), payload, `${codec} ${rows} x ${cols}`);
  }
});

for (const length of LENGTHS) {
  Deno.test(`codec: error bounds over magnitudes 1e-7 to 1e4, ${length} values`, () => {
    for (let decade = -7; decade <= 4; decade++) {
      const values = bellCurve(length, 10 ** decade, length + decade + 20);
      assert.deepEqual(roundTrip("raw32", values), values);
      const f16s = roundTrip("f16s", values);
      // A half has 11 significant bits; values 2^-24 below the tensor's largest lose some of them.
      const max = Math.max(...values.map(Math.abs));
      f16s.forEach((x, i) =>
        assert.ok(Math.abs(x - values[i]!) <= Math.abs(values[i]!) * 2 ** -11 + max * 2 ** -37)
      );
      assert.ok(relL2(values, roundTrip("i8b64", values)) <= 0.008);
    }
  });
}

Deno.test("codec: i8b64 errs by half a scale at most, in every block, also beside a huge block", () => {
  const values = bellCurve(640, 1, 5);
  for (let i = 64; i < 128; i++) values[i] = values[i]! * 1000;
  const { exponent } = encodeTensor("i8b64", values, 1, values.length);
  const decoded = roundTrip("i8b64", values);
  for (let block = 0; block < 10; block++) {
    const slice = values.subarray(block * 64, block * 64 + 64);
    // m / 127 rounded up to a half: 2^-10 of itself more, or one step of the subnormal halves.
    const exact = Math.max(...slice.map(Math.abs)) / 127;
    const scale = exact + Math.max(exact * 2 ** -10, 2 ** (exponent - 24));
    slice.forEach((x, i) => assert.ok(Math.abs(x - decoded[block * 64 + i]!) <= scale * 0.5));
  }
});

Deno.test("codec: the exponent puts the largest magnitude into [0.5, 1)", () => {
  const exponent = (x: number) => encodeTensor("f16s", new Float32Array([x, 0, -x / 2]), 1, 3).exponent;
  const expected: [number, number][] = [
    [1, 1],
    [0.5, 0],
    [Math.fround(1 - 2 ** -24), 0],
    [-3, 2],
    [2 ** -30, -29],
    [2 ** 99, 100],
    [2 ** -126, -100],
    [2 ** -149, -100],
    [0, 0],
  ];
  for (const [x, e] of expected) assert.equal(exponent(x), e, `${x}`);
});

Deno.test("codec: zeros, subnormals and signs", () => {
  for (const codec of CODECS) assert.deepEqual(roundTrip(codec, new Float32Array(70)), new Float32Array(70));
  const tiny = new Float32Array([2 ** -127, -(2 ** -149)]);
  assert.deepEqual(roundTrip("raw32", tiny), tiny);
  for (const codec of ["f16s", "i8b64"] as const) {
    assert.ok(roundTrip(codec, tiny).every((x) => x === 0));
    assert.ok(roundTrip(codec, new Float32Array([-5, 3]))[0]! < 0);
  }
});

Deno.test("codec: i8b64 rounds ties to even and never writes -128", () => {
  // m = 127/128 makes the scale exactly 2^-7, so that these are codes and halves of codes.
  const ties = [0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 126.5, -126.5];
  const values = new Float32Array([127, -127, ...ties].map((q) => q / 128));
  const got = codes(encodeTensor("i8b64", values, 1, values.length));
  assert.deepEqual([...got.subarray(0, values.length)], [127, -127, 0, 2, 2, 4, 0, -2, -2, 126, -126]);
  fc.assert(
    fc.property(
      fc.float32Array({ minLength: 1, maxLength: 200, noNaN: true, noDefaultInfinity: true }),
      (random) => {
        const sane = random.map((x) => Math.abs(x) < 2 ** 99 ? x : 1);
        assert.ok(!codes(encodeTensor("i8b64", sane, sane.length, 1)).includes(-128));
      },
    ),
    SEED,
  );
});

Deno.test("codec: the scale is the smallest half that covers its block", () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 2 ** 24 - 1 }),
      fc.integer({ min: 0, max: 30 }),
      (mantissa, down) => {
        const m = Math.fround(mantissa * 2 ** (-24 - down));
        const { exponent, payload } = encodeTensor(
          "i8b64",
          new Float32Array([...new Array(64).fill(0), m, 0.75]),
          66,
          1,
        );
        const [, half = 0] = new Uint16Array(payload.buffer, 0, 2);
        const y = Math.max(m, 0.75) * 2 ** -exponent;
        assert.ok(fromHalf(half) * 127 >= y);
        assert.ok(fromHalf(half - 1) * 127 < y);
      },
    ),
    SEED,
  );
});

Deno.test("codec: decoded values are finite, and what raw32 and f16s decode encodes without loss", () => {
  const values = fc.float32Array({ minLength: 1, maxLength: 150, noNaN: true, noDefaultInfinity: true });
  fc.assert(
    fc.property(values, fc.constantFrom(...CODECS), (random, codec) => {
      const sane = random.map((x) => Math.abs(x) < 2 ** 99 ? x : 1);
      const once = roundTrip(codec, sane);
      assert.ok(once.every(Number.isFinite));
      if (codec !== "i8b64") assert.deepEqual(roundTrip(codec, once), once);
    }),
    SEED,
  );
});

Deno.test("codec: our own NaN, infinity, overflow or wrong shape is internal", () => {
  const internal = (error: unknown) => error instanceof ShoalError && error.code === "internal";
  for (const codec of CODECS) {
    for (const bad of [NaN, Infinity, -Infinity]) {
      assert.throws(() => encodeTensor(codec, new Float32Array([1, bad]), 1, 2), internal);
    }
    assert.throws(() => encodeTensor(codec, new Float32Array(5), 2, 3), internal);
    assert.throws(() => encodeTensor(codec, new Float32Array(0), 0, 3), internal);
  }
  assert.throws(() => encodeTensor("f16s", new Float32Array([2 ** 100]), 1, 1), internal);
  assert.equal(encodeTensor("raw32", new Float32Array([2 ** 127]), 1, 1).exponent, 0);
});

Deno.test("codec: a stranger's wrong size, exponent, scale or value is a bad-frame", () => {
  const good = (codec: CodecId) => encodeTensor(codec, bellCurve(70, 1), 7, 10);
  const edited = (codec: CodecId, at: number, ...bytes: number[]) => {
    const encoded = good(codec);
    encoded.payload.set(bytes, at);
    return encoded;
  };
  const wrong: Encoded[] = [
    ...CODECS.map((codec) => ({ ...good(codec), payload: good(codec).payload.subarray(1) })),
    ...CODECS.map((codec) => ({ ...good(codec), exponent: 101 })),
    ...CODECS.map((codec) => ({ ...good(codec), exponent: 0.5 })),
    { ...good("f16s"), rows: 0 },
    { ...good("f16s"), rows: 2 ** 31, cols: 2 ** 31 },
    { ...good("f16s"), codec: "zip" as never },
    { ...good("raw32"), exponent: 1 },
    edited("raw32", 40, 0, 0, 0x80, 0x7f),
    edited("raw32", 40, 1, 0, 0x80, 0xff),
    edited("f16s", 10, 0x00, 0x7c),
    edited("f16s", 10, 0x01, 0x7e),
    edited("f16s", 10, 0x01, 0x74),
    edited("i8b64", 2, 0x00, 0x7c),
    edited("i8b64", 2, 0xff, 0x7f),
    edited("i8b64", 2, 0x01, 0x24),
    edited("i8b64", 2, 0x00, 0x90),
  ];
  for (const [i, encoded] of wrong.entries()) assert.equal(refusal(encoded), "bad-frame", `case ${i}`);
});

Deno.test("codec: random payloads decode to finite values or are refused, and never throw", () => {
  const shape = fc.record({ rows: fc.integer({ min: 1, max: 9 }), cols: fc.integer({ min: 1, max: 30 }) });
  const exponent = fc.integer({ min: -100, max: 100 });
  const bytes = fc.oneof(fc.constant(0xff), fc.constant(0x24), fc.nat(0x24), fc.nat(255));
  let accepted = 0;
  fc.assert(
    fc.property(
      fc.constantFrom(...CODECS),
      shape,
      exponent,
      fc.array(bytes, { minLength: 1 }),
      (codec, s, e, fill) => {
        const payload = Uint8Array.from(
          { length: payloadBytes(codec, s.rows, s.cols) },
          (_, i) => fill[i % fill.length]!,
        );
        const encoded: Encoded = { codec, ...s, exponent: codec === "raw32" ? 0 : e, payload };
        const result = decodeTensor(encoded);
        assert.equal(checkEncoded(encoded).ok, result.ok);
        if (!result.ok) return;
        accepted++;
        assert.ok(result.value.every(Number.isFinite));
      },
    ),
    { ...SEED, numRuns: 2000 },
  );
  assert.ok(accepted > 100, `only ${accepted} payloads were accepted: the test would prove little`);
});

Deno.test("f16: every half survives, and rounding is to nearest with ties to even", () => {
  for (let h = 0; h < 0x7c00; h++) {
    const x = fromHalf(h);
    assert.equal(toHalf(x), h);
    assert.equal(toHalf(-x), h | 0x8000);
    if (h === 0) continue;
    const middle = (x + fromHalf(h - 1)) / 2;
    assert.equal(toHalf(middle), h % 2 === 0 ? h : h - 1);
    assert.equal(toHalf(middle * (1 + 2 ** -20)), h);
    assert.equal(toHalf(middle * (1 - 2 ** -20)), h - 1);
  }
  assert.deepEqual([toHalf(65519), toHalf(65520), toHalf(Infinity), toHalf(2 ** -26)], [
    0x7bff,
    0x7c00,
    0x7c00,
    0,
  ]);
});
