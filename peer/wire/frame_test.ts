// Frames: the byte table of docs/protocol.md, golden bytes, round trips, and refusals without exceptions for
// anything foreign.
import assert from "node:assert/strict";
import fc from "fast-check";
import { crc32c } from "./crc32c.ts";
import { ShoalError } from "./errors.ts";
import {
  decodeFrame,
  encodeFrame,
  EXPONENT_MAX,
  FRAME_BYTES_MAX,
  FRAME_CODECS,
  FRAME_FIELDS,
  FRAME_HEADER_BYTES,
  FRAME_KINDS,
  FRAME_PASSES,
  FRAME_PAYLOAD_BYTES_MAX,
  FRAME_SET_MAX,
  FRAME_VERSION,
  type FrameCodec,
  type FrameHeader,
  framePayloadBytes,
  isSumCodec,
  packedPayloadBytes,
} from "./frame.ts";

const SEED = { seed: 20240612, numRuns: 300 };
const CRC_OFFSET = 92;

const HEADER: FrameHeader = {
  kind: "activation",
  codec: "i8b64",
  pass: "train",
  gen: 3,
  cut: 2,
  step: 1_000_000,
  incarnation: 0xfedcba98,
  fromStage: 1,
  toStage: 2,
  microBatch: 7,
  exponent: -20,
  rows: 3,
  cols: 5,
  set: [],
};

function valid(): Uint8Array {
  return encodeFrame(HEADER, new Uint8Array(68).fill(9));
}

/** Writes a correct checksum over whatever the bytes say now, so that the checks behind it are reached. */
function resealed(bytes: Uint8Array): Uint8Array {
  const copy = bytes.slice();
  const view = new DataView(copy.buffer);
  view.setUint32(CRC_OFFSET, 0, true);
  view.setUint32(CRC_OFFSET, crc32c(copy), true);
  return copy;
}

function codeOf(bytes: Uint8Array): string {
  const result = decodeFrame(bytes);
  return result.ok ? "accepted" : result.code;
}

const boundary = fc.record({
  kind: fc.constantFrom("activation", "gradient"),
  codec: fc.constantFrom("raw32", "f16s", "i8b64"),
  set: fc.constant<number[]>([]),
});
const sum = fc.record({
  kind: fc.constantFrom("part", "tied", "total", "shard"),
  codec: fc.constantFrom("int32", "packed"),
  set: fc.uniqueArray(fc.nat(FRAME_SET_MAX - 1)).map((set) => set.sort((a, b) => a - b)),
});
const raw = fc.record({
  kind: fc.constantFrom("snapshot", "probe"),
  codec: fc.constant("bytes"),
  set: fc.constant<number[]>([]),
});
const text = fc.record({
  kind: fc.constant("text"),
  codec: fc.constant("raw32"),
  set: fc.constant<number[]>([]),
  rows: fc.integer({ min: 1, max: 16 }),
});
const u32 = fc.integer({ min: 0, max: 0xffffffff });
const u16 = fc.nat(0xffff);
const anyHeader = fc.tuple(
  fc.oneof(boundary, sum, raw, text),
  fc.record({
    pass: fc.constantFrom("train", "eval"),
    gen: u32,
    cut: u32,
    step: u32,
    incarnation: u32,
    fromStage: u16,
    toStage: u16,
    microBatch: u16,
    exponent: fc.integer({ min: -EXPONENT_MAX, max: EXPONENT_MAX }),
    rows: fc.integer({ min: 1, max: 40 }),
    cols: fc.integer({ min: 1, max: 40 }),
  }),
).map(([what, rest]) => {
  const exact = ["raw32", "bytes"].includes(what.codec) || isSumCodec(what.codec as FrameCodec);
  return { ...rest, ...what, exponent: exact ? 0 : rest.exponent } as FrameHeader;
});

Deno.test("crc32c: known vectors (RFC 3720 B.4) and chaining at every cut", () => {
  assert.equal(crc32c(new TextEncoder().encode("123456789")), 0xe3069283);
  assert.equal(crc32c(new Uint8Array(32)), 0x8a9136aa);
  assert.equal(crc32c(new Uint8Array(32).fill(0xff)), 0x62a8ab43);
  const ascending = Uint8Array.from({ length: 32 }, (_, i) => i);
  assert.equal(crc32c(ascending), 0x46dd794e);
  assert.equal(crc32c(ascending.slice().reverse()), 0x113fdb5c);
  assert.equal(crc32c(new Uint8Array(0)), 0);
  for (let cut = 0; cut <= 32; cut++) {
    assert.equal(crc32c(ascending.subarray(cut), crc32c(ascending.subarray(0, cut))), 0x46dd794e);
  }
});

