// The acceptance suite over the relay link, and its greeting and window under a manual clock.
import assert from "node:assert/strict";
import { controlChunk, encodeChunk } from "./chunks.ts";
import { ManualClock } from "./clock.ts";
import { LINK_CASES, type LinkPair, runLinkCase, untilOpen } from "./link_suite.ts";
import { RELAY_BULK_BYTES_MAX, RELAY_CONNECT_TIMEOUT_MS, RelayLink } from "./relay.ts";

const QUIET_MS = 60;

async function makePair(): Promise<LinkPair> {
  const deliver = (to: () => RelayLink, bytes: Uint8Array) => queueMicrotask(() => to().receiveRelay(bytes));
  const a: RelayLink = new RelayLink({ remote: "b", sendRelay: (_, bytes) => deliver(() => b, bytes) });
  const b: RelayLink = new RelayLink({ remote: "a", sendRelay: (_, bytes) => deliver(() => a, bytes) });
  await Promise.all([untilOpen(a), untilOpen(b)]);
  return {
    a,
    b,
    inject: (bytes) => b.receiveRelay(bytes),
    dispose: async () => {
      a.close("test over");
      b.close("test over");
      await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
    },
  };
}

for (const linkCase of LINK_CASES) {
  Deno.test(`relay: ${linkCase.name}`, () => runLinkCase(linkCase, makePair));
}

/** A wire with a delay on a manual clock, which counts the bytes that are on their way. */
class SlowWire {
  inFlight = 0;
  peak = 0;
  clock: ManualClock;
  delayMs: number;

  constructor(clock: ManualClock, delayMs: number) {
    this.clock = clock;
    this.delayMs = delayMs;
  }

  carry(bytes: Uint8Array, deliver: (bytes: Uint8Array) => void): void {
    this.inFlight += bytes.length;
    this.peak = Math.max(this.peak, this.inFlight);
    this.clock.after(this.delayMs, () => {
      this.inFlight -= bytes.length;
      deliver(bytes);
    });
  }
}

function slowPair(clock: ManualClock, nonces: [number, number] = [11, 22]) {
  const wire = new SlowWire(clock, 50);
  const a: RelayLink = new RelayLink({
    remote: "b",
    clock,
    nonce: nonces[0],
    sendRelay: (_, bytes) => wire.carry(bytes, (arrived) => b.receiveRelay(arrived)),
  });
  const b: RelayLink = new RelayLink({
    remote: "a",
    clock,
    nonce: nonces[1],
    sendRelay: (_, bytes) => wire.carry(bytes, (arrived) => a.receiveRelay(arrived)),
  });
  return { a, b, wire };
}

Deno.test("relay: bytes in flight stay within the window however slow the way is", () => {
  const clock = new ManualClock();
  const { a, b, wire } = slowPair(clock);
  let arrived = 0;
  b.onframe = (frame) => arrived += frame.length;
  a.send(new Uint8Array(3_000_000), 2);
  clock.advance(10_000);
  assert.equal(arrived, 3_000_000);
  // The window, the chunk that crossed its edge, and a few control chunks.
  assert.ok(wire.peak <= RELAY_BULK_BYTES_MAX + 61_440 + 200, `${wire.peak} bytes were in flight`);
});

Deno.test("relay: opens although the first greetings found nobody", () => {
  const clock = new ManualClock();
  let later: RelayLink | null = null;
  const a: RelayLink = new RelayLink({
    remote: "b",
    clock,
    nonce: 5,
    sendRelay: (_, bytes) => clock.after(10, () => later?.receiveRelay(bytes)),
  });
  clock.advance(3_000);
  assert.equal(a.state, "connecting");
  later = new RelayLink({
    remote: "a",
    clock,
    nonce: 6,
    sendRelay: (_, bytes) => clock.after(10, () => a.receiveRelay(bytes)),
  });
  clock.advance(1_000);
  assert.deepEqual([a.state, later.state], ["open", "open"]);
});

Deno.test("relay: silence closes with link-timeout", () => {
  const clock = new ManualClock();
  const a = new RelayLink({ remote: "b", clock, nonce: 5, sendRelay: () => {} });
  clock.advance(RELAY_CONNECT_TIMEOUT_MS + 1_000);
  assert.match(a.reason, /^link-timeout/);
});

Deno.test("relay: a carrier that throws closes with link-closed", () => {
  const clock = new ManualClock();
  const a = new RelayLink({
    remote: "b",
    clock,
    nonce: 5,
    sendRelay: () => {
      throw new Error("socket gone");
    },
  });
  clock.advance(1);
  assert.match(a.reason, /^link-closed: .*socket gone/);
});

Deno.test("relay: another nonce means another link, and this one closes", () => {
  const clock = new ManualClock();
  const { a, b } = slowPair(clock);
  clock.advance(1_000);
  assert.equal(a.state, "open");
  a.receiveRelay(encodeChunk(controlChunk("hello", 99)));
  assert.match(a.reason, /^link-closed: the other end started anew/);
  assert.equal(b.state, "open");
});

Deno.test("relay: data before the greeting belongs to an earlier link and is dropped", () => {
  const clock = new ManualClock();
  const { a } = slowPair(clock);
  let frames = 0;
  a.onframe = () => frames++;
  const stale = encodeChunk({
    type: "data",
    id: 7,
    offset: 0,
    total: 3,
    priority: 0,
    payload: new Uint8Array(3),
  });
  a.receiveRelay(stale);
  clock.advance(1_000);
  assert.deepEqual([a.state, frames], ["open", 0]);
});

Deno.test("relay: acknowledging what was never sent closes with bad-frame", () => {
  const clock = new ManualClock();
  const { a } = slowPair(clock);
  clock.advance(1_000);
  a.receiveRelay(encodeChunk(controlChunk("ack", 1_000_000)));
  assert.match(a.reason, /^bad-frame/);
});
