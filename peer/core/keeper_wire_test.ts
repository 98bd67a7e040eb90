// Snapshot messages: golden bytes, round trips, and refusals without exceptions for anything that no encoder would write.
import assert from "node:assert/strict";
import fc from "fast-check";
import { CONTENT_CHUNK_BYTES } from "../exact/chunk_hashes.ts";
import { shardBytes, type ShardId } from "../exact/parity.ts";
import {
  decodeSnapshot,
  encodeSnapshot,
  REFUSAL_BYTES_MAX,
  shardChunks,
  SNAPSHOT_FIELDS,
  SNAPSHOT_HEADER_BYTES,
  SNAPSHOT_MESSAGE_BYTES_MAX,
  SNAPSHOT_TYPES,
  type SnapshotMessage,
} from "./keeper_wire.ts";

const HASH = "00112233445566778899aabbccddeeff";
const ID: ShardId = {
  ...{ step: 0x01020304, firstLayer: 2, endLayer: 5, k: 2, index: 1 },
  ...{ totalBytes: 4 * CONTENT_CHUNK_BYTES, hash: HASH },
};
const SMALL: ShardId = { ...ID, totalBytes: 30 };

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function through(message: SnapshotMessage): SnapshotMessage {
  const decoded = decodeSnapshot(encodeSnapshot(message));
  assert.ok(decoded.ok, decoded.ok ? "" : decoded.reason);
  return decoded.value;
}

function code(bytes: Uint8Array): string {
  const decoded = decodeSnapshot(bytes);
  return decoded.ok ? "taken" : decoded.code;
}

Deno.test("snapshot messages: golden bytes of version 1", () => {
  /** Type, length, chunk, body; the rest of the header is ID's. */
  const golden = (type: string, totalBytes: string, chunk: string, body: string) =>
    `01${type}0201040302010200${"0500"}${totalBytes}${chunk}${"00".repeat(12)}${HASH}${body}`;
  const payload = new Uint8Array(16).fill(7);
  const expected: [SnapshotMessage, string][] = [
    [{ type: "offer", id: SMALL, hashes: [HASH] }, golden("00", "1e000000", "00000000", HASH)],
    [{ type: "want", id: ID, chunks: [1] }, golden("01", "00800300", "00000000", "02")],
    [{ type: "chunk", id: SMALL, chunk: 0, payload }, golden("02", "1e000000", "00000000", "07".repeat(16))],
    [{ type: "kept", id: ID }, golden("03", "00800300", "00000000", "")],
    [{ type: "refusal", id: ID, reason: "no" }, golden("04", "00800300", "00000000", "6e6f")],
    [{ type: "fetch", id: ID }, golden("05", "00800300", "00000000", "")],
  ];
  for (const [message, bytes] of expected) assert.equal(hex(encodeSnapshot(message)), bytes, message.type);
});

Deno.test("snapshot messages: the fields fill the header without gap", () => {
  const sizes = { u8: 1, u16: 2, u32: 4, zeros12: 12, hash128: 16 };
  let at = 0;
  for (const { name, offset, type } of SNAPSHOT_FIELDS) {
    assert.equal(offset, at, name);
    at += sizes[type];
  }
  assert.equal(at, SNAPSHOT_HEADER_BYTES);
});

const shardId = fc.record({
  step: fc.nat({ max: 0xffffffff }),
  firstLayer: fc.nat({ max: 100 }),
  layers: fc.integer({ min: 1, max: 9 }),
  k: fc.integer({ min: 1, max: 4 }),
  index: fc.nat(),
  totalBytes: fc.integer({ min: 1, max: 5 * CONTENT_CHUNK_BYTES }),
  hash: fc.constant(HASH),
}).map(({ layers, index, ...id }): ShardId => ({
  ...id,
  endLayer: id.firstLayer + layers,
  index: index % (id.k + 1),
}));

Deno.test("snapshot messages: every type survives a round trip", () => {
  fc.assert(
    fc.property(shardId, fc.nat(), fc.nat(), (id, pick, salt) => {
      const count = shardChunks(id);
      const hashes = Array.from({ length: count }, (_, i) => (salt + i).toString(16).padStart(32, "0"));
      const chunk = pick % count;
      const size = Math.min(
        CONTENT_CHUNK_BYTES,
        shardBytes(id.totalBytes, id.k) - chunk * CONTENT_CHUNK_BYTES,
      );
      const messages: SnapshotMessage[] = [
        { type: "offer", id, hashes },
        { type: "want", id, chunks: hashes.map((_, i) => i).filter((i) => (salt >> i) & 1) },
        { type: "chunk", id, chunk, payload: new Uint8Array(size).fill(salt) },
        { type: "kept", id },
        { type: "refusal", id, reason: "no room — today" },
        { type: "fetch", id },
      ];
      assert.deepEqual(messages.map(({ type }) => type), SNAPSHOT_TYPES);
      for (const message of messages) {
        assert.deepEqual(through(message), message);
        assert.ok(encodeSnapshot(message).length <= SNAPSHOT_MESSAGE_BYTES_MAX);
      }
    }),
    { seed: 41, numRuns: 60 },
  );
});

