// The link's own duties over a channel in the test's hand: windows, coded ends, and what it does with foreign
// messages.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../wire/errors.ts";
import { FRAME_BYTES_MAX } from "../wire/frame.ts";
import {
  type Channel,
  CHANNEL_URGENT_BYTES_MAX,
  ChannelLink,
  GOODBYE_FLUSH_MS,
  LINK_QUEUE_FRAMES_MAX,
} from "./channel_link.ts";
import {
  type Chunk,
  CHUNK_BYTES_MAX,
  controlChunk,
  decodeChunk,
  encodeChunk,
  GOODBYE_BYTES_MAX,
} from "./chunks.ts";
import { ManualClock } from "./clock.ts";
import { PING_INTERVAL_MS } from "./pulse.ts";

/** Keeps what it is given until drain(). */
class HeldChannel implements Channel {
  bufferedAmount = 0;
  bufferedAmountLowThreshold = -1;
  onbufferedamountlow: ((event: never) => void) | null = null;
  sent: Uint8Array[] = [];
  broken = false;

  send(bytes: Uint8Array<ArrayBuffer>): void {
    if (this.broken) throw new Error("channel is closing");
    this.sent.push(bytes);
    this.bufferedAmount += bytes.length;
  }

  drain(): void {
    this.bufferedAmount = 0;
    this.onbufferedamountlow?.(undefined as never);
  }

  chunks(): Chunk[] {
    return this.sent.map((bytes) => {
      const chunk = decodeChunk(bytes);
      assert.ok(chunk.ok);
      return chunk.value;
    });
  }
}

function openLink() {
  const clock = new ManualClock();
  const channel = new HeldChannel();
  const torn: number[] = [];
  const link = new ChannelLink({
    remote: "r",
    path: "direct",
    clock,
    teardown: () => torn.push(clock.now()),
  });
  link.opened(channel);
  // The first ping is gone.
  channel.drain();
  channel.sent = [];
  return { clock, channel, link, torn };
}

function codeOf(action: () => void): string {
  try {
    action();
    return "nothing";
  } catch (error) {
    return error instanceof ShoalError ? error.code : String(error);
  }
}

Deno.test("channel link: bulk enters an empty channel only, one chunk at a time", () => {
  const { channel, link } = openLink();
  link.send(new Uint8Array(500_000), 2);
  assert.equal(channel.sent.length, 1);
  assert.equal(channel.bufferedAmountLowThreshold, 0);
  channel.drain();
  assert.equal(channel.sent.length, 2);
});

Deno.test("channel link: urgent frames fill their window and no more", () => {
  const { channel, link } = openLink();
  link.send(new Uint8Array(2_000_000), 0);
  assert.ok(channel.bufferedAmount > CHANNEL_URGENT_BYTES_MAX);
  assert.ok(channel.bufferedAmount <= CHANNEL_URGENT_BYTES_MAX + CHUNK_BYTES_MAX);
  assert.equal(channel.bufferedAmountLowThreshold, CHANNEL_URGENT_BYTES_MAX);
});

Deno.test("channel link: an urgent frame enters beside a bulk chunk at once", () => {
  const { channel, link } = openLink();
  link.send(new Uint8Array(500_000), 2);
  link.send(new Uint8Array(10), 0);
  assert.deepEqual(channel.chunks().map((chunk) => chunk.priority), [2, 0]);
});

Deno.test("channel link: who made the channel sends pings alone until the other end is heard", () => {
  const clock = new ManualClock();
  const link = new ChannelLink({
    ...{ remote: "r", path: "direct" as const, clock, teardown: () => {} },
    waitsForOther: true,
  });
  const channel = new HeldChannel();
  link.opened(channel);
  link.send(new Uint8Array(3), 0);
  clock.advance(PING_INTERVAL_MS);
  assert.deepEqual(channel.chunks().map((chunk) => chunk.type), ["ping", "ping"]);
  link.receive(encodeChunk(controlChunk("ping", 1)));
  assert.deepEqual(channel.chunks().map((chunk) => chunk.type), ["ping", "ping", "data", "pong"]);
});

