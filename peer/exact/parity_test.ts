// Shards and parity: any k of k + 1 give the file back, one damaged shard is found, foreign ones are refused, and the parity
// visits every keeper while few shards move.
import assert from "node:assert/strict";
import fc from "fast-check";
import { hashBytes } from "./chunk_hashes.ts";
import {
  cutShards,
  DATA_SHARDS_MAX,
  restoreFile,
  type Shard,
  shardBytes,
  type ShardId,
  shardIdProblem,
  SNAPSHOT_BYTES_MAX,
} from "./parity.ts";

const ABOUT = { step: 40, firstLayer: 1, endLayer: 3 };
const SEED = { seed: 33, numRuns: 200 };
const file = fc.uint8Array({ minLength: 1, maxLength: 400 });
const k = fc.integer({ min: 1, max: DATA_SHARDS_MAX });

function refusal(shards: readonly Shard[]): string {
  const result = restoreFile(shards);
  return result.ok ? "restored" : `${result.code}: ${result.reason}`;
}

function damagedCopy(shard: Shard, place: number): Shard {
  const bytes = shard.bytes.slice();
  bytes[place % bytes.length]! ^= 0x10;
  return { ...shard, bytes };
}

Deno.test("parity: any k of the k + 1 shards, in any order, restore the file", () => {
  fc.assert(
    fc.property(file, k, fc.nat(), fc.nat(), (bytes, k, lose, turn) => {
      const shards = cutShards(bytes, { ...ABOUT, k });
      assert.equal(shards.length, k + 1);
      for (const [index, shard] of shards.entries()) {
        assert.equal(shard.bytes.length, shardBytes(bytes.length, k));
        assert.deepEqual(shard.id, { ...ABOUT, k, index, totalBytes: bytes.length, hash: hashBytes(bytes) });
      }
      const left = shards.filter((_, i) => i !== lose % (k + 1));
      const turned = left.map((_, i) => left[(i + turn) % left.length]!);
      assert.deepEqual(restoreFile(turned), { ok: true, value: { file: bytes, damaged: null } });
      if (k > 1) assert.match(refusal(left.slice(1)), /^bad-snapshot: \d shards of the \d/);
    }),
    SEED,
  );
});

Deno.test("parity: one damaged shard of k + 1 is left out and named", () => {
  fc.assert(
    fc.property(file, k, fc.nat(), fc.nat(), (bytes, k, which, place) => {
      const shards = cutShards(bytes, { ...ABOUT, k });
      const damaged = which % (k + 1);
      shards[damaged] = damagedCopy(shards[damaged]!, place);
      assert.deepEqual(restoreFile(shards), { ok: true, value: { file: bytes, damaged } });
      const without = shards.filter((_, i) => i !== (damaged + 1) % (k + 1));
      assert.match(refusal(without), /^bad-snapshot: no/);
    }),
    SEED,
  );
});

Deno.test("parity: an unaligned file is cut alike", () => {
  const bytes = Uint8Array.from({ length: 333 }, (_, i) => i * 7);
  const shifted = new Uint8Array(340).subarray(3, 336);
  shifted.set(bytes);
  const shards = cutShards(shifted, { ...ABOUT, k: 3 });
  assert.deepEqual(shards.map((it) => it.bytes), cutShards(bytes, { ...ABOUT, k: 3 }).map((it) => it.bytes));
  const unaligned = shards.map((shard) => {
    const copy = new Uint8Array(shard.bytes.length + 1).subarray(1);
    copy.set(shard.bytes);
    return { ...shard, bytes: copy };
  });
  assert.ok(restoreFile(unaligned.slice(1)).ok);
});

Deno.test("parity: shards that do not belong together are refused", () => {
  const bytes = Uint8Array.from({ length: 200 }, (_, i) => i);
  const shards = cutShards(bytes, { ...ABOUT, k: 2 });
  const [a, b, p] = [shards[0]!, shards[1]!, shards[2]!];
  const changed = (change: Partial<ShardId>): Shard => ({ ...b, id: { ...b.id, ...change } });
  assert.match(refusal([]), /no shard/);
  assert.match(refusal([a, a]), /twice/);
  assert.match(refusal([a, { ...b, bytes: b.bytes.subarray(16) }]), /bytes instead of/);
  for (const change of [{ step: 41 }, { firstLayer: 0 }, { endLayer: 4 }, { totalBytes: 199 }, { k: 3 }]) {
    assert.match(refusal([a, changed(change), p]), /^bad-snapshot: shards of two snapshots/);
  }
  assert.match(refusal([a, changed({ hash: "0".repeat(32) })]), /two snapshots/);
  assert.match(refusal([a, changed({ index: 3 })]), /out of range/);
});

Deno.test("parity: padding that is not zero is damage", () => {
  const shards = cutShards(Uint8Array.of(1, 2, 3), { ...ABOUT, k: 2 });
  assert.match(refusal([shards[0]!, damagedCopy(shards[1]!, 9)]), /^bad-snapshot: no/);
});

Deno.test("parity: an id from outside is bounded before anything is allocated", () => {
  const id: ShardId = { ...ABOUT, k: 2, index: 0, totalBytes: 100, hash: "0".repeat(32) };
  assert.equal(shardIdProblem(id), null);
  const wrong: Partial<ShardId>[] = [
    { k: 0 },
    { k: DATA_SHARDS_MAX + 1 },
    { index: 3 },
    { index: -1 },
    { totalBytes: 0 },
    { totalBytes: SNAPSHOT_BYTES_MAX + 1 },
    { step: -1 },
    { step: 2 ** 32 },
    { endLayer: 1 },
    { firstLayer: 0.5 },
    { endLayer: 70_000 },
    { hash: "0".repeat(31) },
    { hash: "x".repeat(32) },
  ];
  for (const change of wrong) {
    assert.notEqual(shardIdProblem({ ...id, ...change }), null, JSON.stringify(change));
  }
});
