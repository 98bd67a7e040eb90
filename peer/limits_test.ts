// Tests of the gate on a clock that only the test moves: the share of time spent computing, rests because of traffic, and that
// nothing waits where nothing is limited.
import assert from "node:assert/strict";
import fc from "fast-check";
import { asLimited, type Caps, Gate, isWork } from "./limits.ts";
import { ManualClock } from "./net/clock.ts";
import { GatedHost } from "./net/gated_host.ts";
import type { RelayingLinkHost } from "./net/host.ts";
import { NO_LIMITS } from "./wire/limits.ts";

function caps(part: Partial<Caps>): Caps {
  return { ...NO_LIMITS, ...part };
}

/** A clock that counts how many timers were asked for. */
class CountingClock extends ManualClock {
  timers = 0;
  override after(ms: number, task: () => void): () => void {
    this.timers++;
    return super.after(ms, task);
  }
}

/** Lets every settled promise go on. */
async function settle(): Promise<void> {
  for (let turn = 0; turn < 8; turn++) await Promise.resolve();
}

/** Moves time until the gate opens; milliseconds it took. */
async function waitFor(gate: Gate, clock: ManualClock, stepMs = 1): Promise<number> {
  const begun = clock.now();
  const opening = gate.before();
  let open = opening === null;
  void opening?.then(() => open = true);
  for (await settle(); !open; await settle()) clock.advance(stepMs);
  return clock.now() - begun;
}

/** Operations one after another, each followed by a pause in which the peer waits for others; the share spent in them. */
async function busyShare(duty: number, operations: { busyMs: number; idleMs: number }[]): Promise<number> {
  const clock = new ManualClock();
  const gate = new Gate(caps({ duty }), clock);
  let busy = 0;
  for (const { busyMs, idleMs } of operations) {
    await waitFor(gate, clock);
    clock.advance(busyMs);
    gate.after(busyMs);
    busy += busyMs;
    clock.advance(idleMs);
  }
  await waitFor(gate, clock);
  return busy / clock.now();
}

Deno.test("gate: a peer that never waits for others computes exactly its share of the time", async function test() {
  const operations = Array.from({ length: 400 }, (_, index) => ({ busyMs: 5 + index % 37, idleMs: 0 }));
  for (const duty of [0.1, 0.25, 0.5, 0.8]) {
    const share = await busyShare(duty, operations);
    assert.ok(Math.abs(share - duty) < 0.02 * duty, `duty ${duty}, measured ${share}`);
  }
});

Deno.test("gate: whatever the operations, the share is never exceeded", async function test() {
  const operation = fc.record({
    busyMs: fc.integer({ min: 0, max: 50 }),
    idleMs: fc.integer({ min: 0, max: 30 }),
  });
  await fc.assert(
    fc.asyncProperty(
      fc.constantFrom(0.1, 0.3, 0.9),
      fc.array(operation, { minLength: 3, maxLength: 20 }),
      async function holds(duty, operations) {
        if (operations.every(({ busyMs }) => busyMs === 0)) return;
        assert.ok(await busyShare(duty, operations) <= duty + 1e-9);
      },
    ),
    { seed: 5, numRuns: 60 },
  );
});

Deno.test("gate: waiting for others counts as rest, so a peer with slack is not slowed", function test() {
  const clock = new CountingClock();
  const gate = new Gate(caps({ duty: 0.5 }), clock);
  for (let operation = 0; operation < 20; operation++) {
    assert.equal(gate.before(), null);
    clock.advance(10);
    gate.after(10);
    clock.advance(10);
  }
  assert.equal(clock.timers, 0);
  assert.equal(gate.heldBack(), null);
});

Deno.test("gate: without limits nothing is waited for and no timer is set", function test() {
  const clock = new CountingClock();
  const gate = new Gate(NO_LIMITS, clock);
  for (let operation = 0; operation < 50; operation++) {
    assert.equal(gate.before(), null);
    clock.advance(100);
    gate.after(100);
    gate.sent(1e9);
    gate.received(1e9);
  }
  assert.equal(clock.timers, 0);
});

Deno.test("gate: a limit that is lifted ends the rest", async function test() {
  const clock = new ManualClock();
  const gate = new Gate(caps({ duty: 0.1 }), clock);
  clock.advance(1000);
  gate.after(1000);
  let open = false;
  void gate.before()?.then(() => open = true);
  clock.advance(10);
  await settle();
  assert.equal(open, false, "nine seconds are owed");
  gate.setCaps(NO_LIMITS);
  await settle();
  assert.equal(open, true);
});

Deno.test("gate: traffic beyond the rates slows operations, at most two seconds each", async function test() {
  for (const by of ["up", "down"] as const) {
    const clock = new ManualClock();
    const gate = new Gate(caps(by === "up" ? { upBytesPerS: 100_000 } : { downBytesPerS: 100_000 }), clock);
    const move = (bytes: number) => by === "up" ? gate.sent(bytes) : gate.received(bytes);
    move(50_000);
    assert.ok(Math.abs(await waitFor(gate, clock) - 500) <= 1, "half a second for half a second's bytes");
    move(1_000_000);
    assert.ok(Math.abs(await waitFor(gate, clock) - 2_000) <= 1, "others wait for this peer");
    assert.ok(Math.abs(await waitFor(gate, clock) - 2_000) <= 1, "what is still owed comes before the next");
    const held = gate.heldBack();
    assert.equal(held?.by, by);
    assert.ok(Math.abs((held?.share ?? 0) - 0.45) < 0.01, `${held?.share}`);
  }
});

