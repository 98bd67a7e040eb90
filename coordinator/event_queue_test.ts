// The queue before the core: order always, and while nothing is taken out only what the core must not miss.
import assert from "node:assert/strict";
import { EventQueue, type ShellEvent, type TimedEvent } from "./event_queue.ts";

const BEAT = {
  ...{ stepMs: 0, bytesUp: 0, bytesDown: 0, direct: 0, relayed: 0, hidden: false },
  ...{ recomputed: 0, recoveryBytes: 0, retainedBytes: 0 },
};

function heartbeat(peer: string, bytesUp = 0): ShellEvent {
  return { type: "message", peer, message: { type: "heartbeat", ...BEAT, bytesUp } };
}

function ready(peer: string): ShellEvent {
  return { type: "message", peer, message: { type: "ready", gen: 1 } };
}

function drain(queue: EventQueue): TimedEvent[] {
  return Array.from({ length: queue.length }, () => queue.shift()!);
}

Deno.test("event queue: everything comes out in order, with its own time", () => {
  const queue = new EventQueue();
  const events = [heartbeat("a"), { type: "tick" as const }, heartbeat("a"), ready("b"), {
    type: "tick" as const,
  }];
  const timed = events.map((event, i) => ({ event, at: i * 10 }));
  for (const next of timed) assert.equal(queue.push(next, false), true);
  assert.deepEqual(drain(queue), timed);
  assert.equal(queue.shift(), undefined);
});

Deno.test("event queue: stalled, ticks are left out and a peer's newest heartbeat takes the place of the others", () => {
  const queue = new EventQueue();
  const tick = { type: "tick" as const };
  const said: ShellEvent[] = [
    ...[heartbeat("a", 1), heartbeat("b", 2), tick, ready("a"), heartbeat("a", 3), tick],
    { type: "gone", peer: "b", reason: "" },
    heartbeat("a", 4),
  ];
  said.forEach((event, at) => assert.equal(queue.push({ event, at }, true), true));
  assert.deepEqual(drain(queue), [1, 3, 6, 7].map((at) => ({ event: said[at]!, at })));
});

Deno.test("event queue: what a peer says is bounded, that one is gone is not", () => {
  const queue = new EventQueue();
  let taken = 0;
  while (queue.push({ event: ready("a"), at: 0 }, true)) taken++;
  assert.equal(taken, 10_000);
  assert.equal(queue.push({ event: { type: "gone", peer: "a", reason: "" }, at: 0 }, true), true);
  assert.equal(queue.push({ event: { type: "admin", action: "stop" }, at: 0 }, true), true);
  assert.equal(queue.length, taken + 2);
});
