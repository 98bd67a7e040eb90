// The sender's pace: a tenth of the uplink over any stretch of time, keepers in turn, restores at once, nothing to a full link.
import assert from "node:assert/strict";
import fc from "fast-check";
import { chunkHashes, CONTENT_CHUNK_BYTES } from "../exact/chunk_hashes.ts";
import { cutShards } from "../exact/parity.ts";
import type { KeptShard } from "./keeper_reception.ts";
import { type Parcel, SnapshotSender, UPLINK_SHARE } from "./keeper_sender.ts";
import { decodeSnapshot, SNAPSHOT_MESSAGE_BYTES_MAX, type SnapshotMessage } from "./keeper_wire.ts";

const C = CONTENT_CHUNK_BYTES;

function shardsOf(step = 20, chunks = 8, firstLayer = 0): KeptShard[] {
  const file = Uint8Array.from({ length: chunks * C }, (_, i) => (i * 7 + step) >> 2);
  const shards = cutShards(file, { step, firstLayer, endLayer: firstLayer + 2, k: 2 });
  return shards.map((shard) => ({ ...shard, hashes: chunkHashes(shard.bytes) }));
}

function read({ bytes }: Parcel): SnapshotMessage {
  const decoded = decodeSnapshot(bytes);
  assert.ok(decoded.ok);
  return decoded.value;
}

function label(parcel: Parcel): string {
  const message = read(parcel);
  return `${parcel.to} ${message.type}${message.type === "chunk" ? ` ${message.chunk}` : ""}`;
}

function all(shard: KeptShard): number[] {
  return shard.hashes.map((_, i) => i);
}

/** Calls take() as a shell does until nothing is left to send or `ms` have passed. */
function drain(sender: SnapshotSender, from: number, ms: number): { sent: string[]; now: number } {
  const sent: string[] = [];
  let now = from;
  for (let wait: number | null = 0; wait !== null && now <= from + ms; wait = sender.waitMs(now)) {
    now += wait;
    sent.push(...sender.take(now).map(label));
  }
  return { sent, now };
}

Deno.test("sender: never above its share of the uplink, whenever it is asked", () => {
  const uplink = fc.integer({ min: 10_000, max: 100_000_000 });
  const gaps = fc.array(fc.nat({ max: 400 }), { minLength: 20, maxLength: 60 });
  const [shard] = shardsOf(20, 64);
  assert.ok(UPLINK_SHARE <= 0.1);
  fc.assert(
    fc.property(uplink, gaps, (bytesPerS, gaps) => {
      const sender = new SnapshotSender();
      sender.setUplink(bytesPerS);
      sender.add("b", shard!);
      const log: { at: number; bytes: number }[] = [];
      let now = 1000;
      for (const gap of gaps) {
        now += gap;
        const parcels = sender.take(now);
        for (const { bytes } of parcels) log.push({ at: now, bytes: bytes.length });
        const offered = parcels.some((parcel) => read(parcel).type === "offer");
        if (offered) sender.message("b", { type: "want", id: shard!.id, chunks: all(shard!) });
      }
      const rate = bytesPerS * UPLINK_SHARE;
      for (const [i, { at }] of log.entries()) {
        let sum = 0;
        for (const later of log.slice(i)) {
          sum += later.bytes;
          const allowed = rate * (later.at - at + 50) / 1000 + C + 48;
          assert.ok(sum <= Math.max(allowed, 1) + 1, `${sum} bytes in ${later.at - at} ms`);
        }
      }
    }),
    { seed: 43, numRuns: 60 },
  );
});

Deno.test("sender: an offer that nobody answers is made again, ever more seldom, and not once it is answered", () => {
  const sender = new SnapshotSender();
  const [shard] = shardsOf();
  sender.add("k", shard!);
  const at: number[] = [];
  for (let now = 0; now <= 3_000; now += 10) for (const _ of sender.take(now)) at.push(now);
  assert.deepEqual(at, [10, 210, 610, 1_410]);
  assert.equal(sender.waitMs(3_000), 10);
  sender.message("k", { type: "want", id: shard!.id, chunks: [0] });
  assert.deepEqual(drain(sender, 3_000, 20_000).sent, ["k chunk 0"]);
  assert.equal(sender.waitMs(40_000), null);
});

Deno.test("sender: a newer snapshot of the stage takes the place of one that nobody answered, a restore goes on", () => {
  const sender = new SnapshotSender();
  const [shard] = shardsOf();
  sender.add("gone", shard!);
  sender.add("k", shard!, { urgent: true });
  sender.giveUp({ firstLayer: shard!.id.firstLayer, endLayer: shard!.id.endLayer + 1 });
  assert.equal(sender.pending, 2);
  sender.giveUp(shard!.id);
  assert.deepEqual([...sender.take(0), ...sender.take(1_000)].map(({ to }) => to), ["k", "k"]);
});

