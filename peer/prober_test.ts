// A probe over loopback wires of known delay and rate, with a hand-set clock: what it tells, how much it sends, and when it gives up.
import assert from "node:assert/strict";
import type { ChannelLink } from "./net/channel_link.ts";
import { ManualClock } from "./net/clock.ts";
import { type LoopbackOptions, loopbackPair } from "./net/loopback.ts";
import { OPEN_MS, PROBE_BYTES, PROBE_MS, Prober } from "./prober.ts";
import type { PeerMessage } from "./wire/control.ts";
import { decodeFrame } from "./wire/frame.ts";

interface World {
  clock: ManualClock;
  prober: Prober;
  said: PeerMessage[];
  /** Bytes of the frames that arrived at the other end. */
  arrived: number[];
  connected: string[];
  /** False: nothing comes of a connection. */
  link: { a: ChannelLink; opens: boolean; allowed: boolean };
  run(ms: number): Promise<void>;
}

function world(options: LoopbackOptions = {}): World {
  const clock = new ManualClock();
  const { a, b } = loopbackPair({ ...options, clock });
  const link = { a, opens: true, allowed: true };
  const [said, arrived, connected]: [PeerMessage[], number[], string[]] = [[], [], []];
  b.onframe = (bytes) => {
    const frame = decodeFrame(bytes);
    assert.ok(frame.ok && frame.value.header.kind === "probe");
    arrived.push(frame.value.payload.length);
  };
  const prober = new Prober({
    ...{ self: "a", incarnation: 3, iceServers: [], clock, say: (message) => said.push(message) },
    mayProbe: () => link.allowed,
    host: {
      connect: (remote, { initiator }) => connected.push(`${remote} ${initiator}`),
      send: (_, frame, priority) => {
        assert.equal(priority, 2, "it goes in front of something");
        a.send(frame, priority);
      },
      stats: () => Promise.resolve(link.opens && a.state === "open" ? { b: a.stats() } : {}),
    },
  });
  async function run(ms: number): Promise<void> {
    for (let passed = 0; passed < ms; passed += 5) {
      clock.advance(5);
      // The link's figures come by a promise.
      await Promise.resolve();
      await Promise.resolve();
    }
  }
  return { clock, prober, said, arrived, connected, link, run };
}

function told(said: PeerMessage[]) {
  const [message] = said;
  assert.ok(said.length === 1 && message?.type === "probed" && message.peer === "b", JSON.stringify(said));
  return message.link;
}

Deno.test("prober: delay and rate of a wire, within a tenth", async () => {
  for (const [delayMs, bytesPerS] of [[50, 2_500_000], [5, 10_000_000], [100, 5_000_000]] as const) {
    const { prober, said, arrived, connected, run } = world({ delayMs, bytesPerS });
    prober.order("b");
    await run(PROBE_MS + 200);
    const link = told(said)!;
    assert.deepEqual([link.peer, link.path, connected], ["b", "loopback", ["b true"]]);
    assert.ok(Math.abs(link.rttMs - 2 * delayMs) <= 5, `${link.rttMs} ms`);
    const error = link.upBytesPerS / bytesPerS;
    assert.ok(error > 0.9 && error < 1.1, `${link.upBytesPerS} of ${bytesPerS} bytes per second`);
    assert.deepEqual(arrived, PROBE_BYTES);
  }
});

Deno.test("prober: on a narrow line only what fits in its second is sent", async () => {
  const slow = world({ delayMs: 20, bytesPerS: 60_000 });
  slow.prober.order("b");
  await slow.run(PROBE_MS + 200);
  assert.deepEqual(slow.arrived, PROBE_BYTES.slice(0, 1));
  assert.ok(Math.abs(told(slow.said)!.upBytesPerS / 60_000 - 1) < 0.1);
  const crawling = world({ delayMs: 20, bytesPerS: 5_000 });
  crawling.prober.order("b");
  await crawling.run(PROBE_MS + 200);
  assert.equal(told(crawling.said)!.upBytesPerS, 0, "nothing had arrived whole");
});

Deno.test("prober: a link that does not come about, and one that breaks, are told without figures", async () => {
  const none = world();
  none.link.opens = false;
  none.prober.order("b");
  await none.run(OPEN_MS - 50);
  assert.deepEqual(none.said, []);
  await none.run(100);
  assert.equal(told(none.said), undefined);
  const broken = world({ bytesPerS: 50_000 });
  broken.prober.order("b");
  await broken.run(100);
  broken.link.a.close("gone");
  await broken.run(100);
  assert.equal(told(broken.said), undefined);
});

Deno.test("prober: nothing is connected or sent for a peer whose owner paused it, also in the middle", async () => {
  const paused = world();
  paused.link.allowed = false;
  paused.prober.order("b");
  await paused.run(100);
  assert.deepEqual([told(paused.said), paused.connected, paused.arrived], [undefined, [], []]);
  const later = world({ delayMs: 50, bytesPerS: 2_500_000 });
  later.prober.order("b");
  await later.run(200);
  const before = later.arrived.length;
  assert.ok(before < PROBE_BYTES.length);
  later.link.allowed = false;
  await later.run(PROBE_MS);
  assert.ok(later.arrived.length <= before + 1 && told(later.said)!.rttMs > 0);
});

Deno.test("prober: once for one link, a few at a time, and silent after its end", async () => {
  const { prober, said, connected, run } = world({ delayMs: 50 });
  for (const peer of ["b", "b", "c", "d", "e", "f"]) prober.order(peer);
  assert.deepEqual(connected, ["b true", "c true", "d true", "e true"]);
  assert.deepEqual(said, [{ type: "probed", peer: "f" }]);
  prober.order("a");
  assert.deepEqual(said[1], { type: "probed", peer: "a" }, "no link to itself");
  prober.close();
  await run(OPEN_MS + 100);
  prober.order("g");
  assert.equal(said.length, 2);
});
