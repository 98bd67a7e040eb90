// Tests of the rate at the wire: real links over a channel that only counts, on a clock that the test moves. Bytes are counted,
// nothing is timed.
import assert from "node:assert/strict";
import { type Channel, CHANNEL_URGENT_BYTES_MAX, ChannelLink } from "./channel_link.ts";
import { CHUNK_BYTES_MAX, controlChunk, decodeChunk, encodeChunk } from "./chunks.ts";
import { ManualClock } from "./clock.ts";
import { Pacer, TokenBucket } from "./pacer.ts";

/** Shows that the other end lives. */
const PONG = encodeChunk(controlChunk("pong", 0));

/** Takes everything at once, as a fast line does. */
class Wire implements Channel {
  readonly bufferedAmount = 0;
  bufferedAmountLowThreshold = 0;
  onbufferedamountlow: ((event: never) => void) | null = null;
  sent: { at: number; bytes: number; data: boolean }[] = [];
  readonly #clock: ManualClock;

  constructor(clock: ManualClock) {
    this.#clock = clock;
  }

  send(bytes: Uint8Array<ArrayBuffer>): void {
    const chunk = decodeChunk(bytes);
    const data = chunk.ok && chunk.value.type === "data";
    this.sent.push({ at: this.#clock.now(), bytes: bytes.length, data });
  }
}

function open(clock: ManualClock, pacer: Pacer): { link: ChannelLink; wire: Wire } {
  const link = new ChannelLink({ remote: "b", path: "direct", clock, pacer, teardown: () => {} });
  const wire = new Wire(clock);
  link.opened(wire);
  return { link, wire };
}

/** Bytes of both wires up to `at`. */
function before(wires: Wire[], at: number): number {
  return wires.flatMap((wire) => wire.sent).filter((it) => it.at <= at).reduce(
    (sum, it) => sum + it.bytes,
    0,
  );
}

Deno.test("pacer: all links together keep below the rate at every moment, and nothing is lost", function test() {
  const clock = new ManualClock();
  const pacer = new Pacer(clock);
  const rate = 200_000;
  pacer.setRate(rate);
  const ends = [open(clock, pacer), open(clock, pacer)];
  // Answers, so that neither link takes the silence for the other end's death.
  const pong = () => ends.forEach(({ link }) => link.receive(PONG));
  for (const { link } of ends) link.send(new Uint8Array(500_000), 1);
  for (let ms = 0; ms < 8_000; ms += 100) {
    pong();
    clock.advance(100);
    const most = rate * 0.25 + rate * clock.now() / 1000 + 2 * CHUNK_BYTES_MAX;
    assert.ok(before(ends.map(({ wire }) => wire), clock.now()) <= most, `${clock.now()} ms`);
  }
  for (const { wire } of ends) {
    const data = wire.sent.filter(({ data }) => data).reduce((sum, { bytes }) => sum + bytes, 0);
    assert.ok(data >= 500_000, `${data} bytes went in 8 s`);
  }
  assert.equal(pacer.up, before(ends.map(({ wire }) => wire), Infinity));
  assert.equal(pacer.down, 80 * 2 * PONG.length);
});

Deno.test("pacer: urgent frames go ahead of bulk, and no further than their share of a channel", function test() {
  const clock = new ManualClock();
  const pacer = new Pacer(clock);
  pacer.setRate(50_000);
  const { link, wire } = open(clock, pacer);
  link.send(new Uint8Array(2_000_000), 2);
  link.send(new Uint8Array(2_000_000), 0);
  const urgent = before([wire], 0);
  assert.ok(urgent > CHANNEL_URGENT_BYTES_MAX, `${urgent}`);
  assert.ok(urgent <= CHANNEL_URGENT_BYTES_MAX + 50_000 * 0.25 + 2 * CHUNK_BYTES_MAX, `${urgent}`);
});

Deno.test("pacer: without a rate everything goes at once; a rate that is lifted lets the rest go", function test() {
  const clock = new ManualClock();
  const pacer = new Pacer(clock);
  const { link, wire } = open(clock, pacer);
  link.send(new Uint8Array(1_000_000), 1);
  assert.ok(before([wire], 0) > 1_000_000);
  pacer.setRate(1_000);
  link.send(new Uint8Array(1_000_000), 1);
  clock.advance(300);
  assert.ok(before([wire], Infinity) < 1_100_000);
  pacer.setRate(null);
  clock.advance(300);
  assert.ok(before([wire], Infinity) > 2_000_000);
});

Deno.test("pacer: what waits for the rate alone is no sign of life of the other end", function test() {
  const clock = new ManualClock();
  const pacer = new Pacer(clock);
  pacer.setRate(50_000);
  const { link } = open(clock, pacer);
  link.send(new Uint8Array(2_000_000), 1);
  clock.advance(10_000);
  assert.equal(link.state, "closed");
  assert.match(link.reason, /link-timeout/);
});

Deno.test("bucket: a quiet time saves up a quarter of a second and no more", function test() {
  const clock = new ManualClock();
  const bucket = new TokenBucket(clock);
  bucket.take(1e9);
  bucket.setRate(1_000);
  assert.equal(bucket.owed, 0, "what went before the rate is not owed");
  clock.advance(60_000);
  bucket.take(1_250);
  assert.equal(bucket.owed, 1_000);
  assert.equal(bucket.waitMs(), 1_000);
  assert.equal(bucket.waitMs(400), 600);
  bucket.setRate(2_000);
  assert.equal(bucket.waitMs(), 500, "what is owed stays owed");
  bucket.setRate(null);
  assert.equal(bucket.waitMs(), 0);
});