Deno.test("gate: a long rest for traffic does not shorten the rest that the duty asks for", async function test() {
  const clock = new ManualClock();
  const gate = new Gate(caps({ duty: 0.1, upBytesPerS: 100_000 }), clock);
  clock.advance(1_000);
  gate.after(1_000);
  gate.sent(1_000_000);
  assert.ok(Math.abs(await waitFor(gate, clock) - 9_000) <= 1);
});

Deno.test("gate: an answer is read no faster than the rate, and counted", async function test() {
  const clock = new ManualClock();
  const gate = new Gate(caps({ downBytesPerS: 100_000 }), clock);
  const parts = Array.from({ length: 10 }, (_, index) => new Uint8Array(20_000).fill(index));
  let read: ArrayBuffer | null = null;
  void gate.read(new Response(ReadableStream.from(parts))).then((bytes) => read = bytes);
  while (read === null) {
    await new Promise((resolve) => setTimeout(resolve));
    clock.advance(50);
  }
  const bytes = new Uint8Array(read as ArrayBuffer);
  assert.equal(bytes.length, 200_000);
  assert.equal(bytes[199_999], 9);
  assert.ok(clock.now() >= 2_000 - 50, `${clock.now()} ms for 200 kB at 100 kB/s`);
  assert.equal(gate.http.down, 200_000);
  gate.setCaps(NO_LIMITS);
  assert.equal((await gate.read(new Response("four"))).byteLength, 4);
  assert.equal(gate.http.down, 200_004);
});

Deno.test("gate: what a step is made of is limited, what changes the view is not", function test() {
  assert.deepEqual(
    (["op", "seal", "apply", "load", "engine", "export"] as const).map((job) => isWork({ job })),
    [true, true, true, false, false, false],
  );
});

Deno.test("gate: what is told at admission is as slow as the run will find it", function test() {
  const block = { blockMs: 30, opMs: { forward: 10, backward: 10, weightGrad: 10 }, gpuOptimizer: true };
  const half = asLimited(block, new Gate(caps({ duty: 0.5 })));
  assert.deepEqual(half, {
    blockMs: 60,
    opMs: { forward: 20, backward: 20, weightGrad: 20 },
    gpuOptimizer: true,
  });
  assert.deepEqual(asLimited(block), block);
});

/** Notes what it is asked for. */
class NotingHost implements RelayingLinkHost {
  onframe: RelayingLinkHost["onframe"] = null;
  onstate: RelayingLinkHost["onstate"] = null;
  onsignal: RelayingLinkHost["onsignal"] = null;
  calls: string[] = [];
  connect = (remote: string) => void this.calls.push(`connect ${remote}`);
  signal = (remote: string, data: string) => void this.calls.push(`signal ${remote} ${data}`);
  send = (remote: string, frame: Uint8Array, priority: number) =>
    void this.calls.push(`send ${remote} ${frame.length} ${priority}`);
  close = (remote: string, reason: string) => void this.calls.push(`close ${remote} ${reason}`);
  closeAll = (reason: string) => void this.calls.push(`closeAll ${reason}`);
  receiveRelay = (remote: string, bytes: Uint8Array) =>
    void this.calls.push(`relay ${remote} ${bytes.length}`);
  stats = () => Promise.resolve({});
}

Deno.test("gate: a gated host counts frames both ways and passes everything on", async function test() {
  const clock = new ManualClock();
  const gate = new Gate(caps({ upBytesPerS: 100_000, downBytesPerS: 100_000 }), clock);
  const inner = new NotingHost();
  const host = new GatedHost(inner, gate);
  const heard: string[] = [];
  host.onframe = (remote, frame) => heard.push(`${remote} ${frame.length}`);
  host.onstate = (remote, state) => heard.push(`${remote} ${state}`);
  host.onsignal = (remote, data) => heard.push(`${remote} ${data}`);
  host.connect("b", { initiator: true, iceServers: [] });
  host.signal("b", "x");
  host.receiveRelay("b", new Uint8Array(3));
  host.send("b", new Uint8Array(100_000), 1);
  host.close("b", "why");
  host.closeAll("over");
  const calls = ["connect b", "signal b x", "relay b 3", "send b 100000 1", "close b why", "closeAll over"];
  assert.deepEqual(inner.calls, calls);
  assert.ok(Math.abs(await waitFor(gate, clock) - 1_000) <= 1, "what was sent is waited for");
  inner.onframe?.("b", new Uint8Array(50_000));
  inner.onstate?.("b", "open", "");
  inner.onsignal?.("b", "y");
  assert.deepEqual(heard, ["b 50000", "b open", "b y"]);
  assert.ok(Math.abs(await waitFor(gate, clock) - 250) <= 1, "a second of quiet has saved up a quarter");
  assert.deepEqual(await host.stats(), {});
});