Deno.test("channel link: frames sent while connecting leave when it opens", () => {
  const link = new ChannelLink({ remote: "r", path: "direct", clock: new ManualClock(), teardown: () => {} });
  link.send(new Uint8Array(3), 0);
  assert.equal(link.bufferedBytes, 3);
  const channel = new HeldChannel();
  link.opened(channel);
  assert.deepEqual(channel.chunks().map((chunk) => chunk.type), ["ping", "data"]);
});

Deno.test("channel link: too large a frame and too many frames are link-overflow", () => {
  const { link } = openLink();
  assert.equal(codeOf(() => link.send(new Uint8Array(FRAME_BYTES_MAX + 1), 0)), "link-overflow");
  link.send(new Uint8Array(100_000), 2);
  let held = 1;
  while (codeOf(() => link.send(new Uint8Array(1), 2)) === "nothing") held++;
  assert.equal(held, LINK_QUEUE_FRAMES_MAX);
  assert.equal(link.state, "open");
});

Deno.test("channel link: a channel that refuses bytes closes the link as link-closed", () => {
  const { channel, link, torn } = openLink();
  channel.broken = true;
  link.send(new Uint8Array(1), 0);
  assert.match(link.reason, /^link-closed: .*channel is closing/);
  assert.equal(torn.length, 1);
});

Deno.test("channel link: the goodbye gets its time to leave, and no more", () => {
  for (const drains of [true, false]) {
    const { clock, channel, link, torn } = openLink();
    link.close("enough");
    assert.deepEqual([link.state, torn.length], ["closed", 0]);
    if (drains) channel.drain();
    clock.advance(GOODBYE_FLUSH_MS / 2);
    assert.equal(torn.length, drains ? 1 : 0);
    clock.advance(GOODBYE_FLUSH_MS);
    assert.equal(torn.length, 1);
    const [goodbye] = channel.chunks();
    assert.equal(new TextDecoder().decode(goodbye!.payload), "enough");
  }
});

Deno.test("channel link: a reason longer than a goodbye is cut", () => {
  const { channel, link } = openLink();
  link.close("x".repeat(GOODBYE_BYTES_MAX * 2));
  assert.equal(channel.chunks()[0]!.payload.length, GOODBYE_BYTES_MAX);
});

Deno.test("channel link: a ping is answered with its token, a foreign pong is ignored", () => {
  const { channel, link } = openLink();
  link.receive(encodeChunk(controlChunk("ping", 77)));
  assert.deepEqual(channel.chunks().map(({ type, id }) => [type, id]), [["pong", 77]]);
  link.receive(encodeChunk(controlChunk("pong", 12345)));
  assert.deepEqual([link.state, link.stats().rttMs], ["open", 0]);
});

Deno.test("channel link: a relay's chunk has no place here", () => {
  for (const type of ["hello", "ack"] as const) {
    const { link } = openLink();
    link.receive(encodeChunk(controlChunk(type, 1)));
    assert.match(link.reason, /^bad-frame/);
  }
});

Deno.test("channel link: random messages never throw; the link lives or closes with a code", () => {
  const message = fc.oneof(
    fc.uint8Array({ maxLength: 64 }),
    fc.tuple(fc.nat(5), fc.nat(3), fc.nat(2), fc.nat(20)).map(([type, id, priority, size]) => {
      const bytes = encodeChunk(controlChunk("ping", id, { total: size, payload: new Uint8Array(size) }));
      bytes[14] = type;
      bytes[12] = priority;
      return bytes;
    }),
  );
  fc.assert(
    fc.property(fc.array(message, { maxLength: 8 }), (messages) => {
      const { link } = openLink();
      for (const bytes of messages) link.receive(bytes);
      if (link.state === "closed") {
        assert.match(link.reason, /^(bad-frame|wrong-version|the other end closed)/);
      }
    }),
    { seed: 20240614, numRuns: 1000 },
  );
});
