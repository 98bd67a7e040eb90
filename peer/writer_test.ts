// A peer's part in a text: copies of weights at one step, rows in and rows on, in whatever time the training leaves. Two writers talk
// over frames as bytes; what they write is what the whole model writes.
import assert from "node:assert/strict";
import { initParams } from "./model/init.ts";
import { splitLayers, stageLayout, wholeModel } from "./model/layout.ts";
import { createState } from "./exact/state.ts";
import type { Held } from "./held.ts";
import { createSampler } from "./engine/sampler.ts";
import { ManualClock } from "./net/clock.ts";
import type { PeerMessage } from "./wire/control.ts";
import { ShoalError } from "./wire/errors.ts";
import { decodeFrame, FRAME_HEADER_BYTES, type FrameHeader } from "./wire/frame.ts";
import type { ModelSpec } from "./wire/run.ts";
import type { WriteOrder } from "./wire/texts.ts";
import { Writer, type WriterOptions } from "./writer.ts";

const SPEC: ModelSpec = {
  ...{ vocab_size: 11, block_size: 8, n_layer: 3, n_head: 2, n_kv_head: 1, n_embd: 8, n_inner: 10 },
  ...{ tie_word_embeddings: false, rope_theta: 10000, norm_eps: 1e-5 },
};
const SEED = 5, EDITION = 40;
const STAGES = splitLayers(SPEC, [1, 2]);

/** What a peer holds of a stage, as far as a writer looks at it. */
function heldStage(index: number, step = 0): Held {
  const stage = STAGES[index]!;
  const state = createState(stageLayout(SPEC, stage), initParams(SPEC, stage, SEED));
  state.step = step;
  return { plan: { ...stage, replicas: [], inflight: 1 }, state, optimizer: null } as unknown as Held;
}

class Desk {
  readonly said: PeerMessage[] = [];
  readonly connected: string[] = [];
  readonly sent: { to: string; frame: Uint8Array }[] = [];
  readonly writer: Writer;
  busy = false;
  broken = false;

  constructor(readonly id: string, readonly clock: ManualClock, more: Partial<WriterOptions> = {}) {
    this.writer = new Writer({
      ...{ self: id, incarnation: 3, spec: SPEC, iceServers: [], clock, room: () => 1e9 },
      host: {
        connect: (peer) => void this.connected.push(peer),
        send: (to, frame) => {
          if (this.broken) throw new ShoalError("link-closed", `there is no link to ${to}`);
          this.sent.push({ to, frame });
        },
      },
      say: (message) => void this.said.push(message),
      mayWrite: () => true,
      busy: () => this.busy,
      ...more,
    });
  }

  open(stage: number, ends: { from?: string; to?: string } = {}, step = 0): void {
    const { firstLayer, endLayer } = STAGES[stage]!;
    const { from = null, to = null } = ends;
    this.writer.order({ order: "open", edition: EDITION, step, stage, firstLayer, endLayer, from, to });
  }

  rows(tokens: number[], position: number, draw = false, { text = 1, slot = 0 } = {}): void {
    this.writer.order({ order: "rows", edition: EDITION, text, slot, position, tokens, draw });
  }

  types(): string[] {
    return this.said.map(({ type }) => type);
  }
}

const DRAWS: WriteOrder = {
  ...{
    order: "text",
    edition: EDITION,
    text: 1,
    slot: 0,
    seed: 9,
    drawn: 0,
    temperature: 1,
    topK: 0,
    topP: 1,
  },
};

/** Lets timers run and frames arrive until nothing is left to do. */
async function settle(clock: ManualClock, desks: Desk[]): Promise<void> {
  for (let quiet = 0; quiet < 3; quiet++) {
    await Promise.resolve();
    clock.advance(1);
    for (const from of desks) {
      for (const { to, frame } of from.sent.splice(0)) {
        const decoded = decodeFrame(frame);
        assert.ok(decoded.ok);
        desks.find(({ id }) => id === to)!.writer.receive(
          from.id,
          decoded.value.header,
          decoded.value.payload,
        );
        quiet = 0;
      }
    }
  }
}

/** What the whole model writes after these tokens. */
function expected(prompt: number[], count: number): number[] {
  const params = initParams(SPEC, wholeModel(SPEC), SEED);
  return createSampler(SPEC, params).generate(prompt, { count, seed: 9, temperature: 1, topK: 0 });
}

