// The keeper: what it takes, what it refuses and how it counts, and that the old snapshot goes only at the flip.
import assert from "node:assert/strict";
import { chunkHashes, chunkOf, CONTENT_CHUNK_BYTES } from "../exact/chunk_hashes.ts";
import { cutShards, type Shard, type ShardId } from "../exact/parity.ts";
import { type Expectation, Keeper, type KeeperEffect, STAGES_KEPT_MAX } from "./keeper.ts";
import { RETRIES_MAX } from "./keeper_reception.ts";
import type { SnapshotMessage } from "./keeper_wire.ts";

const RANGE = { firstLayer: 0, endLayer: 2 };
const BYTES_MAX = 20 * CONTENT_CHUNK_BYTES;

function stateFile(step: number, chunks = 4): Uint8Array {
  return Uint8Array.from(
    { length: chunks * CONTENT_CHUNK_BYTES - 3 },
    (_, i) => i < 9 ? step : (i * 31) >> 3,
  );
}

/** Data shard 0 of two, two chunks long. */
function shardAt(step: number, index = 0): Shard {
  return cutShards(stateFile(step), { ...RANGE, step, k: 2 })[index]!;
}

function expectation(step: number, change: Partial<Expectation> = {}): Expectation {
  return { ...RANGE, step, k: 2, index: 0, from: "a", ...change };
}

function offerOf({ id, bytes }: Shard): SnapshotMessage {
  return { type: "offer", id, hashes: chunkHashes(bytes) };
}

function chunkMessage({ id, bytes }: Shard, chunk: number): SnapshotMessage & { type: "chunk" } {
  return { type: "chunk", id, chunk, payload: chunkOf(bytes, chunk) };
}

/** Effects as short words. */
function words(effects: KeeperEffect[]): string[] {
  return effects.map((effect) => {
    if (effect.do === "send") {
      const { message, to } = effect;
      return `${message.type}${message.type === "want" ? ` ${message.chunks}` : ""} to ${to}`;
    }
    return effect.do === "refused" ? `${effect.refusal.kind}: ${effect.refusal.code}` : effect.do;
  });
}

function say(keeper: Keeper, message: SnapshotMessage, from = "a"): string[] {
  return words(keeper.step({ type: "message", from, message }));
}

function keep(keeper: Keeper, shard: Shard, from = "a"): string[] {
  say(keeper, offerOf(shard), from);
  const count = chunkHashes(shard.bytes).length;
  let last: string[] = [];
  for (let i = 0; i < count; i++) last = say(keeper, chunkMessage(shard, i), from);
  return last;
}

function keeperWith(step: number): Keeper {
  const keeper = new Keeper(BYTES_MAX);
  keeper.step({ type: "expect", expectation: expectation(step) });
  keep(keeper, shardAt(step));
  keeper.step({ type: "flip", ...RANGE, step });
  return keeper;
}

function steps(keeper: Keeper): number[] {
  return keeper.shards.map(({ id }) => id.step);
}

Deno.test("keeper: offer, want, chunks, kept, flip", () => {
  const keeper = new Keeper(BYTES_MAX);
  const shard = shardAt(20);
  assert.deepEqual(keeper.step({ type: "expect", expectation: expectation(20) }), []);
  assert.deepEqual(say(keeper, offerOf(shard)), ["want 0,1 to a"]);
  assert.deepEqual(say(keeper, chunkMessage(shard, 1)), []);
  assert.deepEqual(keeper.shards, []);
  assert.deepEqual(say(keeper, chunkMessage(shard, 0)), ["kept to a", "kept"]);
  assert.deepEqual(keeper.shards.map(({ bytes }) => bytes), [shard.bytes]);
  assert.deepEqual(words(keeper.step({ type: "flip", ...RANGE, step: 20 })), ["flipped"]);
  assert.deepEqual(keeper.step({ type: "flip", ...RANGE, step: 20 }), []);
  assert.equal(keeper.bytes, shard.bytes.length);
  assert.deepEqual(say(keeper, chunkMessage(shard, 0)), ["old: stale-snapshot"]);
  assert.deepEqual(say(keeper, offerOf(shardAt(40))), ["forged: bad-snapshot"]);
});

Deno.test("keeper: the old snapshot stays whole until the flip, and only changed chunks are wanted", () => {
  const keeper = keeperWith(20);
  keeper.step({ type: "expect", expectation: expectation(40) });
  const next = shardAt(40);
  assert.deepEqual(say(keeper, offerOf(next)), ["want 0 to a"]);
  assert.deepEqual(steps(keeper), [20]);
  assert.deepEqual(words(keeper.step({ type: "flip", ...RANGE, step: 40 })), ["lacking"]);
  assert.deepEqual(say(keeper, chunkMessage(next, 0)), ["kept to a", "kept"]);
  assert.deepEqual(words(keeper.step({ type: "flip", ...RANGE, step: 60 })), ["lacking"]);
  assert.deepEqual(steps(keeper), [20, 40]);
  keeper.step({ type: "flip", ...RANGE, step: 40 });
  assert.deepEqual(steps(keeper), [40]);
  assert.deepEqual(keeper.shards[0]!.bytes, next.bytes);
});