Deno.test("frame: docs/protocol.md shows the header, the kinds and the codecs", async () => {
  const text = await Deno.readTextFile(new URL("../../docs/protocol.md", import.meta.url));
  const section = text.slice(text.indexOf("## Data frames"), text.indexOf("## Chunks"));
  const fields = [...section.matchAll(/^\| (\d+) \| `(\w+)` \| (\w+) \|/gm)];
  assert.deepEqual(
    fields.map(([, offset, name, type]) => ({ name, offset: Number(offset), type })),
    FRAME_FIELDS,
  );
  const names = [...section.matchAll(/^\| (\d+) \| ([a-z]\w*) \|/gm)].map(([, n, name]) => `${n} ${name}`);
  assert.deepEqual(
    names,
    [FRAME_KINDS, FRAME_CODECS].flatMap((list) => list.map((name, i) => `${i} ${name}`)),
  );
  const passes = FRAME_PASSES.map((name, i) => `${i} \`${name}\``).join(", ");
  assert.ok(section.includes(`| u8 | ${passes} |`));
});

Deno.test("frame: fields follow each other without gap and end with the header", () => {
  const bytes = { u8: 1, u16: 2, i16: 2, u32: 4, bits256: 32, zeros12: 12 };
  let at = 0;
  for (const field of FRAME_FIELDS) {
    assert.equal(field.offset, at, field.name);
    at += bytes[field.type];
  }
  assert.equal(at, FRAME_HEADER_BYTES);
});

interface Golden {
  name: string;
  header: FrameHeader;
  payload: string;
  frame: string;
}

Deno.test("frame: golden bytes of version 2 are written and read as before", async () => {
  const url = new URL("../../test/fixtures/wire/v2/frames.json", import.meta.url);
  const golden: Golden[] = JSON.parse(await Deno.readTextFile(url));
  assert.deepEqual(new Set(golden.map(({ header }) => header.kind)), new Set(FRAME_KINDS));
  assert.deepEqual(new Set(golden.map(({ header }) => header.codec)), new Set(FRAME_CODECS));
  for (const { name, header, payload, frame } of golden) {
    const bytes = encodeFrame(header, Uint8Array.fromHex(payload));
    assert.equal(bytes.toHex(), frame, name);
    const decoded = decodeFrame(Uint8Array.fromHex(frame));
    assert.ok(decoded.ok, name);
    assert.deepEqual(decoded.value.header, header);
    assert.equal(decoded.value.payload.toHex(), payload);
  }
});

Deno.test("frame: generation and cut stand in fields of their own", async () => {
  const url = new URL("../../test/fixtures/wire/v2/frames.json", import.meta.url);
  const golden: Golden[] = JSON.parse(await Deno.readTextFile(url));
  assert.ok(golden.some(({ header }) => header.gen !== header.cut), "the golden frames tell them not apart");
  const bytes = encodeFrame({ ...HEADER, gen: 0x01020304, cut: 0x05060708 }, new Uint8Array(68));
  assert.equal(bytes.slice(12, 16).toHex(), "04030201");
  assert.equal(bytes.slice(44, 48).toHex(), "08070605");
});

Deno.test("frame: golden bytes of version 1, which knew no cut, are refused as that and not as damaged", async () => {
  const url = new URL("../../test/fixtures/wire/v1/frames.json", import.meta.url);
  const golden: Golden[] = JSON.parse(await Deno.readTextFile(url));
  assert.ok(golden.length > 0);
  for (const { name, frame } of golden) {
    const refused = decodeFrame(Uint8Array.fromHex(frame));
    assert.ok(!refused.ok, name);
    assert.deepEqual([refused.code, refused.reason], [
      ...["wrong-version", `frame version 1, this peer reads ${FRAME_VERSION}`],
    ]);
  }
});

Deno.test("frame: every header and payload comes back, also from the middle of a buffer", () => {
  fc.assert(
    fc.property(anyHeader, fc.nat(255), fc.nat(9), (header, fill, shift) => {
      const payload = new Uint8Array(someLength(header, fill)).fill(fill);
      const frame = encodeFrame(header, payload);
      const buffer = new Uint8Array(frame.length + shift);
      buffer.set(frame, shift);
      const decoded = decodeFrame(buffer.subarray(shift));
      assert.ok(decoded.ok);
      assert.deepEqual(decoded.value, { header, payload });
    }),
    SEED,
  );
});

