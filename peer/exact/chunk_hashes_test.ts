// Content chunks: hashes that notice every bit and every length, deltas that equal the whole, an assembly that shows nothing
// before it is complete and sound.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  Assembly,
  changedChunks,
  chunkCount,
  chunkHashes,
  chunkLength,
  chunkOf,
  CONTENT_CHUNK_BYTES,
  hashBytes,
} from "./chunk_hashes.ts";
import { CHUNK_PAYLOAD_BYTES_MAX } from "../net/chunks.ts";
import { FRAME_HEADER_BYTES } from "../wire/frame.ts";
import { SNAPSHOT_HEADER_BYTES } from "../core/keeper_wire.ts";

const C = CONTENT_CHUNK_BYTES;

function pattern(size: number, salt: number): Uint8Array {
  let x = Math.imul(salt + 1, 0x9e3779b1) >>> 0;
  return Uint8Array.from({ length: size }, () => (x = (Math.imul(x, 1664525) + 1013904223) >>> 0) >>> 24);
}

Deno.test("content chunks: one with all its headers fits one chunk of a link", () => {
  assert.ok(CONTENT_CHUNK_BYTES + SNAPSHOT_HEADER_BYTES + FRAME_HEADER_BYTES <= CHUNK_PAYLOAD_BYTES_MAX);
});

Deno.test("content hashes: any bit, any length and any alignment", () => {
  const size = fc.integer({ min: 1, max: 70 });
  fc.assert(
    fc.property(size, fc.nat(), fc.nat({ max: 7 }), fc.nat({ max: 3 }), (size, place, bit, shift) => {
      const bytes = pattern(size, place);
      const unaligned = new Uint8Array(size + 4).subarray(shift, shift + size);
      unaligned.set(bytes);
      assert.equal(hashBytes(unaligned), hashBytes(bytes));
      unaligned[place % size]! ^= 1 << bit;
      assert.notEqual(hashBytes(unaligned), hashBytes(bytes));
    }),
    { seed: 31, numRuns: 300 },
  );
  const zeros = Array.from({ length: 40 }, (_, size) => hashBytes(new Uint8Array(size)));
  assert.equal(new Set(zeros).size, zeros.length);
  assert.match(zeros[0]!, /^[0-9a-f]{32}$/);
});

Deno.test("content chunks: every byte lies in one chunk", () => {
  for (const size of [0, 1, C - 1, C, C + 1, 3 * C]) {
    const bytes = pattern(size, size);
    assert.equal(chunkCount(size), Math.ceil(size / C));
    const parts = Array.from({ length: chunkCount(size) }, (_, i) => chunkOf(bytes, i));
    assert.deepEqual(parts.map((part) => part.length), parts.map((_, i) => chunkLength(size, i)));
    assert.deepEqual(parts.flatMap((part) => [...part]), [...bytes]);
  }
});

Deno.test("assembly: the changed chunks over the base give the next version", () => {
  const edits = fc.array(fc.nat({ max: 3 * C }), { maxLength: 4 });
  fc.assert(
    fc.property(edits, (places) => {
      const base = pattern(3 * C + 1, 1);
      const next = base.slice();
      for (const place of places) next[place]! ^= 0x55;
      const hashes = chunkHashes(next);
      const changed = changedChunks(chunkHashes(base), hashes);
      const touched = new Set(places.map((place) => Math.floor(place / C)));
      assert.ok(changed.every((index) => touched.has(index)));
      const assembly = new Assembly(next.length, hashes, { bytes: base, hashes: chunkHashes(base) });
      assert.deepEqual(assembly.missing, changed);
      for (const index of changed.toReversed()) {
        assert.equal(assembly.finish(), null);
        assert.ok(assembly.put(index, chunkOf(next, index)).ok);
      }
      assert.deepEqual(assembly.finish()?.bytes, next);
    }),
    { seed: 32, numRuns: 30 },
  );
});

Deno.test("assembly: refuses with a code and stays as it was", () => {
  const next = pattern(2 * C + 5, 2);
  const assembly = new Assembly(next.length, chunkHashes(next), null);
  const first = chunkOf(next, 0);
  const flipped = first.slice();
  flipped[7]! ^= 1;
  const refusals: [number, Uint8Array, string][] = [
    [3, first, "bad-snapshot"],
    [-1, first, "bad-snapshot"],
    [0.5, first, "bad-snapshot"],
    [0, first.subarray(1), "bad-snapshot"],
    [0, flipped, "bad-snapshot"],
    [1, first, "bad-snapshot"],
    [2, chunkOf(next, 2).subarray(0, 4), "bad-snapshot"],
  ];
  for (const [index, payload, code] of refusals) {
    const result = assembly.put(index, payload);
    assert.equal(result.ok ? "taken" : result.code, code);
    assert.deepEqual(assembly.missing, [0, 1, 2]);
  }
  assert.ok(assembly.put(0, first).ok);
  const again = assembly.put(0, first);
  assert.equal(again.ok ? "taken" : again.code, "stale-snapshot");
  assert.equal(assembly.missingCount, 2);
});

Deno.test("assembly: a base that rotted in memory is noticed, its chunk is asked for again", () => {
  const base = pattern(2 * C, 3);
  const hashes = chunkHashes(base);
  const next = base.slice();
  next[0]! ^= 1;
  base[C + 9]! ^= 1;
  const assembly = new Assembly(next.length, chunkHashes(next), { bytes: base, hashes });
  assert.deepEqual(assembly.missing, [0]);
  assert.ok(assembly.put(0, chunkOf(next, 0)).ok);
  assert.equal(assembly.finish(), null);
  assert.deepEqual(assembly.missing, [1]);
  assert.ok(assembly.put(1, chunkOf(next, 1)).ok);
  assert.deepEqual(assembly.finish()?.bytes, next);
});

Deno.test("assembly: a base of another length helps nobody", () => {
  const base = pattern(C, 4);
  const next = pattern(C + 1, 4);
  const assembly = new Assembly(next.length, chunkHashes(next), { bytes: base, hashes: chunkHashes(base) });
  assert.deepEqual(assembly.missing, [0, 1]);
});