Deno.test("keeper: never more than two snapshots of a stage, the complete one among them", () => {
  const keeper = keeperWith(20);
  for (const step of [40, 60, 80]) {
    keeper.step({ type: "expect", expectation: expectation(step) });
    if (step < 80) keep(keeper, shardAt(step));
    assert.deepEqual(steps(keeper), step < 80 ? [20, step] : [20]);
  }
  say(keeper, offerOf(shardAt(80)));
  assert.equal(keeper.bytes, 2 * shardAt(80).bytes.length);
});

interface Forgery {
  why: string;
  message: SnapshotMessage;
  from?: string;
  refusal: string;
}

function withId(message: SnapshotMessage, change: Partial<ShardId>): SnapshotMessage {
  return { ...message, id: { ...message.id, ...change } };
}

Deno.test("keeper: what was not asked for changes nothing and says why", () => {
  const shard = shardAt(40);
  const chunk = chunkMessage(shard, 0);
  const damaged = { ...chunk, payload: chunk.payload.toReversed() };
  const forgeries: Forgery[] = [
    { why: "another sender", message: chunk, from: "z", refusal: "forged: bad-snapshot" },
    { why: "another sender's offer", message: offerOf(shard), from: "z", refusal: "forged: bad-snapshot" },
    { why: "another shard", message: offerOf(shardAt(40, 1)), refusal: "forged: bad-snapshot" },
    { why: "another cut", message: withId(offerOf(shard), { k: 3 }), refusal: "forged: bad-snapshot" },
    { why: "a step too far", message: withId(offerOf(shard), { step: 41 }), refusal: "forged: bad-snapshot" },
    { why: "an older step", message: withId(offerOf(shard), { step: 39 }), refusal: "old: stale-snapshot" },
    { why: "the step that is kept", message: chunkMessage(shardAt(20), 0), refusal: "old: stale-snapshot" },
    { why: "another stage", message: withId(chunk, { endLayer: 3 }), refusal: "wrong-stage: bad-snapshot" },
    {
      why: "another file",
      message: withId(chunk, { hash: "0".repeat(32) }),
      refusal: "forged: bad-snapshot",
    },
    { why: "a want", message: { type: "want", id: shard.id, chunks: [] }, refusal: "forged: bad-snapshot" },
    { why: "a kept", message: { type: "kept", id: shard.id }, refusal: "forged: bad-snapshot" },
    { why: "a repeated chunk", message: chunkMessage(shard, 1), refusal: "repeated: stale-snapshot" },
    { why: "damaged content", message: damaged, refusal: "damaged: bad-snapshot" },
  ];
  for (const { why, message, from, refusal } of forgeries) {
    const keeper = keeperWith(20);
    keeper.step({ type: "expect", expectation: expectation(40) });
    say(keeper, offerOf(shard));
    assert.equal(say(keeper, message, from)[0], refusal, why);
    assert.deepEqual(steps(keeper), [20], why);
    assert.deepEqual(say(keeper, chunk), ["kept to a", "kept"], why);
    assert.deepEqual(keeper.shards[1]!.bytes, shard.bytes, why);
    assert.equal(say(keeper, chunk)[0], "repeated: stale-snapshot", why);
  }
});

Deno.test("keeper: a chunk without offer, and a stage that nobody asked to keep", () => {
  const keeper = new Keeper(BYTES_MAX);
  assert.deepEqual(say(keeper, offerOf(shardAt(20))), ["wrong-stage: bad-snapshot"]);
  keeper.step({ type: "expect", expectation: expectation(20) });
  assert.deepEqual(say(keeper, chunkMessage(shardAt(20), 0)), ["forged: bad-snapshot"]);
  assert.equal(keeper.bytes, 0);
});

Deno.test("keeper: a damaged chunk is asked for again, not for ever", () => {
  const keeper = new Keeper(BYTES_MAX);
  const shard = shardAt(20);
  keeper.step({ type: "expect", expectation: expectation(20) });
  say(keeper, offerOf(shard));
  const bad = { ...chunkMessage(shard, 1), payload: new Uint8Array(CONTENT_CHUNK_BYTES).fill(9) };
  bad.payload = bad.payload.subarray(0, chunkOf(shard.bytes, 1).length);
  for (let i = 0; i < RETRIES_MAX; i++) {
    assert.deepEqual(say(keeper, bad), ["damaged: bad-snapshot", "want 1 to a"]);
  }
  assert.deepEqual(say(keeper, bad), ["damaged: bad-snapshot", "refusal to a"]);
  assert.equal(keeper.bytes, 0);
  assert.deepEqual(keep(keeper, shard), ["kept to a", "kept"]);
});

