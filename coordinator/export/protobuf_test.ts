// The wire format by the examples of Protocol Buffers' own encoding guide, and the sizes of fields that are read later.
import assert from "node:assert/strict";
import { readPieces, totalBytes } from "./pieces.ts";
import { floatField, intField, lazyField, messageField, textField } from "./protobuf.ts";

function hex(bytes: Uint8Array): string {
  return bytes.toHex();
}

Deno.test("protobuf: fields are encoded as in the format's guide", () => {
  assert.equal(hex(intField(1, 150)), "089601");
  assert.equal(hex(textField(2, "testing")), "120774657374696e67");
  assert.equal(hex(messageField(3, [intField(1, 150)])), "1a03089601");
  assert.equal(hex(intField(1, -2)), "08feffffffffffffffff01");
  assert.equal(hex(intField(1, 2 ** 40)), "08808080808020");
  assert.equal(hex(intField(20, 7)), "a00107");
  assert.equal(hex(floatField(2, 1)), "150000803f");
});

Deno.test("protobuf: a field that is read later announces the length of all its pieces", async () => {
  const late = { bytes: 200, read: () => Promise.resolve(new Uint8Array(200).fill(9)) };
  const pieces = lazyField(9, [Uint8Array.of(1, 2), late]);
  const bytes: number[] = [];
  for await (const piece of readPieces(pieces)) bytes.push(...piece);
  assert.equal(bytes.length, totalBytes(pieces));
  assert.deepEqual(bytes.slice(0, 6), [0x4a, 0xca, 0x01, 1, 2, 9]);
  assert.equal(bytes.length, 3 + 202);
});
