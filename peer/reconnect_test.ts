// The line to the coordinator against sockets and a clock of the test's own: when it knocks again, what it keeps meanwhile, and
// when it gives up. Whether a real coordinator takes the peer back is tested in resume_test.ts.
import assert from "node:assert/strict";
import { stateHash } from "./exact/hash.ts";
import { stageLayout } from "./model/layout.ts";
import { readConfig } from "./model/config.ts";
import { specOf } from "./model/layout.ts";
import { initialState } from "./model/state_file.ts";
import { ManualClock } from "./net/clock.ts";
import {
  CoordinatorLine,
  haveOf,
  type LineOptions,
  type LineSocket,
  RESUME_MS,
  staleness,
} from "./reconnect.ts";
import { decodePeerMessage, type PeerMessage, PROTOCOL_VERSION, readTagged } from "./wire/control.ts";
import type { View } from "./wire/run.ts";

const BEAT: PeerMessage = {
  ...{ type: "heartbeat", stepMs: 0, bytesUp: 0, bytesDown: 0, direct: 0, relayed: 0, hidden: false },
  ...{ recomputed: 0, recoveryBytes: 0, retainedBytes: 0 },
};

/** A socket that does what the test says, and remembers what was sent on it. */
class TestSocket implements LineSocket {
  readyState: number = WebSocket.CONNECTING;
  binaryType: BinaryType = "blob";
  onopen: LineSocket["onopen"] = null;
  onmessage: LineSocket["onmessage"] = null;
  onclose: LineSocket["onclose"] = null;
  onerror: LineSocket["onerror"] = null;
  /** Control messages by type, relayed bytes as "relay". */
  readonly sent: string[] = [];

  send(data: unknown): void {
    assert.equal(this.readyState, WebSocket.OPEN, "sent on a socket that is not open");
    const tagged = readTagged(data as Uint8Array);
    assert.ok(tagged.ok);
    if (tagged.value.kind === "relay") return void this.sent.push("relay");
    const message = decodePeerMessage(tagged.value.bytes);
    assert.ok(message.ok);
    const { type } = message.value;
    this.sent.push(type === "ready" ? `ready ${message.value.gen}` : type);
  }

  close(): void {
    this.readyState = WebSocket.CLOSED;
  }

  open(): void {
    this.readyState = WebSocket.OPEN;
    this.onopen?.call(this as unknown as WebSocket, new Event("open"));
  }

  drop(): void {
    this.readyState = WebSocket.CLOSED;
    this.onclose?.call(this as unknown as WebSocket, new CloseEvent("close"));
  }
}

class Bench {
  readonly clock = new ManualClock();
  readonly sockets: TestSocket[] = [];
  readonly hellos: boolean[] = [];
  readonly lost: string[] = [];
  /** `away` after each change. */
  readonly away: (number | null)[] = [];
  mayResume = true;
  readonly line: CoordinatorLine;

  constructor(options: Partial<LineOptions> = {}) {
    this.line = new CoordinatorLine({
      url: "ws://x/api/peer",
      mayResume: () => this.mayResume,
      hello: (again) => {
        this.hellos.push(again);
        const about = { token: "t", runtime: "tab" as const, adapter: "", engine: "" };
        return { type: "hello", version: PROTOCOL_VERSION, ...about };
      },
      onmessage: () => {},
      onlost: (reason) => this.lost.push(reason),
      onaway: () => this.away.push(this.line.away?.retryMs ?? null),
      openSocket: () => {
        this.sockets.push(new TestSocket());
        return this.sockets.at(-1)!;
      },
      clock: this.clock,
      random: () => 0.5,
      ...options,
    });
  }

  get socket(): TestSocket {
    return this.sockets.at(-1)!;
  }
}

function ready(gen: number): PeerMessage {
  return { type: "ready", gen };
}

