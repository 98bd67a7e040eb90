// Rounding to the exported types, by cases worked out by hand, and that nothing overflows silently.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../../peer/wire/errors.ts";
import { dtypeBytes, encodeValues, Q8_BLOCK } from "./dtypes.ts";

function words(bytes: Uint8Array): number[] {
  return [...new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2)];
}

const REFUSED = (error: unknown) =>
  error instanceof ShoalError && error.code === "usage" && /tensor w /.test(error.message);

Deno.test("dtypes: f16 rounds to even and refuses what it cannot hold", () => {
  const values = Float32Array.of(1, -2, 1 + 2 ** -11, 1 + 3 * 2 ** -11, 65504, 2 ** -24, 0, -0);
  assert.deepEqual(words(encodeValues("f16", values, "w")), [
    ...[0x3c00, 0xc000, 0x3c00, 0x3c02, 0x7bff, 0x0001, 0x0000, 0x8000],
  ]);
  assert.throws(() => encodeValues("f16", Float32Array.of(65520), "w"), REFUSED);
});

Deno.test("dtypes: bf16 rounds to even and refuses what it cannot hold", () => {
  const values = Float32Array.of(1, -2, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, 0);
  assert.deepEqual(words(encodeValues("bf16", values, "w")), [0x3f80, 0xc000, 0x3f80, 0x3f82, 0x3f81, 0]);
  assert.throws(() => encodeValues("bf16", Float32Array.of(3.4e38), "w"), REFUSED);
});

Deno.test("dtypes: a Q8_0 block is a scale and codes, halves away from zero", () => {
  const values = new Float32Array(Q8_BLOCK);
  values.set([127, -127, 0.5, -0.5, 1.25, -64]);
  const bytes = encodeValues("q8_0", values, "w");
  assert.equal(bytes.length, 34);
  assert.deepEqual(words(bytes.slice(0, 2)), [0x3c00]);
  assert.deepEqual([...new Int8Array(bytes.buffer, 2, 7)], [127, -127, 1, -1, 1, -64, 0]);
  assert.deepEqual([...encodeValues("q8_0", new Float32Array(Q8_BLOCK), "w")], Array(34).fill(0));
  assert.throws(() => encodeValues("q8_0", new Float32Array(Q8_BLOCK).fill(1e30), "w"), REFUSED);
});

Deno.test("dtypes: a Q8_0 value is off by at most half a step and the scale's own rounding", () => {
  const block = fc.array(fc.float({ min: -100, max: 100, noNaN: true }), { minLength: 32, maxLength: 96 })
    .map((values) => Float32Array.from(values.slice(0, values.length - values.length % Q8_BLOCK)));
  fc.assert(
    fc.property(block, (values) => {
      const bytes = encodeValues("q8_0", values, "w");
      assert.equal(bytes.length, dtypeBytes("q8_0", values.length));
      const view = new DataView(bytes.buffer);
      values.forEach((value, i) => {
        const at = Math.floor(i / Q8_BLOCK) * 34;
        const scale = view.getFloat16(at, true);
        const back = scale * view.getInt8(at + 2 + i % Q8_BLOCK);
        // f16 keeps 11 bits of a normal scale, and steps of 2^-24 below; a code is at most 127.
        const slack = 127 * Math.max(scale * 2 ** -11, 2 ** -25);
        assert.ok(Math.abs(back - value) <= scale * 0.5001 + slack, `${value} became ${back}`);
      });
    }),
    { seed: 1337, numRuns: 200 },
  );
});