async function pair(): Promise<{ clock: ManualClock; a: Desk; b: Desk; all: Desk[]; held: Held[] }> {
  const clock = new ManualClock();
  const [a, b] = [new Desk("a", clock), new Desk("b", clock)];
  const held = [heldStage(0), heldStage(1)];
  a.open(0, { to: "b" });
  b.open(1, { from: "a" });
  await a.writer.settle([held[0]!]);
  await b.writer.settle([held[1]!]);
  b.writer.order(DRAWS);
  return { clock, a, b, all: [a, b], held };
}

Deno.test("writer: two peers write what the whole model writes, whatever becomes of the state meanwhile", async () => {
  const { clock, a, b, all, held } = await pair();
  assert.deepEqual([a.types(), b.types()], [["write-open"], ["write-open"]]);
  assert.deepEqual([a.connected, b.connected], [["b"], ["a"]]);
  for (const { state } of held) state.params.fill(0);
  const wanted = expected([4, 2, 7], 3);
  a.rows([4, 2], 0);
  a.rows([7], 2, true);
  await settle(clock, all);
  const [, first, second] = b.said;
  assert.deepEqual(first, { type: "wrote", edition: EDITION, text: 1, position: 2 });
  assert.deepEqual(second, { type: "wrote", edition: EDITION, text: 1, position: 3, token: wanted[0] });
  a.rows([wanted[0]!], 3, true);
  await settle(clock, all);
  // The window begins anew whenever the coordinator wants it to.
  a.rows([4, 2, 7, wanted[0]!], 0);
  a.rows([wanted[1]!], 4, true);
  await settle(clock, all);
  const tokens = b.said.flatMap((it) => it.type === "wrote" && it.token !== undefined ? [it.token] : []);
  assert.deepEqual(tokens, wanted);
});

Deno.test("writer: a peer that has both stages hands rows to itself, and passes over draws of another edition", async () => {
  const clock = new ManualClock(), a = new Desk("a", clock);
  a.open(0, { to: "a" });
  a.open(1, { from: "a" });
  await a.writer.settle([heldStage(0), heldStage(1)]);
  a.writer.order({ ...DRAWS, drawn: 1 } as WriteOrder);
  const [first, second] = expected([4, 2], 2);
  a.rows([4, 2], 0);
  a.rows([first!], 2, true);
  await settle(clock, [a]);
  assert.deepEqual(a.connected, []);
  assert.deepEqual(a.said.at(-1), { type: "wrote", edition: EDITION, text: 1, position: 3, token: second });
});

Deno.test("writer: weights are copied at exactly the step that is wanted, of exactly the layers", async () => {
  const a = new Desk("a", new ManualClock());
  a.open(0, { to: "b" }, 2);
  assert.equal(a.writer.waits, true);
  const held = heldStage(0, 1);
  await a.writer.settle([held]);
  assert.deepEqual(a.said, [], "its state is not there yet");
  held.state.step = 2;
  await a.writer.settle([{ ...held, plan: { ...held.plan, endLayer: 2 } }]);
  assert.deepEqual(a.said, [], "another cut's");
  await a.writer.settle([held]);
  assert.deepEqual(a.types(), ["write-open"]);
  assert.equal(a.writer.waits, false);
  const late = new Desk("a", new ManualClock());
  late.open(0, { to: "b" }, 2);
  held.state.step = 3;
  await late.writer.settle([held]);
  assert.deepEqual(late.said, [
    { type: "write-failed", edition: EDITION, stage: 0, reason: "its state is of step 3 already" },
  ]);
});

Deno.test("writer: a state on a GPU is read for the copy", async () => {
  const a = new Desk("a", new ManualClock());
  const held = heldStage(0);
  const { params, m, v, exponents } = held.state;
  let reads = 0;
  const read = () => Promise.resolve({ params, m, v, exponents, reads: reads++ });
  const none = new Float32Array(0);
  a.open(0, { to: "b" });
  await a.writer.settle([
    { ...held, state: { ...held.state, params: none }, optimizer: { read } } as unknown as Held,
  ]);
  assert.deepEqual([a.types(), reads], [["write-open"], 1]);
});