Deno.test("line: a first socket that never opens, or that closes, is the end, and told once", () => {
  const silent = new Bench({ mayResume: () => false });
  silent.clock.advance(14_999);
  assert.deepEqual(silent.lost, []);
  silent.clock.advance(1);
  assert.deepEqual(silent.lost, ["the coordinator does not answer"]);
  const closing = new Bench({ mayResume: () => false });
  closing.socket.open();
  closing.socket.drop();
  closing.clock.advance(RESUME_MS * 2);
  assert.deepEqual(closing.lost, ["the connection to the coordinator closed"]);
  assert.deepEqual([closing.sockets.length, closing.hellos, closing.away], [1, [false], []]);
  for (const [message, told] of [["failed to connect: dns error", " (dns error)"], ["", ""]]) {
    const nowhere = new Bench({ mayResume: () => false });
    const { socket } = nowhere;
    socket.onerror?.call(socket as unknown as WebSocket, new ErrorEvent("error", { message: message! }));
    nowhere.socket.drop();
    const where = `nobody answers at x${told}`;
    assert.deepEqual(nowhere.lost, [`${where}; is the join link whole, and the coordinator up?`]);
  }
});

Deno.test("line: it knocks again after 0.25 s, then after twice as long up to 4 s, for 60 s", () => {
  const bench = new Bench();
  bench.socket.open();
  const at: number[] = [];
  bench.socket.drop();
  while (bench.lost.length === 0) {
    const before = bench.sockets.length;
    bench.clock.advance(1);
    if (bench.sockets.length === before) continue;
    at.push(bench.clock.now());
    bench.socket.drop();
  }
  assert.deepEqual(at.slice(0, 7), [250, 750, 1_750, 3_750, 7_750, 11_750, 15_750]);
  assert.equal(bench.clock.now(), RESUME_MS);
  assert.deepEqual(bench.lost, ["the coordinator did not come back within 60 s"]);
  const { length } = bench.sockets;
  bench.clock.advance(RESUME_MS);
  assert.equal(bench.sockets.length, length, "it knocked after it had given up");
});

Deno.test("line: pauses vary by a quarter up and down", () => {
  for (const [random, pause] of [[0, 187.5], [0.9999, 312.5]] as const) {
    const bench = new Bench({ random: () => random });
    bench.socket.open();
    bench.socket.drop();
    assert.ok(Math.abs(bench.line.away!.retryMs - pause) < 0.1, `${bench.line.away!.retryMs}`);
  }
});

Deno.test("line: what is said meanwhile follows in order once it is welcomed, and not before", () => {
  const bench = new Bench();
  bench.socket.open();
  bench.line.say(ready(1));
  bench.line.say(BEAT);
  bench.line.relay("b", Uint8Array.of(1));
  assert.deepEqual(bench.socket.sent, ["hello", "ready 1", "heartbeat", "relay"]);
  bench.socket.drop();
  bench.line.say(ready(2));
  bench.line.say(BEAT);
  bench.line.relay("b", Uint8Array.of(1));
  bench.clock.advance(250);
  assert.equal(bench.line.away!.retryMs, 0);
  bench.socket.open();
  bench.line.say(ready(3));
  bench.line.relay("b", Uint8Array.of(1));
  assert.deepEqual(bench.socket.sent, ["hello"]);
  bench.line.welcomedBack();
  bench.line.say(ready(4));
  bench.line.relay("b", Uint8Array.of(1));
  assert.deepEqual(bench.socket.sent, ["hello", "ready 2", "ready 3", "ready 4", "relay"]);
  assert.deepEqual([bench.hellos, bench.away], [[false, true], [250, 0, null]]);
  bench.clock.advance(RESUME_MS * 2);
  assert.deepEqual([bench.lost, bench.sockets.length], [[], 2], "it is back, and yet");
});

Deno.test("line: lost again after it was back, it has all its time again", () => {
  const bench = new Bench();
  bench.socket.open();
  bench.socket.drop();
  bench.clock.advance(50_000);
  bench.socket.open();
  bench.line.welcomedBack();
  bench.socket.drop();
  assert.equal(bench.line.away!.retryMs, 250);
  bench.clock.advance(RESUME_MS - 1);
  assert.deepEqual(bench.lost, []);
  bench.clock.advance(1);
  assert.equal(bench.lost.length, 1);
});