Deno.test("snapshot messages: a long reason is cut between characters", () => {
  const cut = through({ type: "refusal", id: ID, reason: "é".repeat(REFUSAL_BYTES_MAX) });
  assert.equal(cut.type === "refusal" && cut.reason, "é".repeat(REFUSAL_BYTES_MAX / 2));
});

Deno.test("snapshot messages: what no encoder writes is refused", () => {
  const chunk = encodeSnapshot({ type: "chunk", id: SMALL, chunk: 0, payload: new Uint8Array(16) });
  const offer = encodeSnapshot({ type: "offer", id: ID, hashes: [HASH, HASH] });
  const want = encodeSnapshot({ type: "want", id: ID, chunks: [0, 1] });
  const fetch = encodeSnapshot({ type: "fetch", id: ID });
  const changed = (bytes: Uint8Array, at: number, value: number) => {
    const copy = bytes.slice();
    copy[at] = value;
    return copy;
  };
  const longer = (bytes: Uint8Array) => Uint8Array.of(...bytes, 0);
  const refusal = Uint8Array.of(...changed(fetch, 1, 4), ...new Uint8Array(REFUSAL_BYTES_MAX + 1));
  const bad: Record<string, Uint8Array> = {
    empty: new Uint8Array(0),
    "a short header": fetch.subarray(0, 47),
    "an unknown type": changed(fetch, 1, 6),
    "no data shard": changed(fetch, 2, 0),
    "five data shards": changed(fetch, 2, 5),
    "a shard beyond the parity": changed(fetch, 3, 3),
    "no layers": changed(fetch, 10, 2),
    "two gigabytes": changed(fetch, 15, 0x80),
    "a chunk number in a fetch": changed(fetch, 16, 1),
    "a reserved byte": changed(fetch, 25, 1),
    "a body in a fetch": longer(fetch),
    "a hash too few": offer.subarray(0, -16),
    "a hash too many": Uint8Array.of(...offer, ...new Uint8Array(16)),
    "half a hash": offer.subarray(0, -8),
    "a want beyond the last chunk": changed(want, SNAPSHOT_HEADER_BYTES, 4),
    "a want too long": longer(want),
    "a truncated chunk": chunk.subarray(0, -1),
    "a chunk too long": longer(chunk),
    "a chunk beyond the shard": changed(chunk, 16, 1),
    "a long refusal": refusal,
    "a refusal that is no text": Uint8Array.of(...changed(fetch, 1, 4), 0x80),
  };
  for (const [why, bytes] of Object.entries(bad)) assert.equal(code(bytes), "bad-snapshot", why);
  assert.equal(code(changed(fetch, 0, 2)), "wrong-version");
});

Deno.test("snapshot messages: random bytes and flipped bits never throw", () => {
  const valid = encodeSnapshot({ type: "offer", id: ID, hashes: [HASH, HASH] });
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 120 }), fc.nat(), fc.nat({ max: 7 }), (noise, place, bit) => {
      decodeSnapshot(noise);
      const flipped = valid.slice();
      flipped[place % flipped.length]! ^= 1 << bit;
      const decoded = decodeSnapshot(flipped);
      // Whatever is accepted is exactly what was sent, so nothing is left to interpretation.
      if (decoded.ok) assert.deepEqual(encodeSnapshot(decoded.value), flipped);
    }),
    { seed: 42, numRuns: 500 },
  );
});

Deno.test("snapshot messages: docs/protocol.md shows the header and the types", async () => {
  const text = await Deno.readTextFile(new URL("../../docs/protocol.md", import.meta.url));
  const section = text.slice(text.indexOf("## Snapshots in peers' memory"));
  const fields = [...section.matchAll(/^\| (\d+) \| `(\w+)` \| (\w+) \|/gm)];
  const shown = fields.map(([, offset, name, type]) => ({ name, offset: Number(offset), type }));
  assert.deepEqual(shown, [...SNAPSHOT_FIELDS]);
  const names = [...section.matchAll(/^\| (\d+) \| ([a-z]+) \|/gm)].map(([, n, name]) => `${n} ${name}`);
  assert.deepEqual(names, SNAPSHOT_TYPES.map((name, i) => `${i} ${name}`));
});
