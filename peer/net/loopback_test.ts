// The acceptance suite over the loopback link, and what only it can do: delay, rate and death under a manual
// clock.
import assert from "node:assert/strict";
import { ManualClock } from "./clock.ts";
import { LINK_CASES, type LinkPair, runLinkCase } from "./link_suite.ts";
import { loopbackPair } from "./loopback.ts";
import { PAST_NEEDED_MS, PING_INTERVAL_MS, SILENCE_LEAST_MS, SILENCE_UNKNOWN_MS } from "./pulse.ts";

/** Time that a torn down pair needs until its last timer has run. */
const QUIET_MS = 60;

function makePair(): Promise<LinkPair> {
  const pair = loopbackPair();
  return Promise.resolve({
    ...pair,
    dispose: async () => {
      pair.a.close("test over");
      pair.b.close("test over");
      await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
    },
  });
}

for (const linkCase of LINK_CASES) {
  Deno.test(`loopback: ${linkCase.name}`, () => runLinkCase(linkCase, makePair));
}

Deno.test("loopback: delay and rate decide when a frame arrives", () => {
  const clock = new ManualClock();
  const { a, b } = loopbackPair({ delayMs: 50, bytesPerS: 1_000_000, clock });
  const arrivals: number[] = [];
  b.onframe = () => arrivals.push(clock.now());
  a.send(new Uint8Array(100_000), 0);
  clock.advance(140);
  assert.deepEqual(arrivals, []);
  clock.advance(20);
  assert.equal(arrivals.length, 1);
  // 100,000 bytes, two chunk headers and the ping at 1 byte per microsecond, then the delay.
  assert.ok(Math.abs(arrivals[0]! - 150.048) < 0.01, `arrived at ${arrivals[0]}`);
});

Deno.test("loopback: an urgent frame waits for one bulk chunk at most", () => {
  const clock = new ManualClock();
  const { a, b } = loopbackPair({ bytesPerS: 1_000_000, clock });
  const arrivals: number[] = [];
  b.onframe = (frame) => frame.length === 1000 && arrivals.push(clock.now());
  a.send(new Uint8Array(2_000_000), 2);
  clock.advance(500);
  a.send(new Uint8Array(1000), 0);
  clock.advance(500);
  const waitedMs = arrivals[0]! - 500;
  assert.ok(waitedMs <= 61.44 + 1.016 + 0.05, `waited ${waitedMs} ms, a chunk takes 61.44 ms`);
});

Deno.test("loopback: round trip time is twice the delay", () => {
  const clock = new ManualClock();
  const { a } = loopbackPair({ delayMs: 40, clock });
  clock.advance(100);
  assert.equal(a.stats().rttMs, 80);
});

Deno.test("loopback: a link that died silently closes with link-timeout on both ends", () => {
  const clock = new ManualClock();
  const { a, b } = loopbackPair({ delayMs: 5, lossEvery: 3, clock });
  let delivered = 0;
  b.onframe = () => delivered++;
  // Ping and pong are the first two messages of a; everything after them is swallowed.
  clock.advance(100);
  a.send(new Uint8Array(10), 0);
  clock.advance(SILENCE_UNKNOWN_MS + 2 * PING_INTERVAL_MS);
  assert.equal(delivered, 0);
  assert.match(a.reason, /^link-timeout/);
  assert.equal(b.state, "closed");
});

Deno.test("loopback: an idle living link stays open", () => {
  const clock = new ManualClock();
  const { a, b } = loopbackPair({ delayMs: 100, clock });
  clock.advance(300_000);
  assert.deepEqual([a.state, b.state], ["open", "open"]);
});

/** An open pair with a past, so that its limits are the short ones. */
function oldPair(options: { delayMs?: number; bytesPerS?: number } = {}) {
  const clock = new ManualClock();
  const pair = loopbackPair({ delayMs: 20, ...options, clock });
  clock.advance(PAST_NEEDED_MS + PING_INTERVAL_MS);
  return { clock, ...pair };
}

/** A look may come just before the limit, so that the next one notices. */
const NOTICED_MS = SILENCE_LEAST_MS + 2 * PING_INTERVAL_MS;

Deno.test("loopback: a path cut both ways is noticed at both ends in seconds, and nothing gets through", () => {
  const { clock, a, b, cut } = oldPair();
  for (const way of ["ab", "ba"] as const) cut(way);
  clock.advance(SILENCE_LEAST_MS - PING_INTERVAL_MS);
  assert.deepEqual([a.state, b.state], ["open", "open"]);
  clock.advance(NOTICED_MS - SILENCE_LEAST_MS + PING_INTERVAL_MS);
  for (const link of [a, b]) assert.match(link.reason, /^link-timeout: nothing came from/);
});

Deno.test("loopback: a path cut one way is noticed by the end that hears nothing, which tells the other", () => {
  for (const way of ["ab", "ba"] as const) {
    const { clock, a, b, cut } = oldPair();
    const [deaf, mute] = way === "ab" ? [b, a] : [a, b];
    cut(way);
    clock.advance(NOTICED_MS);
    assert.match(deaf.reason, /^link-timeout/);
    assert.match(mute.reason, /^the other end closed: link-timeout/);
  }
});

Deno.test("loopback: a slow line full of bulk data is no dead line", () => {
  // 40 kB/s: one chunk takes one and a half seconds, and a ping behind four of them six.
  const { clock, a, b } = oldPair({ bytesPerS: 40_000 });
  let arrived = 0;
  b.onframe = (frame) => arrived += frame.length;
  for (let i = 0; i < 4; i++) a.send(new Uint8Array(300_000), 0);
  clock.advance(60_000);
  assert.deepEqual([arrived, a.state, b.state], [1_200_000, "open", "open"]);
});

Deno.test("loopback: a dead line with a full queue behind it is noticed as quickly as an idle one", () => {
  const { clock, a, cut } = oldPair({ bytesPerS: 1_000_000 });
  a.send(new Uint8Array(3_000_000), 0);
  clock.advance(1_000);
  for (const way of ["ab", "ba"] as const) cut(way);
  clock.advance(NOTICED_MS);
  assert.match(a.reason, /^link-timeout/);
  assert.equal(a.bufferedBytes, 0);
});
