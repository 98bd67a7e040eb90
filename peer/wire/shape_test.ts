// The walk over msgpack bytes: whatever the library writes passes, whatever would make its decoder allocate or nest without
// end does not.
import { decode, encode } from "@msgpack/msgpack";
import assert from "node:assert/strict";
import fc from "fast-check";
import { DEPTH_MAX, shapeProblem } from "./shape.ts";

const FUZZ = { seed: 77, numRuns: 600 };

const anything = fc.anything({ maxDepth: 4, withBigInt: false, withTypedArray: true });

Deno.test("shape: all that the encoder writes passes, and no cut of it does", () => {
  const property = fc.property(anything, fc.nat(), (value, at) => {
    const bytes = encodable(value);
    if (bytes === null) return;
    assert.equal(shapeProblem(bytes), null);
    assert.notEqual(shapeProblem(bytes.slice(0, at % bytes.length)), null);
    assert.match(shapeProblem(Uint8Array.of(...bytes, 0)) ?? "", /1 bytes after the end/);
  });
  fc.assert(property, FUZZ);
});

function encodable(value: unknown): Uint8Array | null {
  try {
    return encode(value);
  } catch {
    return null;
  }
}

Deno.test("shape: every width of every kind is measured as the decoder measures it", () => {
  const sizes = [0, 15, 16, 31, 32, 255, 256, 65_535, 65_536];
  const list = (n: number) => new Array<number>(n).fill(1);
  const values: unknown[] = [
    ...sizes.flatMap((n) => ["x".repeat(n), new Uint8Array(n), list(n)]),
    ...sizes.map((n) => Object.fromEntries(list(n).map((_, i) => [i, 0]))),
    ...[0, -1, 127, 128, -32, -33, 255, 65_535, 2 ** 32 - 1, 2 ** 40, -(2 ** 15), -(2 ** 31), -(2 ** 40)],
    ...[0.5, null, true, false, new Date(0), new Date(2 ** 40), new Date(-1.5)],
  ];
  for (const value of values) assert.equal(shapeProblem(encode(value)), null);
});

Deno.test("shape: what the decoder reads is never refused, and what is refused it does not need", () => {
  const property = fc.property(fc.uint8Array({ minLength: 1, maxLength: 12 }), (bytes) => {
    if (shapeProblem(bytes) === null) return;
    assert.throws(() => decode(bytes, { maxArrayLength: 100, maxMapLength: 100 }));
  });
  fc.assert(property, FUZZ);
});

Deno.test("shape: depth and declared counts are bounded", () => {
  const nested = (depth: number) => Uint8Array.from([...new Array<number>(depth - 1).fill(0x91), 0xc0]);
  assert.equal(shapeProblem(nested(DEPTH_MAX)), null);
  assert.match(shapeProblem(nested(DEPTH_MAX + 1)) ?? "", /nested deeper/);
  assert.match(
    shapeProblem(Uint8Array.of(0xdc, 0xff, 0xff, 0xc0)) ?? "",
    /65535 values declared, 1 bytes left/,
  );
  assert.match(shapeProblem(Uint8Array.of(0xde, 0, 2, 0xc0, 0xc0, 0xc0)) ?? "", /4 values declared/);
  assert.match(shapeProblem(Uint8Array.of(0xc1)) ?? "", /not msgpack/);
});
