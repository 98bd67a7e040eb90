// A restore's patience: progress counts as life and nothing else does, spares are asked only when needed, and the reason of a
// failure names each cause once.
import assert from "node:assert/strict";
import { chunkHashes, chunkOf, CONTENT_CHUNK_BYTES } from "../exact/chunk_hashes.ts";
import { cutShards, type Shard } from "../exact/parity.ts";
import { KEEPER_SILENCE_MS, Restore, type RestoreEffect } from "./keeper_restore.ts";

const FILE = Uint8Array.from({ length: 6 * CONTENT_CHUNK_BYTES }, (_, i) => (i * 7 + (i >> 9)) & 0xff);
const SHARDS = cutShards(FILE, { step: 20, firstLayer: 0, endLayer: 2, k: 2 });
const KEEPERS = [{ peer: "c", index: 2 }, { peer: "a", index: 0 }, { peer: "b", index: 1 }];
const PAUSE_MS = KEEPER_SILENCE_MS - 1;

function snapshotId() {
  const { index: _, ...id } = SHARDS[0]!.id;
  return id;
}

function begin(): { restore: Restore; words: string[] } {
  const restore = new Restore({ snapshot: snapshotId(), keepers: KEEPERS });
  return { restore, words: wordsOf(restore.start(0)) };
}

function wordsOf(effects: RestoreEffect[]): string[] {
  return effects.map((effect) => {
    if (effect.do === "send") return `${effect.message.type} ${effect.to}`;
    return effect.do === "refused" ? effect.refusal.kind : effect.do;
  });
}

function offer(restore: Restore, from: string, { id, bytes }: Shard, now: number): string[] {
  return wordsOf(restore.message(from, { type: "offer", id, hashes: chunkHashes(bytes) }, now));
}

function chunk(
  restore: Restore,
  from: string,
  { id, bytes }: Shard,
  [number, now]: [number, number],
): string[] {
  const payload = chunkOf(bytes, number);
  return wordsOf(restore.message(from, { type: "chunk", id, chunk: number, payload }, now));
}

function whole(restore: Restore, from: string, shard: Shard, now: number): string[] {
  offer(restore, from, shard, now);
  const count = chunkHashes(shard.bytes).length;
  return Array.from({ length: count }, (_, i) => chunk(restore, from, shard, [i, now])).at(-1)!;
}

Deno.test("restore: data shards first, the parity is a spare", () => {
  const { restore, words } = begin();
  assert.deepEqual(words, ["fetch a", "fetch b"]);
  assert.deepEqual(whole(restore, "a", SHARDS[0]!, 1), ["kept a"]);
  assert.deepEqual(whole(restore, "b", SHARDS[1]!, 2), ["kept b", "restored"]);
  assert.equal(restore.over, true);
  assert.deepEqual(restore.tick(1e9), []);
});

Deno.test("restore: a slow keeper that goes on sending is not passed over", () => {
  const { restore } = begin();
  whole(restore, "a", SHARDS[0]!, 1);
  let now = PAUSE_MS;
  offer(restore, "b", SHARDS[1]!, now);
  for (const number of [0, 1, 2]) {
    now += PAUSE_MS;
    assert.deepEqual(restore.tick(now), []);
    chunk(restore, "b", SHARDS[1]!, [number, now]);
  }
  assert.equal(restore.over, true);
});

Deno.test("restore: repeated offers and chunks are no progress", () => {
  const { restore } = begin();
  whole(restore, "a", SHARDS[0]!, 1);
  offer(restore, "b", SHARDS[1]!, 1);
  chunk(restore, "b", SHARDS[1]!, [0, 1]);
  assert.deepEqual(offer(restore, "b", SHARDS[1]!, PAUSE_MS), ["want b"]);
  assert.deepEqual(chunk(restore, "b", SHARDS[1]!, [0, PAUSE_MS]), ["repeated"]);
  assert.deepEqual(wordsOf(restore.tick(KEEPER_SILENCE_MS + 1)), ["refusal b", "fetch c"]);
  assert.deepEqual(chunk(restore, "b", SHARDS[1]!, [1, PAUSE_MS + 2]), ["forged"]);
  assert.deepEqual(whole(restore, "c", SHARDS[2]!, PAUSE_MS + 3), ["kept c", "restored"]);
});

Deno.test("restore: what arrived over an old link stays when the shard is offered again", () => {
  const { restore } = begin();
  offer(restore, "b", SHARDS[1]!, 1);
  chunk(restore, "b", SHARDS[1]!, [1, 1]);
  const { id, bytes } = SHARDS[1]!;
  const [want] = restore.message("b", { type: "offer", id, hashes: chunkHashes(bytes) }, 2);
  assert.deepEqual(want?.do === "send" && want.message, { type: "want", id, chunks: [0, 2] });
});

Deno.test("restore: shards that do not fit together ask one more; the reason names each cause once", () => {
  const { restore } = begin();
  const wrong = { ...SHARDS[0]!, bytes: SHARDS[0]!.bytes.toReversed() };
  whole(restore, "a", wrong, 1);
  assert.deepEqual(whole(restore, "b", SHARDS[1]!, 1), ["kept b", "fetch c"]);
  for (let now = 100; now < KEEPER_SILENCE_MS; now += 500) assert.deepEqual(restore.tick(now), []);
  const effects = restore.tick(KEEPER_SILENCE_MS + 2);
  assert.deepEqual(wordsOf(effects), ["refusal c", "restore-failed"]);
  const reason = effects.map((it) => it.do === "restore-failed" ? it.reason : "").join("");
  assert.match(
    reason,
    /^2 of 2 shards; no 2 of the 2 shards give the file's hash; c: it was silent for 12000 ms$/,
  );
});

Deno.test("restore: an answer of another kind, or from somebody else, is forged", () => {
  const { restore } = begin();
  const { id } = SHARDS[0]!;
  assert.deepEqual(wordsOf(restore.message("a", { type: "kept", id }, 1)), ["forged"]);
  assert.deepEqual(chunk(restore, "a", SHARDS[0]!, [0, 1]), ["forged"]);
  assert.deepEqual(offer(restore, "z", SHARDS[0]!, 1), ["forged"]);
  assert.deepEqual(offer(restore, "a", SHARDS[1]!, 1), ["forged"]);
  assert.deepEqual(offer(restore, "c", SHARDS[2]!, 1), ["forged"]);
  assert.equal(restore.owns("a", { type: "kept", id }), true);
  assert.equal(restore.owns("c", { type: "kept", id: SHARDS[2]!.id }), false);
});