Deno.test("writer: with adapters the base is waited for, and nothing else waits with it", async () => {
  let arrive: (weights: Float32Array) => void = () => {}, fail: (error: Error) => void = () => {};
  const asked: number[] = [];
  const weightsOf: WriterOptions["weightsOf"] = (stage, params) => {
    asked.push(stage.index, params.length);
    return new Promise((resolve, reject) => [arrive, fail] = [resolve, reject]);
  };
  const clock = new ManualClock(), a = new Desk("a", clock, { weightsOf });
  const held = heldStage(0), base = held.state.params.slice();
  held.state.params = new Float32Array(5);
  a.open(0, { to: "b" });
  await a.writer.settle([held]);
  assert.deepEqual([asked, a.writer.waits, a.said], [[0, 5], false, []]);
  arrive(base);
  await settle(clock, [a, new Desk("b", clock)]);
  assert.deepEqual(a.types(), ["write-open"]);
  const other = new Desk("a", clock, { weightsOf });
  other.open(0, { to: "b" });
  await other.writer.settle([held]);
  fail(new ShoalError("bad-state", "the base cannot be had"));
  await settle(clock, [other]);
  assert.ok(other.said[0]?.type === "write-failed" && /base cannot be had/.test(other.said[0].reason));
});

Deno.test("writer: without room, or while its owner rests, it refuses with the reason", () => {
  const tight = new Desk("a", new ManualClock(), { room: () => 1000 });
  tight.open(0, { to: "b" });
  const [refused] = tight.said;
  assert.ok(refused?.type === "write-failed");
  assert.match(refused.reason, /a copy of stage 1 needs 1 MiB, and 0 MiB of its memory are left/);
  assert.equal(tight.writer.bytes, 0);
  const paused = new Desk("a", new ManualClock(), { mayWrite: () => false });
  paused.open(0, { to: "b" });
  assert.ok(paused.said[0]?.type === "write-failed" && /paused/.test(paused.said[0].reason));
});

Deno.test("writer: rows from others, of other places, or of no token change nothing", async () => {
  const { clock, a, b, all } = await pair();
  a.rows([4, 2], 0);
  a.rows([7], 3);
  a.rows([11], 2);
  a.rows([-1], 2);
  a.rows([], 2);
  a.rows([1, 1, 1, 1, 1, 1, 1], 2);
  await settle(clock, all);
  assert.equal(b.types().filter((it) => it === "wrote").length, 1);
  const payload = new Uint8Array(8 * 4);
  const header: FrameHeader = {
    ...{
      kind: "text",
      codec: "raw32",
      pass: "train",
      incarnation: 3,
      exponent: 0,
      set: [],
      rows: 1,
      cols: 8,
    },
    ...{ step: EDITION, gen: 1, cut: 2, microBatch: 1, fromStage: 0, toStage: 1 },
  };
  b.writer.receive("c", header, payload);
  b.writer.receive("a", { ...header, step: EDITION + 1 }, payload);
  b.writer.receive("a", { ...header, fromStage: 1 }, payload);
  b.writer.receive("a", { ...header, cut: 5 }, payload);
  b.writer.receive("a", { ...header, cols: 4, rows: 2 }, payload);
  await settle(clock, all);
  assert.equal(b.types().filter((it) => it === "wrote").length, 1);
  b.writer.receive("a", header, payload);
  await settle(clock, all);
  assert.equal(b.types().filter((it) => it === "wrote").length, 2, "the right one is taken");
});

Deno.test("writer: a lost link, or one that takes nothing, ends its part at once", async () => {
  const one = await pair();
  one.b.writer.link("c", false);
  one.b.writer.link("a", true);
  assert.equal(one.b.writer.needs("a"), true);
  one.b.writer.link("a", false);
  assert.deepEqual([one.b.types(), one.b.writer.needs("a")], [["write-open", "write-failed"], false]);
  const other = await pair();
  other.a.broken = true;
  other.a.rows([1], 0, true);
  await settle(other.clock, other.all);
  assert.deepEqual(other.a.types(), ["write-open", "write-failed"]);
  assert.equal(other.a.writer.bytes, 0);
});

Deno.test("writer: what nobody needs any more is freed", async () => {
  const { clock, a, b, all } = await pair();
  a.rows([4, 2], 0, true);
  b.writer.order({ order: "drop", edition: EDITION, text: 1 });
  await settle(clock, all);
  assert.deepEqual(b.types(), ["write-open"], "it does not know how to draw");
  b.writer.order(DRAWS);
  const [token] = expected([4, 2], 1);
  assert.deepEqual(b.said.at(-1), { type: "wrote", edition: EDITION, text: 1, position: 2, token });
  b.writer.order(DRAWS);
  assert.equal(b.said.length, 2, "a token is drawn once");
  assert.ok(a.writer.bytes > 0);
  a.writer.order({ order: "close", edition: EDITION + 1 });
  assert.ok(a.writer.bytes > 0);
  a.writer.order({ order: "close", edition: EDITION });
  assert.equal(a.writer.bytes, 0);
  clock.advance(299_000);
  b.writer.tick();
  assert.ok(b.writer.bytes > 0);
  clock.advance(2_000);
  b.writer.tick();
  assert.equal(b.writer.bytes, 0, "nobody has spoken of it for five minutes");
});

