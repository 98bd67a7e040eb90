// The host's decisions under a manual clock, with a coordinator and direct links that are made of timers;
// then once over real WebRTC, directly and by falling back to the relay.
import assert from "node:assert/strict";
import { ShoalError } from "../wire/errors.ts";
import { ChannelLink } from "./channel_link.ts";
import { type Clock, ManualClock, systemClock } from "./clock.ts";
import { createLinkHost, LINK_HOST_LIMITS, type RelayingLinkHost } from "./host.ts";
import { World } from "./host_world.ts";
import { DIRECT_CONNECT_TIMEOUT_MS, simplePeerLinks } from "./simple_peer.ts";
import { PAST_NEEDED_MS, PING_INTERVAL_MS, SILENCE_LEAST_MS } from "./pulse.ts";
import { EARLY_SIGNALS_MAX, EarlySignals, REQUEST, unwrapSignal, wrapSignal } from "./signals.ts";
import { denoStack } from "./wrtc_deno.ts";

const NO_SERVERS = { iceServers: [] };

Deno.test("host: connects directly and delivers what waited, in order", async () => {
  const world = new World();
  const a = world.add("a");
  const b = world.add("b");
  a.connect("b", { initiator: true, ...NO_SERVERS });
  b.connect("a", { initiator: false, ...NO_SERVERS });
  a.send("b", new Uint8Array([1]), 1);
  a.send("b", new Uint8Array([2]), 1);
  world.clock.advance(100);
  assert.deepEqual(world.states("a"), ["a-b connecting", "a-b open"]);
  assert.deepEqual(world.log.filter((line) => line.includes("<")), ["b<a: 1", "b<a: 2"]);
  assert.equal((await a.stats())["b"]!.path, "direct");
  assert.equal(world.relayed, 0);
});

Deno.test("host: an offer that comes before connect() is kept", () => {
  const world = new World();
  world.add("a").connect("b", { initiator: true, ...NO_SERVERS });
  const b = world.add("b");
  world.clock.advance(1_000);
  b.connect("a", { initiator: false, ...NO_SERVERS });
  world.clock.advance(100);
  assert.deepEqual(world.states("b"), ["b-a connecting", "b-a open"]);
});

Deno.test("host: falls back to the relay when no direct path comes up", async () => {
  const world = new World();
  world.blocked = true;
  const a = world.add("a");
  const b = world.add("b");
  a.connect("b", { initiator: true, ...NO_SERVERS });
  b.connect("a", { initiator: false, ...NO_SERVERS });
  b.send("a", new Uint8Array([9]), 0);
  world.clock.advance(DIRECT_CONNECT_TIMEOUT_MS + 500);
  assert.deepEqual(world.states("a"), ["a-b connecting", "a-b open"]);
  assert.deepEqual(world.log.filter((line) => line.includes("<")), ["a<b: 9"]);
  assert.equal((await b.stats())["a"]!.path, "relay");
});

Deno.test("host: without a relay, no direct path means closed with link-timeout", () => {
  const world = new World();
  world.blocked = true;
  const a = world.add("a", false);
  const b = world.add("b", false);
  a.connect("b", { initiator: true, ...NO_SERVERS });
  b.connect("c", { initiator: false, ...NO_SERVERS });
  world.clock.advance(LINK_HOST_LIMITS.offerTimeoutMs + 1);
  assert.match(world.states("a").at(-1)!, /^a-b closed link-timeout/);
  assert.match(world.states("b").at(-1)!, /^b-c closed link-timeout: no offer from c/);
});

Deno.test("host: a factory that throws falls back to the relay", () => {
  const clock = new ManualClock();
  const host = createLinkHost({
    selfId: "a",
    clock,
    createLink: () => {
      throw new Error("no WebRTC here");
    },
    relay: () => {},
  });
  const states: string[] = [];
  host.onstate = (_, state) => states.push(state);
  host.connect("b", { initiator: true, ...NO_SERVERS });
  assert.deepEqual(states, ["connecting"]);
  host.closeAll("done");
  assert.deepEqual(states, ["connecting", "closed"]);
});

Deno.test("host: connects a few at a time and gets to all of them", () => {
  const world = new World();
  const hub = world.add("hub", true, { connectingMax: 2 });
  const names = ["p", "q", "r", "s", "t"];
  for (const name of names) hub.connect(name, { initiator: true, ...NO_SERVERS });
  assert.equal(world.made, 2);
  for (const name of names) world.add(name).connect("hub", { initiator: false, ...NO_SERVERS });
  world.clock.advance(500);
  assert.equal(world.states("hub").filter((line) => line.endsWith("open")).length, names.length);
});

Deno.test("host: a close reaches both ends with its reason, and a new connection works", () => {
  const world = new World();
  const a = world.add("a");
  const b = world.add("b");
  for (let round = 0; round < 2; round++) {
    a.connect("b", { initiator: true, ...NO_SERVERS });
    b.connect("a", { initiator: false, ...NO_SERVERS });
    world.clock.advance(100);
    a.close("b", "leaving");
    world.clock.advance(100);
  }
  const cycle = ["b-a connecting", "b-a open", "b-a closed the other end closed: leaving"];
  assert.deepEqual(world.states("b"), [...cycle, ...cycle]);
});