/** What the shape needs; a packed payload has any length between its bounds. */
function someLength({ codec, rows, cols }: FrameHeader, draw: number): number {
  if (codec !== "packed") return framePayloadBytes(codec, rows, cols);
  const { min, max } = packedPayloadBytes(rows * cols);
  return min + draw % (max - min + 1);
}

Deno.test("frame: a packed payload lies between its bounds, whose upper one fits a frame", () => {
  const packed = (cols: number): FrameHeader => {
    return { ...HEADER, kind: "part", codec: "packed", exponent: 0, rows: 1, cols };
  };
  assert.deepEqual(packedPayloadBytes(1), { min: 4, max: 4 + 256 });
  assert.deepEqual(packedPayloadBytes(64), { min: 4, max: 4 + 256 });
  assert.deepEqual(packedPayloadBytes(65), { min: 4, max: 4 + 512 });
  assert.deepEqual(packedPayloadBytes(257), { min: 8, max: 8 + 5 * 256 });
  for (const length of [4, 5, 516]) {
    assert.equal(codeOf(encodeFrame(packed(65), new Uint8Array(length))), "accepted");
  }
  for (const length of [3, 517]) {
    assert.throws(() => encodeFrame(packed(65), new Uint8Array(length)), /need 4 to 516 bytes/);
  }
  // A forged frame of zeros claims 64 values a byte: what they unpack to must stay within a frame's size.
  const most = Math.floor(FRAME_PAYLOAD_BYTES_MAX / 257) * 64;
  const claim = (cols: number) => {
    const bytes = encodeFrame(packed(64), new Uint8Array(4));
    const view = new DataView(bytes.buffer);
    view.setUint32(36, cols, true);
    const zeros = new Uint8Array(FRAME_HEADER_BYTES + packedPayloadBytes(cols).min);
    zeros.set(bytes);
    new DataView(zeros.buffer).setUint32(40, zeros.length - FRAME_HEADER_BYTES, true);
    return codeOf(resealed(zeros));
  };
  assert.equal(claim(most), "accepted");
  assert.equal(claim(most + 128), "bad-frame");
});

Deno.test("frame: truncated, extended and oversized frames are refused", () => {
  const bytes = valid();
  for (let length = 0; length < bytes.length; length++) {
    assert.equal(codeOf(bytes.subarray(0, length)), "bad-frame");
  }
  const longer = new Uint8Array(bytes.length + 1);
  longer.set(bytes);
  assert.equal(codeOf(longer), "bad-frame");
  assert.equal(codeOf(new Uint8Array(FRAME_BYTES_MAX + 1)), "bad-frame");
});

Deno.test("frame: any single damaged bit is noticed", () => {
  const bytes = valid();
  for (let bit = 0; bit < bytes.length * 8; bit++) {
    const damaged = bytes.slice();
    damaged[bit >> 3]! ^= 1 << (bit & 7);
    const expected = bit >> 4 === 2 ? "wrong-version" : "bad-frame";
    assert.equal(codeOf(damaged), expected, `bit ${bit}`);
  }
});

Deno.test("frame: another version is refused as wrong-version whatever follows", () => {
  const bytes = valid();
  bytes[4] = FRAME_VERSION + 1;
  bytes.fill(0xee, 6);
  assert.equal(codeOf(bytes), "wrong-version");
});