Deno.test("keeper: memory is a limit, the complete snapshot survives the refusal", () => {
  const shard = shardAt(20);
  const keeper = new Keeper(2 * shard.bytes.length - 1);
  keeper.step({ type: "expect", expectation: expectation(20) });
  assert.deepEqual(keep(keeper, shard), ["kept to a", "kept"]);
  keeper.step({ type: "flip", ...RANGE, step: 20 });
  keeper.step({ type: "expect", expectation: expectation(40) });
  assert.deepEqual(say(keeper, offerOf(shardAt(40))), ["refusal to a", "over-limit: keeper-full"]);
  assert.deepEqual(steps(keeper), [20]);
});

Deno.test("keeper: stages are limited too", () => {
  const keeper = new Keeper(BYTES_MAX);
  for (let i = 0; i < STAGES_KEPT_MAX; i++) {
    const range = { firstLayer: i, endLayer: i + 1 };
    assert.deepEqual(keeper.step({ type: "expect", expectation: expectation(20, range) }), []);
  }
  const more = keeper.step({
    type: "expect",
    expectation: expectation(20, { firstLayer: 70, endLayer: 71 }),
  });
  assert.deepEqual(words(more), ["over-limit: keeper-full"]);
});

Deno.test("keeper: after a broken link or with another holder the same snapshot goes on where it was", () => {
  const keeper = new Keeper(BYTES_MAX);
  const shard = shardAt(20);
  keeper.step({ type: "expect", expectation: expectation(20) });
  say(keeper, offerOf(shard));
  say(keeper, chunkMessage(shard, 0));
  assert.deepEqual(say(keeper, offerOf(shard)), ["want 1 to a"]);
  keeper.step({ type: "expect", expectation: expectation(20, { from: "b" }) });
  assert.deepEqual(say(keeper, chunkMessage(shard, 1)), ["forged: bad-snapshot"]);
  assert.deepEqual(say(keeper, offerOf(shard), "b"), ["want 1 to b"]);
  assert.deepEqual(say(keeper, chunkMessage(shard, 1), "b"), ["kept to b", "kept"]);
  assert.deepEqual(say(keeper, offerOf(shard), "b"), ["kept to b"]);
  keeper.step({ type: "expect", expectation: expectation(19) });
  assert.deepEqual(steps(keeper), [20]);
});

Deno.test("keeper: another offer of the expected sender begins anew", () => {
  const keeper = new Keeper(BYTES_MAX);
  keeper.step({ type: "expect", expectation: expectation(20) });
  const [right, wrong] = [shardAt(20), cutShards(stateFile(7), { ...RANGE, step: 20, k: 2 })[0]!];
  keep(keeper, wrong);
  assert.deepEqual(keep(keeper, right), ["kept to a", "kept"]);
  assert.deepEqual(keeper.shards.map(({ bytes }) => bytes), [right.bytes]);
});

Deno.test("keeper: serves exactly what it keeps, and tells when memory has rotted", () => {
  const keeper = keeperWith(20);
  const { id } = shardAt(20);
  const fetch = (change: Partial<ShardId>) => say(keeper, { type: "fetch", id: { ...id, ...change } }, "r");
  const [served] = keeper.step({ type: "message", from: "r", message: { type: "fetch", id } });
  assert.deepEqual(served, { do: "serve", to: "r", shard: keeper.shards[0] });
  assert.deepEqual(fetch({ step: 19 }), ["refusal to r", "old: stale-snapshot"]);
  assert.deepEqual(fetch({ endLayer: 5 }), ["refusal to r", "wrong-stage: bad-snapshot"]);
  assert.deepEqual(fetch({ hash: "0".repeat(32) }), ["refusal to r", "old: stale-snapshot"]);
  keeper.shards[0]!.bytes[100]! ^= 1;
  assert.deepEqual(fetch({}), ["refusal to r", "damaged"]);
  assert.deepEqual(keeper.shards, []);
});

Deno.test("keeper: drop and clear give the memory back", () => {
  const keeper = keeperWith(20);
  keeper.step({ type: "drop", firstLayer: 0, endLayer: 1 });
  assert.deepEqual(steps(keeper), [20]);
  keeper.step({ type: "drop", ...RANGE });
  assert.equal(keeper.bytes, 0);
  const other = keeperWith(20);
  other.step({ type: "clear" });
  assert.equal(other.bytes, 0);
  // After a rewind the same peer keeps an earlier step.
  other.step({ type: "expect", expectation: expectation(10) });
  assert.deepEqual(keep(other, shardAt(10)), ["kept to a", "kept"]);
});