Deno.test("host: an initiator that lost its link begins again and the other end follows", () => {
  const world = new World();
  world.add("a").connect("b", { initiator: true, ...NO_SERVERS });
  world.add("b").connect("a", { initiator: false, ...NO_SERVERS });
  world.clock.advance(100);
  // The same peer in a new process: it knows nothing of the old link.
  world.log = [];
  world.add("a").connect("b", { initiator: true, ...NO_SERVERS });
  world.clock.advance(100);
  const states = world.states("b");
  assert.deepEqual(states.map((line) => line.split(" ")[1]), ["closed", "connecting", "open"]);
});

Deno.test("host: a greeting over the relay replaces a direct link that only this end believes in", () => {
  const world = new World();
  world.add("a").connect("b", { initiator: true, ...NO_SERVERS });
  world.add("b").connect("a", { initiator: false, ...NO_SERVERS });
  world.clock.advance(100);
  world.log = [];
  world.blocked = true;
  world.add("b").connect("a", { initiator: false, ...NO_SERVERS });
  world.clock.advance(LINK_HOST_LIMITS.offerTimeoutMs + 1_000);
  const states = world.states("a");
  assert.deepEqual(states.map((line) => line.split(" ")[1]), ["closed", "connecting", "open"]);
  assert.equal(world.states("b").at(-1), "b-a open");
});

/** Two peers that keep their link up, long enough that it has a past; the log begins after that. */
function linked(options: { relay?: boolean } = {}): World {
  const world = new World();
  for (const id of ["a", "b"]) world.add(id, options.relay ?? true);
  world.keepLinked("a", "b", true);
  world.keepLinked("b", "a", false);
  world.clock.advance(PAST_NEEDED_MS + 1_000);
  assert.deepEqual([world.states("a").at(-1), world.states("b").at(-1)], ["a-b open", "b-a open"]);
  world.log = [];
  return world;
}

/** Time in which a silent death is noticed by at least one end. */
const NOTICED_MS = SILENCE_LEAST_MS + 2 * PING_INTERVAL_MS;

async function assertWorks(world: World, path: string): Promise<void> {
  for (const [from, to] of [["a", "b"], ["b", "a"]] as const) {
    assert.equal(world.states(from).at(-1), `${from}-${to} open`);
    assert.equal((await world.hosts.get(from)!.stats())[to]!.path, path);
    world.hosts.get(from)!.send(to, new Uint8Array([7]), 0);
  }
  world.clock.advance(100);
  assert.deepEqual(world.log.filter((line) => line.includes("<")).sort(), ["a<b: 7", "b<a: 7"]);
}

for (const cuts of [["a>b"], ["b>a"], ["a>b", "b>a"]]) {
  Deno.test(`host: ${cuts.join(" and ")} cut for good: the link comes back over the relay`, async () => {
    const world = linked();
    for (const cut of cuts) world.cuts.add(cut);
    world.clock.advance(NOTICED_MS + LINK_HOST_LIMITS.repairMs + 1_500);
    await assertWorks(world, "relay");
  });
}

for (const [id, other, initiator] of [["a", "b", true], ["b", "a", false]] as const) {
  Deno.test(`host: ${initiator ? "the initiator" : "the other end"} alone lost the link: it comes back at once, directly`, async () => {
    const world = linked();
    world.loseAt(id, other);
    world.clock.advance(300);
    assert.equal(world.states(other).filter((line) => line.includes("closed")).length, 1);
    assert.equal(world.relayed, 0);
    await assertWorks(world, "direct");
  });
}

Deno.test("host: a link over the relay that only one end lost comes back, directly if it can", async () => {
  const world = new World();
  world.blocked = true;
  for (const id of ["a", "b"]) world.add(id);
  world.keepLinked("a", "b", true);
  world.keepLinked("b", "a", false);
  world.clock.advance(DIRECT_CONNECT_TIMEOUT_MS + 1_000);
  assert.equal((await world.hosts.get("b")!.stats())["a"]!.path, "relay");
  world.blocked = false;
  world.log = [];
  world.hosts.get("b")!.close("a", "link-timeout: the test says so");
  world.clock.advance(1_000);
  await assertWorks(world, "direct");
});

Deno.test("host: a request that is lost costs the repair time, then the relay is tried", async () => {
  const world = linked();
  world.hosts.get("b")!.onsignal = () => {};
  world.loseAt("b", "a");
  world.clock.advance(LINK_HOST_LIMITS.repairMs + 100);
  await assertWorks(world, "relay");
});

Deno.test("host: a request of an earlier attempt, and one from an end that may offer, disturb no link", () => {
  const world = linked();
  const [a, b] = [world.hosts.get("a")!, world.hosts.get("b")!];
  a.signal("b", wrapSignal(0xfffffff, REQUEST));
  b.signal("a", wrapSignal(0, REQUEST));
  world.clock.advance(1_000);
  assert.deepEqual(world.log, []);
});

