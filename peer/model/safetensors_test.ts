// The file format: known bytes, round trips, alignment, every refusal, and mutated files that must never throw.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  decodeHeader,
  decodeSafetensors,
  encodeSafetensors,
  HEADER_BYTES_MAX,
  headerLength,
  type TensorMap,
  tensorOf,
  toF32,
  toI16,
} from "./safetensors.ts";

const EXAMPLE: TensorMap = {
  metadata: { step: "7" },
  tensors: new Map([
    ["a", tensorOf(Uint8Array.of(1, 2, 3), [3])],
    ["b", tensorOf(Float32Array.of(1, -2, 0.5, 4, 5, 6), [2, 3])],
    ["c", tensorOf(Int16Array.of(-1, 300), [2, 1])],
    ["none", tensorOf(new Float32Array(0), [0, 4])],
  ]),
};

function withHeader(header: unknown, dataBytes: number): Uint8Array {
  const text = new TextEncoder().encode(typeof header === "string" ? header : JSON.stringify(header));
  const out = new Uint8Array(8 + text.length + dataBytes);
  new DataView(out.buffer).setUint32(0, text.length, true);
  out.set(text, 8);
  return out;
}

Deno.test("safetensors: the bytes are those of the format's description", () => {
  const bytes = encodeSafetensors({
    metadata: {},
    tensors: new Map([["t", tensorOf(Int16Array.of(258), [1])]]),
  });
  const header = '{"t":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}}  ';
  assert.deepEqual(
    bytes,
    Uint8Array.from([56, 0, 0, 0, 0, 0, 0, 0, ...new TextEncoder().encode(header), 2, 1]),
  );
});

Deno.test("safetensors: decode(encode(file)) is the file, at any place in a larger buffer", () => {
  const bytes = encodeSafetensors(EXAMPLE);
  const shifted = new Uint8Array(bytes.length + 3);
  shifted.set(bytes, 3);
  for (const view of [bytes, shifted.subarray(3)]) {
    const decoded = decodeSafetensors(view);
    assert.ok(decoded.ok);
    assert.deepEqual(decoded.value.metadata, EXAMPLE.metadata);
    assert.deepEqual(new Set(decoded.value.tensors.keys()), new Set(EXAMPLE.tensors.keys()));
    for (const [name, tensor] of decoded.value.tensors) {
      const { dtype, shape, bytes } = EXAMPLE.tensors.get(name)!;
      assert.deepEqual([tensor.dtype, tensor.shape, [...tensor.bytes]], [dtype, shape, [...bytes]]);
    }
    assert.deepEqual(toF32(decoded.value.tensors.get("b")!), Float32Array.of(1, -2, 0.5, 4, 5, 6));
    assert.deepEqual(toI16(decoded.value.tensors.get("c")!), Int16Array.of(-1, 300));
  }
});

Deno.test("safetensors: every tensor is aligned to its value size", () => {
  const bytes = encodeSafetensors(EXAMPLE);
  const decoded = decodeSafetensors(bytes);
  assert.ok(decoded.ok);
  for (const { dtype, bytes } of decoded.value.tensors.values()) {
    assert.equal(bytes.byteOffset % { F32: 4, I16: 2, U8: 1 }[dtype], 0);
  }
});

