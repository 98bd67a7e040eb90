// Packed integers: golden bytes, round trips of anything, one packing per array, and refusals for foreign bytes.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../wire/errors.ts";
import { FRAME_PAYLOAD_BYTES_MAX, packedPayloadBytes } from "../wire/frame.ts";
import { packInts, unpackInts } from "./ints.ts";

const SEED = { seed: 20240614, numRuns: 400 };
const MIN = -(2 ** 31);
const MAX = 2 ** 31 - 1;

function roundTrip(values: Int32Array): Int32Array {
  const result = unpackInts(packInts(values), values.length);
  assert.ok(result.ok, result.ok ? "" : result.reason);
  return result.value;
}

function refusal(bytes: Uint8Array, count: number): string {
  const result = unpackInts(bytes, count);
  return result.ok ? "accepted" : `${result.code}: ${result.reason}`;
}

/** Values of w bits at most, in zigzag order. */
function ofWidth(w: number): fc.Arbitrary<number> {
  if (w === 0) return fc.constant(0);
  return fc.integer({ min: w === 32 ? MIN : -(2 ** (w - 1)), max: w === 32 ? MAX : 2 ** (w - 1) - 1 });
}

/** Runs of like magnitude, of lengths that fall on both sides of a block's end. */
const arrays = fc.array(
  fc.integer({ min: 0, max: 32 }).chain((w) => fc.array(ofWidth(w), { maxLength: 90 })),
  { maxLength: 4 },
).map((runs) => Int32Array.from(runs.flat()));

interface Golden {
  name: string;
  values: number[];
  payload: string;
}

Deno.test("ints: golden bytes are written and read as before", async () => {
  const url = new URL("../../test/fixtures/wire/v1/ints.json", import.meta.url);
  const golden: Golden[] = JSON.parse(await Deno.readTextFile(url));
  assert.ok(golden.length >= 5);
  for (const { name, values, payload } of golden) {
    assert.equal(packInts(Int32Array.from(values)).toHex(), payload, name);
    assert.deepEqual(unpackInts(Uint8Array.fromHex(payload), values.length), {
      ok: true,
      value: Int32Array.from(values),
    });
  }
});

Deno.test("ints: a block as the documents describe it, bit by bit", () => {
  const values = new Int32Array(64);
  values.set([-1, 1, -2, 3]);
  // Zigzag 1, 2, 3, 6 in three bits each, from the lowest bit: 110 011 010 001 = 0xcd1.
  assert.equal(packInts(values).toHex(), "03000000" + "d10c0000" + "00".repeat(20));
});

Deno.test("ints: every array comes back, also from the middle of a buffer", () => {
  fc.assert(
    fc.property(arrays, fc.nat(7), (values, shift) => {
      const packed = packInts(values);
      const { min, max } = packedPayloadBytes(values.length);
      assert.ok(packed.length >= min && packed.length <= max && packed.length % 4 === 0);
      const buffer = new Uint8Array(packed.length + 9).fill(255);
      buffer.set(packed, shift);
      assert.deepEqual(unpackInts(buffer.subarray(shift, shift + packed.length), values.length), {
        ok: true,
        value: values,
      });
    }),
    SEED,
  );
});

Deno.test("ints: every width holds its extremes and no block is wider than it needs", () => {
  for (let w = 1; w <= 32; w++) {
    const [low, high] = w === 32 ? [MIN, MAX] : [-(2 ** (w - 1)), 2 ** (w - 1) - 1];
    for (const length of [1, 63, 64, 65, 128]) {
      const values = Int32Array.from({ length }, (_, i) => i % 3 === 0 ? low : i % 3 === 1 ? high : 0);
      assert.deepEqual(roundTrip(values), values);
      const { min } = packedPayloadBytes(length);
      // Of 65 values, the last block holds one: the highest, which is 0 in one bit.
      const last = length === 65 && w === 1 ? 0 : 8 * w;
      assert.equal(
        packInts(values).length,
        min + (length > 64 ? 8 * w + last : 8 * w),
        `${w} bits, ${length}`,
      );
    }
  }
  assert.equal(packInts(new Int32Array(1000)).length, packedPayloadBytes(1000).min);
  assert.equal(packInts(new Int32Array(0)).length, 0);
});

Deno.test("ints: what is not the packing of so many values is refused", () => {
  const values = Int32Array.from({ length: 100 }, (_, i) => i - 50);
  const packed = packInts(values);
  const damaged = (at: number, byte: number) => {
    const copy = packed.slice();
    copy[at] = byte;
    return copy;
  };
  assert.match(
    refusal(new Uint8Array(0), 100),
    /^bad-frame: 100 packed integers in 0 bytes, 4 are the least/,
  );
  assert.match(refusal(packed.subarray(0, packed.length - 4), 100), /need \d+ bytes, \d+ came/);
  assert.match(refusal(new Uint8Array([...packed, 0, 0, 0, 0]), 100), /need \d+ bytes, \d+ came/);
  assert.match(refusal(damaged(0, 33), 100), /block 0 of packed integers has width 33/);
  assert.match(refusal(damaged(2, 1), 100), /padding of packed widths is not zero/);
  assert.match(refusal(damaged(packed.length - 1, 1), 100), /block 1 of packed integers is not packed/);
  assert.match(refusal(packed, 64), /padding/);
  assert.match(refusal(packed, 99), /block 1 of packed integers is not packed/);
  assert.match(refusal(packed, 300), /need|width/);
  for (const count of [-1, 0.5, NaN, 2 ** 24, 2 ** 40]) {
    assert.match(refusal(packed, count), /not a number of values/);
  }
});

Deno.test("ints: a width larger than needed is refused, so that equal sums are equal bytes", () => {
  const wide = new Uint8Array(4 + 16);
  wide[0] = 2;
  wide[4] = 1;
  assert.match(refusal(wide, 64), /block 0 of packed integers is not packed/);
  wide[4] = 2;
  assert.equal(refusal(wide, 64), "accepted");
  assert.match(
    refusal(new Uint8Array([1, 0, 0, 0, ...Array(8).fill(0)]), 64),
    /is not packed as it should be/,
  );
});

Deno.test("ints: random bytes never throw, and what is accepted is the packing of what it gives", () => {
  const noise = fc.uint8Array({ maxLength: 300 });
  const nearly = fc.tuple(arrays, fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 2 })).map(
    ([values, edits]) => {
      const bytes = packInts(values);
      for (const [at, byte] of edits) if (bytes.length > 0) bytes[at % bytes.length] = byte;
      return bytes;
    },
  );
  fc.assert(
    fc.property(fc.oneof(noise, nearly), fc.nat(300), (bytes, count) => {
      const result = unpackInts(bytes, count);
      if (!result.ok) return assert.equal(result.code, "bad-frame");
      assert.deepEqual(packInts(result.value), new Uint8Array(bytes));
    }),
    { ...SEED, numRuns: 3000 },
  );
});

Deno.test("ints: more values than a frame holds are our own mistake", () => {
  const bytesPerBlock = 1 + 4 * 64;
  const most = Math.floor(FRAME_PAYLOAD_BYTES_MAX / bytesPerBlock) * 64;
  assert.ok(packedPayloadBytes(most).max <= FRAME_PAYLOAD_BYTES_MAX);
  const more = new Int32Array(most + 128);
  assert.throws(() => packInts(more), (error) => error instanceof ShoalError && error.code === "internal");
});