Deno.test("host: a channel that breaks under the first waiting frame ends in one close and no exception", () => {
  const clock = new ManualClock();
  const link = new BreakingLink(clock);
  const host = createLinkHost({ selfId: "a", clock, createLink: () => link, relay: null });
  const states: string[] = [];
  host.onstate = (_, state) => states.push(state);
  host.connect("b", { initiator: true, ...NO_SERVERS });
  for (let i = 0; i < 3; i++) host.send("b", new Uint8Array(1), 0);
  link.opened({ bufferedAmount: 0, bufferedAmountLowThreshold: 0, onbufferedamountlow: null, send: refuse });
  assert.deepEqual(states, ["connecting", "closed"]);
});

function refuse(): never {
  throw new Error("channel is closing");
}

class BreakingLink extends ChannelLink {
  constructor(clock: ManualClock) {
    super({ remote: "b", path: "direct", clock, teardown: () => {} });
  }

  signal(): void {}
}

Deno.test("host: sends to nobody and too much waiting are refused by code", () => {
  const world = new World();
  const a = world.add("a", true, { pendingBytesMax: 100 });
  const code = (action: () => void) => {
    try {
      action();
      return "nothing";
    } catch (error) {
      return (error as ShoalError).code;
    }
  };
  assert.equal(code(() => a.send("b", new Uint8Array(1), 0)), "link-closed");
  a.connect("b", { initiator: true, ...NO_SERVERS });
  assert.equal(code(() => a.send("b", new Uint8Array(100), 0)), "nothing");
  assert.equal(code(() => a.send("b", new Uint8Array(1), 0)), "link-overflow");
});

Deno.test("host: too many links, or one to itself, are refused", () => {
  const world = new World();
  const a = world.add("a", true, { linksMax: 1 });
  for (const remote of ["a", "b", "c"]) a.connect(remote, { initiator: false, ...NO_SERVERS });
  assert.deepEqual(world.states("a").map((line) => line.split(":")[0]), [
    "a-a closed link-overflow",
    "a-b connecting",
    "a-c closed link-overflow",
  ]);
});

Deno.test("signals: envelopes round-trip, foreign text is dropped, early signals are bounded", () => {
  assert.deepEqual(unwrapSignal(wrapSignal(7, '{"type":"offer"}')), {
    attempt: 7,
    offer: true,
    data: '{"type":"offer"}',
  });
  assert.equal(unwrapSignal(wrapSignal(0xffffffff, "x"))!.offer, false);
  for (const text of ["", "|", "x|y", "4294967296|y", "12", `1|${"x".repeat(30_000)}`]) {
    assert.equal(unwrapSignal(text), null, text.slice(0, 20));
  }
  const early = new EarlySignals();
  for (let i = 0; i < EARLY_SIGNALS_MAX + 5; i++) early.add("a", { attempt: 1, offer: false, data: `${i}` });
  assert.equal(early.take("a").length, EARLY_SIGNALS_MAX);
  early.add("a", { attempt: 1, offer: false, data: REQUEST });
  assert.deepEqual(early.take("a"), []);
  early.add("a", { attempt: 1, offer: false, data: "stale candidate" });
  early.add("a", { attempt: 2, offer: true, data: "offer" });
  assert.deepEqual(early.take("a").map((signal) => signal.data), ["offer"]);
});

/** Two hosts over real WebRTC, or with a stack whose signals are lost so that only the relay is left. */
async function realPair(signals: boolean): Promise<string> {
  const clock: Clock = systemClock;
  const hosts = new Map<string, RelayingLinkHost>();
  for (const id of ["a", "b"]) {
    const host = createLinkHost({
      selfId: id,
      createLink: simplePeerLinks(denoStack, { connectTimeoutMs: signals ? DIRECT_CONNECT_TIMEOUT_MS : 200 }),
      relay: (remote, bytes) => void clock.after(1, () => hosts.get(remote)!.receiveRelay(id, bytes)),
    });
    host.onsignal = (remote, data) => signals && hosts.get(remote)!.signal(id, data);
    hosts.set(id, host);
  }
  const [a, b] = [hosts.get("a")!, hosts.get("b")!];
  const arrived = new Promise<Uint8Array>((resolve) => b.onframe = (_, frame) => resolve(frame));
  a.connect("b", { initiator: true, ...NO_SERVERS });
  b.connect("a", { initiator: false, ...NO_SERVERS });
  a.send("b", new Uint8Array(300_000).fill(7), 1);
  const frame = await arrived;
  assert.deepEqual([frame.length, frame[299_999]], [300_000, 7]);
  const { path } = (await a.stats())["b"]!;
  a.closeAll("test over");
  b.closeAll("test over");
  await new Promise((resolve) => clock.after(400, () => resolve(null)));
  return path;
}

const native = { sanitizeOps: false, sanitizeResources: false };
Deno.test(
  "host: over real WebRTC, directly",
  native,
  async () => assert.equal(await realPair(true), "direct"),
);
Deno.test(
  "host: over real WebRTC, by the relay",
  native,
  async () => assert.equal(await realPair(false), "relay"),
);