Deno.test("safetensors: malformed files are refused with the reason", () => {
  const u8 = (begin: number, end: number, shape: unknown = [end - begin]) => (
    { dtype: "U8", shape, data_offsets: [begin, end] }
  );
  const long = new Uint8Array(8);
  new DataView(long.buffer).setBigUint64(0, 0xffff_ffff_ffff_ffffn, true);
  const cases: [Uint8Array, RegExp][] = [
    [new Uint8Array(7), /7 bytes has no safetensors header/],
    [long, /header of 18446744073709551615 bytes exceeds/],
    [withHeader(" ".repeat(HEADER_BYTES_MAX + 1), 0), /header of 4194305 bytes exceeds/],
    [withHeader("{", 0), /not a JSON object/],
    [withHeader("[]", 0), /not a JSON object/],
    [withHeader("null", 0), /not a JSON object/],
    [withHeader({ a: null }, 0), /tensor "a" is not an object/],
    [withHeader({ a: { ...u8(0, 1), dtype: "F64" } }, 1), /unsupported type/],
    [withHeader({ a: { ...u8(0, 1), dtype: "toString" } }, 1), /unsupported type/],
    [withHeader({ a: u8(0, 1, "1") }, 1), /malformed shape/],
    [withHeader({ a: u8(0, 1, [-1, -1]) }, 1), /malformed shape/],
    [withHeader({ a: u8(0, 1, Array(9).fill(1)) }, 1), /malformed shape/],
    [withHeader({ a: { ...u8(0, 1), data_offsets: [0, 1, 2] } }, 1), /malformed offsets/],
    [withHeader({ a: { ...u8(0, 1), data_offsets: [0, 0.5] } }, 1), /malformed offsets/],
    [withHeader({ a: u8(0, 2) }, 1), /leaves the 1 bytes/],
    [withHeader({ a: { ...u8(0, 1), data_offsets: [1, 0] } }, 1), /leaves the 1 bytes/],
    [withHeader({ a: u8(0, 1, [2]) }, 1), /1 bytes, which is not its shape/],
    [withHeader({ a: u8(0, 1, [2 ** 53 - 1, 2 ** 53 - 1]) }, 1), /not its shape/],
    [withHeader({ a: u8(0, 2), b: u8(1, 3) }, 3), /data at 1 is used twice/],
    [withHeader({ a: u8(0, 1), b: u8(2, 3) }, 3), /data at 1 is unused/],
    [withHeader({ a: u8(0, 1) }, 2), /1 bytes follow the last tensor/],
    [withHeader({ __metadata__: { a: 1 } }, 0), /metadata "a" is not a string/],
    [withHeader({ __metadata__: [] }, 0), /metadata is not an object/],
  ];
  for (const [bytes, reason] of cases) {
    const result = decodeSafetensors(bytes, "bad-checkpoint");
    assert.ok(!result.ok && result.code === "bad-checkpoint");
    assert.match(result.reason, reason);
  }
});

Deno.test("safetensors: a header alone says where each tensor lies, in every type of the format", () => {
  const sizes = { F64: 8, I64: 8, U32: 4, F32: 4, F16: 2, BF16: 2, I16: 2, I8: 1, BOOL: 1, F8_E4M3: 1 };
  let end = 0;
  const header = Object.fromEntries(
    Object.entries(sizes).map(([dtype, size]) => [
      `of ${dtype}`,
      { dtype, shape: [3, 1], data_offsets: [end, end += 3 * size] },
    ]),
  );
  const text = new TextEncoder().encode(JSON.stringify(header));
  const decoded = decodeHeader(text, end, "bad-model");
  assert.ok(decoded.ok);
  const { shape, begin, end: last } = decoded.value.tensors.get("of BF16")!;
  assert.deepEqual([shape, last - begin], [[3, 1], 6]);
  const short = decodeHeader(text, end - 1, "bad-model");
  assert.ok(!short.ok && short.code === "bad-model");
  assert.ok(!decodeSafetensors(withHeader(header, end)).ok, "our own files have fewer types");
});

Deno.test("safetensors: a header's length is bounded by the file and by the limit before it is read", () => {
  const first = (length: number) => new Uint8Array(8).map((_, i) => (length / 256 ** i) & 255);
  assert.deepEqual(headerLength(first(10), 18), { ok: true, value: 10 });
  for (const [length, fileBytes] of [[11, 18], [HEADER_BYTES_MAX + 1, 1e9], [0, 7]] as const) {
    assert.ok(!headerLength(first(length), fileBytes).ok, `${length} in ${fileBytes}`);
  }
  assert.ok(!headerLength(new Uint8Array(3), 100).ok);
});

Deno.test("safetensors: mutated and random bytes never throw, and what passes is consistent", () => {
  const good = encodeSafetensors(EXAMPLE);
  const mutated = fc.array(fc.tuple(fc.nat({ max: good.length - 1 }), fc.nat({ max: 255 })), {
    minLength: 1,
    maxLength: 4,
  })
    .map((changes) => {
      const bytes = good.slice();
      for (const [at, value] of changes) bytes[at] = value;
      return bytes;
    });
  const cut = fc.nat({ max: good.length }).map((length) => good.slice(0, length));
  fc.assert(
    fc.property(fc.oneof(mutated, cut, fc.uint8Array({ maxLength: 300 })), (bytes) => {
      const result = decodeSafetensors(bytes);
      if (!result.ok) return assert.equal(result.code, "bad-state");
      const size = [...result.value.tensors.values()].reduce((sum, tensor) => sum + tensor.bytes.length, 0);
      assert.ok(size <= bytes.length);
    }),
    { seed: 10, numRuns: 3000 },
  );
});
