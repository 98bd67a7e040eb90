// The measured rate of a link against the rate that a loopback wire was given, and what must not count: idle time, small
// frames, a busy answer, bytes that lay in the channel before.
import assert from "node:assert/strict";
import { ManualClock } from "./clock.ts";
import { controlChunk } from "./chunks.ts";
import { Goodput, GOODPUT_FRAME_BYTES } from "./goodput.ts";
import { loopbackPair } from "./loopback.ts";

function chunk(offset: number, bytes: number, total: number, id = 0) {
  return controlChunk("data", id, { offset, total, payload: new Uint8Array(bytes) });
}

Deno.test("goodput: a loopback wire's rate, whatever its delay and however long it idles", () => {
  for (const [bytesPerS, delayMs] of [[250_000, 50], [2_500_000, 0], [2_500_000, 100]] as const) {
    const clock = new ManualClock();
    const { a, b } = loopbackPair({ clock, bytesPerS, delayMs });
    for (let i = 0; i < 400; i++) clock.advance(5);
    assert.equal(a.stats().upBytesPerS, 0, "a rate without a frame");
    for (let sent = 0; sent < 3; sent++) {
      a.send(new Uint8Array(200_000), 0);
      for (let i = 0; i < 600; i++) clock.advance(5);
    }
    const rate = a.stats().upBytesPerS;
    assert.ok(rate > bytesPerS * 0.9 && rate < bytesPerS * 1.1, `${rate} of ${bytesPerS} at ${delayMs} ms`);
    assert.equal(b.stats().upBytesPerS, 0, "the other end sent nothing");
    a.close("done");
  }
});

Deno.test("goodput: a ping is wanted behind the last chunk of one large frame at a time", () => {
  const goodput = new Goodput();
  const at = (now: number, sent = 0, buffered = 0) => ({ now, sent, buffered });
  goodput.roundTrip(10);
  assert.equal(goodput.leaves(chunk(0, 100, 100), at(0)), false, "a small frame");
  assert.equal(goodput.leaves(controlChunk("ping", 1), at(0)), false);
  const total = GOODPUT_FRAME_BYTES;
  assert.equal(goodput.leaves(chunk(0, total - 1, total), at(0)), false, "there is more of the frame");
  assert.equal(goodput.leaves(chunk(0, total, total, 1), at(1)), false, "another frame");
  const bulk = { ...chunk(total - 1, 1, total), priority: 2 as const };
  assert.equal(goodput.leaves(bulk, at(1)), false, "the same number of another priority");
  assert.equal(goodput.leaves(chunk(total - 1, 1, total), at(2, 2 * total - 1)), true);
  assert.equal(goodput.leaves(chunk(0, total, total, 2), at(3)), false, "one is being measured");
  goodput.answered(110);
  // Both frames lay before the ping: 8,192 bytes in 100 ms.
  assert.equal(goodput.bytesPerS, 2 * total / 0.1);
  assert.equal(goodput.leaves(chunk(0, total, total, 3), at(111)), false, "too soon");
  assert.equal(goodput.leaves(chunk(0, total, total, 4), at(400)), true);
});

Deno.test("goodput: what lay in the channel counts, and the quickest of the last 32 is told", () => {
  const goodput = new Goodput();
  goodput.roundTrip(30);
  goodput.roundTrip(20);
  const measure = (id: number, ms: number) => {
    const now = id * 10_000;
    assert.ok(goodput.leaves(chunk(0, 10_000, 10_000, id), { now, sent: 50_000, buffered: 10_000 }));
    goodput.answered(now + ms + 20);
  };
  measure(1, 100);
  assert.equal(goodput.bytesPerS, 200_000);
  for (let id = 2; id <= 32; id++) measure(id, 400);
  assert.equal(goodput.bytesPerS, 200_000);
  measure(33, 400);
  assert.equal(goodput.bytesPerS, 50_000);
});

Deno.test("goodput: without a round trip nothing is known, and an answer that nobody waits for is none", () => {
  const goodput = new Goodput();
  goodput.answered(5);
  assert.ok(goodput.leaves(chunk(0, 10_000, 10_000), { now: 0, sent: 0, buffered: 0 }));
  goodput.answered(50);
  assert.equal(goodput.bytesPerS, 0);
});