Deno.test("writer: no more texts and pieces at a time than there is room for", async () => {
  const { clock, a, b, all } = await pair();
  for (let slot = 0; slot < 6; slot++) a.rows([1, 2], 0, false, { text: slot + 1, slot });
  for (const slot of [-1, 0.5]) a.rows([1, 2], 0, false, { text: 9, slot });
  await settle(clock, all);
  assert.equal(b.types().filter((it) => it === "wrote").length, 4);
  b.busy = true;
  for (let i = 0; i < 100; i++) a.rows([1], 0);
  await settle(clock, all);
  b.busy = false;
  b.writer.afterJob(0);
  await settle(clock, all);
  assert.equal(b.types().filter((it) => it === "wrote").length, 4 + 64);
});

Deno.test("writer: a text takes the slot of one that is over, whoever has heard of the end", async () => {
  const { clock, a, b, all } = await pair();
  a.rows([4, 2], 0, true);
  a.rows([9], 2);
  await settle(clock, all);
  const other = { text: 2, slot: 0 };
  a.rows([3], 3, true, other);
  b.writer.order({ ...DRAWS, text: 2 } as WriteOrder);
  a.rows([4, 2], 0, false, other);
  a.rows([1], 3);
  a.rows([7], 2, true, other);
  await settle(clock, all);
  const told = b.said.flatMap((it) => it.type === "wrote" ? [[it.text, it.position, it.token]] : []);
  const [first] = expected([4, 2], 1), [second] = expected([4, 2, 7], 1);
  assert.deepEqual(told, [[1, 2, first], [1, 3, undefined], [2, 2, undefined], [2, 3, second]]);
  b.writer.order({ order: "drop", edition: EDITION, text: 1 });
  a.rows([5], 3, true, other);
  await settle(clock, all);
  assert.equal(b.types().filter((it) => it === "wrote").length, 5, "the one before is dropped, not this one");
});

Deno.test("writer: what waits for a text that is over is passed over, and nobody draws for another", async () => {
  const { clock, a, b, all } = await pair();
  const other = { text: 2, slot: 0 };
  a.busy = true;
  a.rows([4, 2], 0);
  a.rows([7], 2);
  a.rows([1], 0, true, other);
  a.busy = false;
  await settle(clock, all);
  assert.deepEqual(b.types(), ["write-open"], "how the second is drawn is not known, the first has no slot");
  b.writer.order({ ...DRAWS, text: 3 } as WriteOrder);
  assert.deepEqual(b.types(), ["write-open"]);
  b.writer.order({ ...DRAWS, text: 2 } as WriteOrder);
  const [token] = expected([1], 1);
  assert.deepEqual(b.said.at(-1), { type: "wrote", edition: EDITION, text: 2, position: 1, token });
});

Deno.test("writer: during a job nothing is begun, after it a part of its time goes into texts", async () => {
  const { clock, a, b, all } = await pair();
  a.busy = true;
  a.rows([4, 2], 0, true);
  await settle(clock, all);
  assert.deepEqual([a.sent.length, b.types()], [0, ["write-open"]]);
  assert.equal(a.writer.afterJob(0), 0, "no time is left over");
  a.busy = true;
  assert.equal(a.sent.length, 0);
  // The clock stands still while it works, so a share of anything is enough for all of it.
  a.writer.afterJob(10);
  assert.equal(a.sent.length, 1);
  assert.equal(a.sent[0]!.frame.length, FRAME_HEADER_BYTES + 2 * 8 * 4);
  await settle(clock, all);
  assert.equal(b.types().at(-1), "wrote");
});

Deno.test("writer: what its owner allows of the processor holds for texts too", async () => {
  let rest: (() => void) | null = null;
  const took: number[] = [];
  const gate = {
    before: () => new Promise<void>((resolve) => rest = resolve),
    after: (ms: number) => void took.push(ms),
  };
  const clock = new ManualClock(), a = new Desk("a", clock, { gate });
  a.open(0, { to: "b" });
  await a.writer.settle([heldStage(0)]);
  a.rows([4, 2], 0);
  clock.advance(50);
  await Promise.resolve();
  assert.equal(a.sent.length, 0, "it rests");
  rest!();
  await Promise.resolve();
  await Promise.resolve();
  assert.deepEqual([a.sent.length, took.length], [1, 1]);
});