Deno.test("line: a socket that opens and is not welcomed, or does not open, makes way for the next after 10 s", () => {
  for (const opens of [true, false]) {
    const bench = new Bench();
    bench.socket.open();
    bench.socket.drop();
    bench.clock.advance(250);
    const second = bench.socket;
    if (opens) second.open();
    bench.clock.advance(9_999);
    assert.equal(bench.sockets.length, 2);
    bench.clock.advance(1 + 500);
    assert.equal(bench.sockets.length, 3);
    assert.equal(second.readyState, WebSocket.CLOSED);
    second.drop();
    assert.equal(bench.sockets.length, 3, "a socket that was left behind still counts");
  }
});

Deno.test("line: who has too much to say while it is away is lost rather than incomplete", () => {
  const bench = new Bench();
  bench.socket.open();
  bench.socket.drop();
  for (let i = 0; i < 1_000; i++) bench.line.say(ready(i));
  assert.deepEqual(bench.lost, []);
  for (let i = 0; i < 5; i++) bench.line.say(ready(i));
  assert.deepEqual(bench.lost, ["there was more to say than can be kept"]);
  bench.clock.advance(RESUME_MS);
  assert.equal(bench.sockets.length, 1);
});

Deno.test("line: whoever waits for the coordinator is told when it is back, and when it never will be", async () => {
  const bench = new Bench();
  assert.equal(await bench.line.back(), false, "it was not away");
  bench.socket.open();
  bench.socket.drop();
  const returned = bench.line.back();
  bench.clock.advance(250);
  bench.socket.open();
  bench.line.welcomedBack();
  assert.equal(await returned, true);
  bench.socket.drop();
  const [lost, closed] = [bench.line.back(), bench.line.back()];
  bench.clock.advance(RESUME_MS);
  assert.deepEqual([await lost, await closed, await bench.line.back()], [false, false, false]);
});

Deno.test("line: once closed it says nothing, opens nothing and tells nothing", () => {
  const bench = new Bench();
  bench.socket.open();
  bench.socket.drop();
  bench.line.say(ready(1));
  bench.line.close();
  bench.line.welcomedBack();
  bench.line.say(ready(2));
  bench.clock.advance(RESUME_MS * 2);
  assert.deepEqual([bench.lost, bench.sockets.length, bench.socket.sent], [[], 1, ["hello"]]);
});

Deno.test("staleness: only the same history with fewer steps is refused, with the numbers and the remedy", () => {
  const seen = { epoch: "a", committed: 7 };
  assert.equal(staleness(null, { epoch: "a", committed: 0 }), null);
  assert.equal(staleness(seen, { epoch: "a", committed: 7 }), null);
  assert.equal(staleness(seen, { epoch: "b", committed: 0 }), null);
  assert.match(staleness(seen, { epoch: "a", committed: 6 })!, /counts 6 .* has seen 7: .*shoal resume/);
});

Deno.test("have: each state is named by its stage, whatever the order, and those of another cut are left out", () => {
  const config = readConfig({ n_layer: 3, n_head: 1, n_kv_head: 1, n_embd: 8, n_inner: 8, block_size: 4 });
  const spec = specOf(config, 5);
  const stage = (index: number, firstLayer: number, endLayer: number) => ({
    ...{ index, firstLayer, endLayer, embed: firstLayer === 0, head: endLayer === 3 },
  });
  const [first, middle, last] = [stage(0, 0, 1), stage(1, 1, 2), stage(2, 2, 3)];
  const states = [last, first, stage(0, 0, 2)].map((plan, i) => ({
    ...initialState(spec, plan, 1),
    step: i + 5,
  }));
  assert.notEqual(stageLayout(spec, first).size, stageLayout(spec, stage(0, 0, 2)).size);
  const view: View = {
    ...{
      gen: 4,
      cut: 2,
      baseStep: 0,
      stages: [],
      schedule: "dynamic",
      codecForward: "raw32",
      codecBackward: "raw32",
    },
  };
  const have = haveOf(view, spec, { plans: [first, middle, last], states, logged: [2] });
  assert.deepEqual(have, {
    cut: 2,
    stages: [{ stage: 0, step: 6, hash: stateHash(states[1]!), logged: false }, {
      stage: 2,
      step: 5,
      hash: stateHash(states[0]!),
      logged: true,
    }],
  });
});