Deno.test("frame: a well-sealed frame that breaks a rule is refused", () => {
  const breaks: [string, (view: DataView) => void][] = [
    ["headerBytes", (view) => view.setUint16(6, 97, true)],
    ["kind", (view) => view.setUint8(8, FRAME_KINDS.length)],
    ["codec", (view) => view.setUint8(9, FRAME_CODECS.length)],
    ["pass", (view) => view.setUint8(10, FRAME_PASSES.length)],
    ["reserved0", (view) => view.setUint8(11, 1)],
    ["exponent", (view) => view.setInt16(30, EXPONENT_MAX + 1, true)],
    ["rows", (view) => view.setUint32(32, 0, true)],
    ["rows too many", (view) => view.setUint32(32, 400, true)],
    ["rows absurd", (view) => view.setUint32(32, 0xffffffff, true)],
    ["cols", (view) => view.setUint32(36, 0, true)],
    ["payloadBytes", (view) => view.setUint32(40, 0xffffffff, true)],
    ["set of an activation", (view) => view.setUint8(48, 1)],
    ["reserved2", (view) => view.setUint8(91, 1)],
    ["int32 in an activation", (view) => view.setUint8(9, 3)],
    ["packed in a gradient", (view) => view.setUint16(8, 0x0401, true)],
    ["i8b64 in a part", (view) => view.setUint8(8, 2)],
    ["i8b64 in a total", (view) => view.setUint8(8, 4)],
    ["i8b64 in a snapshot", (view) => view.setUint8(8, 6)],
    ["bytes in an activation", (view) => view.setUint8(9, 5)],
    ["i8b64 in a text", (view) => view.setUint8(8, 8)],
  ];
  for (const [name, damage] of breaks) {
    const bytes = valid();
    damage(new DataView(bytes.buffer));
    assert.equal(codeOf(resealed(bytes)), "bad-frame", name);
  }
  assert.equal(codeOf(resealed(valid())), "accepted");
});

Deno.test("frame: random bytes never throw, and what is accepted is canonical", () => {
  const noise = fc.uint8Array({ maxLength: 300 });
  const nearly = fc.array(fc.tuple(fc.nat(95), fc.nat(255)), { maxLength: 4 }).map((edits) => {
    const bytes = valid();
    for (const [at, value] of edits) bytes[at] = value;
    return resealed(bytes);
  });
  fc.assert(
    fc.property(fc.oneof(noise, nearly), (bytes) => {
      const decoded = decodeFrame(bytes);
      if (!decoded.ok) return assert.match(decoded.code, /^(bad-frame|wrong-version)$/);
      assert.deepEqual(encodeFrame(decoded.value.header, decoded.value.payload), bytes);
    }),
    { ...SEED, numRuns: 3000 },
  );
});

Deno.test("frame: the largest payload passes and the next one is refused", () => {
  const rows = FRAME_PAYLOAD_BYTES_MAX / 4;
  const header: FrameHeader = { ...HEADER, codec: "raw32", exponent: 0, rows, cols: 1 };
  assert.equal(codeOf(encodeFrame(header, new Uint8Array(FRAME_PAYLOAD_BYTES_MAX))), "accepted");
  const shard: FrameHeader = {
    ...HEADER,
    kind: "snapshot",
    codec: "bytes",
    exponent: 0,
    rows: 1,
    cols: 299_648,
  };
  assert.equal(codeOf(encodeFrame(shard, new Uint8Array(299_648))), "accepted");
  assert.throws(
    () => encodeFrame({ ...shard, cols: 299_649 }, new Uint8Array(299_649)),
    /the limit is 299648/,
    "a snapshot's pieces are small",
  );
  const probe: FrameHeader = { ...shard, kind: "probe", cols: 163_840 };
  assert.equal(codeOf(encodeFrame(probe, new Uint8Array(163_840))), "accepted");
  assert.throws(
    () => encodeFrame({ ...probe, cols: 163_841 }, new Uint8Array(163_841)),
    /the limit is 163840/,
    "a probe is no load",
  );
  const more = { ...header, rows: rows + 1 };
  assert.throws(() => encodeFrame(more, new Uint8Array(FRAME_PAYLOAD_BYTES_MAX + 4)), ShoalError);
});

Deno.test("frame: our own mistakes throw internal", () => {
  const payload = new Uint8Array(68);
  const sums: FrameHeader = { ...HEADER, kind: "part", codec: "int32", exponent: 0, rows: 1, cols: 17 };
  const wrong: FrameHeader[] = [
    { ...HEADER, gen: -1 },
    { ...HEADER, cut: -1 },
    { ...HEADER, step: 2 ** 32 },
    { ...HEADER, microBatch: 65536 },
    { ...HEADER, incarnation: 0.5 },
    { ...HEADER, exponent: NaN },
    { ...HEADER, rows: 4, cols: 17 },
    { ...HEADER, kind: "other" as never },
    { ...sums, set: [3, 3] },
    { ...sums, set: [4, 3] },
    { ...sums, set: [256] },
    { ...sums, exponent: 2 },
    { ...sums, codec: "packed", exponent: -1 },
  ];
  for (const header of wrong) {
    assert.throws(
      () => encodeFrame(header, payload),
      (error) => error instanceof ShoalError && error.code === "internal",
    );
  }
});