Deno.test("sender: uses what it may, in turn over its keepers", () => {
  const sender = new SnapshotSender();
  sender.setUplink(10 * C);
  const shards = shardsOf();
  shards.forEach((shard, i) => sender.add(`k${i}`, shard));
  const offers = { sent: [...sender.take(0), ...sender.take(100)].map(label), now: 100 };
  assert.deepEqual(offers.sent, ["k0 offer", "k1 offer", "k2 offer"]);
  shards.forEach((shard, i) =>
    assert.equal(sender.message(`k${i}`, { type: "want", id: shard.id, chunks: [1, 3] }), null)
  );
  const { sent, now } = drain(sender, offers.now, 60_000);
  assert.deepEqual(sent, [
    "k0 chunk 1",
    "k1 chunk 1",
    "k2 chunk 1",
    "k0 chunk 3",
    "k1 chunk 3",
    "k2 chunk 3",
  ]);
  // The first message goes on credit, so five chunks at one a second.
  assert.ok(now - offers.now > 4_900 && now - offers.now < 5_200, `${now - offers.now} ms`);
  assert.deepEqual(sender.counts, { bytes: sender.counts.bytes, chunksSent: 6, chunksSpared: 6 });
  assert.equal(sender.pending, 3);
  for (const [i, shard] of shards.entries()) {
    const outcome = sender.message(`k${i}`, { type: "kept", id: shard.id });
    assert.deepEqual(outcome, { to: `k${i}`, shard, kept: true, urgent: false, reason: "" });
  }
  assert.equal(sender.pending, 0);
});

Deno.test("sender: an idle hour saves up no more than a burst, a clock that steps back gives nothing", () => {
  const sender = new SnapshotSender();
  sender.setUplink(10 * C);
  const [shard] = shardsOf();
  sender.take(0);
  sender.add("b", shard!);
  assert.deepEqual(sender.take(3_600_000).map(label), ["b offer"]);
  sender.message("b", { type: "want", id: shard!.id, chunks: all(shard!) });
  assert.equal(sender.take(3_600_001).length, 1);
  assert.equal(sender.take(3_600_002).length, 0);
  assert.equal(sender.take(1_000).length, 0);
  assert.equal(sender.take(1_500).length, 0);
  assert.equal(sender.take(2_100).length, 1);
});

Deno.test("sender: a restore is not paced, and waits for a full link only", () => {
  const sender = new SnapshotSender();
  sender.setUplink(10);
  const [shard] = shardsOf(20, 80);
  sender.add("r", shard!, { urgent: true });
  assert.deepEqual(sender.take(0, new Set(["r"])), []);
  assert.deepEqual(sender.take(0).map(label), ["r offer"]);
  sender.message("r", { type: "want", id: shard!.id, chunks: all(shard!) });
  const sent = drain(sender, 1, 1_000).sent;
  assert.deepEqual(sent, all(shard!).map((i) => `r chunk ${i}`));
});

Deno.test("sender: a full link to one keeper does not hold the others up", () => {
  const sender = new SnapshotSender();
  sender.setUplink(1e9);
  shardsOf().forEach((shard, i) => sender.add(`k${i}`, shard));
  sender.take(0);
  assert.deepEqual(sender.take(10, new Set(["k0"])).map(label), ["k1 offer", "k2 offer"]);
  assert.ok(sender.waitMs(11)! > 0);
  assert.deepEqual(sender.take(20).map(label), ["k0 offer"]);
});

Deno.test("sender: a new link begins with the offer, a second want adds what was damaged", () => {
  const sender = new SnapshotSender();
  sender.setUplink(1e9);
  const [shard] = shardsOf();
  sender.add("b", shard!);
  sender.take(0);
  assert.deepEqual(sender.take(10).map(label), ["b offer"]);
  sender.message("b", { type: "want", id: shard!.id, chunks: all(shard!) });
  sender.linkOpened("x");
  sender.linkOpened("b");
  assert.deepEqual(sender.take(20).map(label), ["b offer"]);
  sender.message("b", { type: "want", id: shard!.id, chunks: [2] });
  sender.message("b", { type: "want", id: shard!.id, chunks: [0, 2] });
  assert.deepEqual(sender.take(30).map(label), ["b chunk 2", "b chunk 0"]);
  sender.gone("b");
  assert.equal(sender.pending, 0);
});

Deno.test("sender: a newer snapshot of a stage replaces the older one on its way, other stages go on", () => {
  const sender = new SnapshotSender();
  sender.setUplink(1e9);
  const [old, next, other] = [shardsOf(20)[0]!, shardsOf(40)[0]!, shardsOf(20, 8, 2)[0]!];
  for (const shard of [old, other, next]) sender.add("b", shard);
  sender.take(0);
  const steps = sender.take(10).map((parcel) => read(parcel).id);
  assert.deepEqual(steps, [other.id, next.id]);
});

Deno.test("sender: answers about what was not offered are forged, a refusal ends a shard", () => {
  const sender = new SnapshotSender();
  const [shard, stranger] = [shardsOf()[0]!, shardsOf(40)[0]!];
  sender.add("b", shard);
  const code = (from: string, message: SnapshotMessage) => {
    const answer = sender.message(from, message);
    return answer !== null && "kind" in answer ? `${answer.kind}: ${answer.code}` : answer;
  };
  const kept = { type: "kept", id: shard.id } as const;
  assert.equal(code("b", kept), "forged: bad-snapshot");
  drain(sender, 0, 1_000);
  assert.equal(code("z", kept), "forged: bad-snapshot");
  assert.equal(code("b", { type: "kept", id: stranger.id }), "forged: bad-snapshot");
  assert.equal(sender.pending, 1);
  const refused = sender.message("b", { type: "refusal", id: shard.id, reason: "full" });
  assert.deepEqual(refused, { to: "b", shard, kept: false, urgent: false, reason: "full" });
  assert.equal(sender.pending, 0);
});

Deno.test("sender: no message exceeds the bound that links are told", () => {
  const sender = new SnapshotSender();
  const [shard] = shardsOf();
  sender.add("b", shard!, { urgent: true });
  sender.take(0);
  sender.message("b", { type: "want", id: shard!.id, chunks: all(shard!) });
  assert.ok(sender.take(1).every(({ bytes }) => bytes.length <= SNAPSHOT_MESSAGE_BYTES_MAX));
});
