// Texts that stages write together, as the coordinator leads them: who copies which weights, which rows go out when, and what
// follows when a peer goes, refuses, falls silent or is paused. The peers here answer by hand; real ones are in test/sim.
import assert from "node:assert/strict";
import { RunHarness } from "../../test/support/run_harness.ts";
import type { PeerMessage } from "../../peer/wire/control.ts";
import { TEXTS_PER_EDITION, type WriteOrder } from "../../peer/wire/texts.ts";
import type { TextTold, TextWish } from "./text_state.ts";
import { metricsText } from "./metrics.ts";
import { EDITION_MS, OPEN_MS, STALL_MS, TEXT_MS, TEXTS_MAX, WAIT_MS } from "./texts.ts";

type Order<T extends WriteOrder["order"]> = Extract<WriteOrder, { order: T }> & { to_: string };

const WISH: TextWish = { prompt: [1, 2, 3], count: 3, temperature: 1, topK: 0, topP: 1, seed: 9 };

/** Peers that write, a stage for each of the first two; shadows where there are more. */
class Scene {
  readonly run: RunHarness;
  #seen = 0;

  constructor(peers = ["a", "b"], changes: Record<string, unknown> = {}) {
    this.run = RunHarness.training(peers, changes);
    for (const peer of peers) this.run.state.peers[peer]!.writes = true;
  }

  ask(id: number, changes: Partial<TextWish> = {}): void {
    this.run.feed({ type: "text", id, wish: { ...WISH, ...changes } });
  }

  say(peer: string, message: PeerMessage): void {
    this.run.say(peer, message);
  }

  /** What was ordered since the last look, and to whom. */
  orders(): (WriteOrder & { to_: string })[] {
    const effects = this.run.effects.slice(this.#seen);
    this.#seen = this.run.effects.length;
    return this.run.sent("write", effects).map(({ to, order }) => ({ ...order, to_: to }));
  }

  ordered<T extends WriteOrder["order"]>(kind: T): Order<T>[] {
    return this.orders().filter((it): it is Order<T> => it.order === kind);
  }

  told(id: number): TextTold[] {
    return this.run.did("text").filter((it) => it.id === id).map((it) => it.told);
  }

  tokens(id: number): number[] {
    return this.told(id).flatMap((it) => it.what === "token" ? [it.token] : []);
  }

  get edition(): number {
    return this.run.state.texts.edition!.id;
  }

  /** All stages have copied their weights. */
  opened(): void {
    for (const { stage, peer } of [...this.run.state.texts.edition!.seats]) {
      this.say(peer, { type: "write-open", edition: this.edition, stage });
    }
  }

  /** The last stage has read a piece. */
  wrote(text: number, token?: number, peer = this.run.state.texts.edition!.seats.at(-1)!.peer): void {
    const drawn = token === undefined ? {} : { token };
    this.say(peer, { type: "wrote", edition: this.edition, text, position: 1, ...drawn });
  }

  tick(ms: number): void {
    this.run.pass(ms, Object.keys(this.run.state.peers));
  }
}

Deno.test("texts: a holder of each stage copies its weights of one step, then rows go in and tokens come out", () => {
  const scene = new Scene();
  scene.run.commit();
  scene.orders();
  scene.ask(5);
  const about = { order: "open", edition: scene.edition, step: 1 };
  assert.deepEqual(scene.orders(), [
    { ...about, stage: 0, firstLayer: 0, endLayer: 1, from: null, to: "b", to_: "a" },
    { ...about, stage: 1, firstLayer: 1, endLayer: 2, from: "a", to: null, to_: "b" },
  ]);
  scene.say("a", { type: "write-open", edition: scene.edition, stage: 0 });
  assert.deepEqual(scene.orders(), [], "the other stage has no copy yet");
  scene.say("b", { type: "write-open", edition: scene.edition, stage: 1 });
  const { edition } = scene;
  const draws = { seed: 9, drawn: 0, temperature: 1, topK: 0, topP: 1 };
  assert.deepEqual(scene.orders(), [
    { order: "text", edition, text: 5, slot: 0, ...draws, to_: "b" },
    { order: "rows", edition, text: 5, slot: 0, position: 0, tokens: [1, 2], draw: false, to_: "a" },
    { order: "rows", edition, text: 5, slot: 0, position: 2, tokens: [3], draw: true, to_: "a" },
  ]);
  scene.wrote(5);
  assert.deepEqual(scene.orders(), [], "a token is still to be drawn");
  scene.wrote(5, 4);
  assert.deepEqual(scene.orders(), [
    { order: "rows", edition, text: 5, slot: 0, position: 3, tokens: [4], draw: true, to_: "a" },
  ]);
  scene.wrote(5, 6);
  // The window of four is full: its newer half is read again.
  assert.deepEqual(scene.ordered("rows").map(({ position, tokens, draw }) => [position, tokens, draw]), [
    [0, [3, 4], false],
    [2, [6], true],
  ]);
  scene.wrote(5);
  scene.wrote(5, 0);
  assert.deepEqual(scene.told(5), [
    { what: "begun", step: 1, restarts: 0 },
    ...[4, 6, 0].map((token) => ({ what: "token", token })),
    { what: "end" },
  ]);
  assert.deepEqual(scene.orders().map(({ order, to_ }) => `${order} ${to_}`), [
    ...["drop a", "drop b", "close a", "close b"],
  ]);
  assert.equal(scene.run.state.texts.edition, null);
});

Deno.test("texts: so many pieces of a long prompt are under way as keep all stages busy", () => {
  const scene = new Scene(["a", "b"], { block_size: 128 });
  scene.ask(1, { prompt: Array.from({ length: 100 }, (_, i) => i % 7) });
  scene.opened();
  const sent = scene.ordered("rows");
  assert.deepEqual(sent.map(({ position, tokens }) => [position, tokens.length]), [[0, 16], [16, 16], [
    32,
    16,
  ]]);
  const rest: number[][] = [];
  for (let i = 0; i < 7; i++) {
    scene.wrote(1);
    rest.push(...scene.ordered("rows").map(({ position, tokens, draw }) => [position, tokens.length, +draw]));
  }
  assert.deepEqual(rest, [[48, 16, 0], [64, 16, 0], [80, 16, 0], [96, 3, 0], [99, 1, 1]]);
  scene.wrote(1, 2);
  assert.deepEqual(scene.tokens(1), [2]);
});

Deno.test("texts: a few share an edition, others wait, and an old edition takes no more", () => {
  const scene = new Scene();
  for (let id = 1; id <= TEXTS_PER_EDITION + 2; id++) scene.ask(id, { count: 1 });
  scene.opened();
  const first = scene.edition;
  assert.deepEqual(scene.run.state.texts.writing.map(({ id }) => id), [1, 2, 3, 4]);
  const finish = (id: number) => {
    scene.wrote(id);
    scene.wrote(id, 1);
  };
  finish(2);
  assert.deepEqual(scene.run.state.texts.writing.map(({ id, slot }) => [id, slot]), [[1, 0], [3, 2], [4, 3], [
    5,
    1,
  ]]);
  scene.run.now += EDITION_MS;
  finish(1);
  assert.deepEqual(scene.run.state.texts.writing.map(({ id }) => id), [3, 4, 5], "the copy is old by now");
  for (const id of [3, 4, 5]) finish(id);
  assert.equal(scene.edition, first, "nobody writes, so the one who waits may have the old one");
  assert.deepEqual(scene.run.state.texts.writing.map(({ id }) => id), [6]);
});

Deno.test("texts: more than there is room for are refused", () => {
  const scene = new Scene();
  for (let id = 1; id <= TEXTS_MAX + 1; id++) scene.ask(id);
  assert.deepEqual(scene.told(TEXTS_MAX), []);
  const [refused] = scene.told(TEXTS_MAX + 1);
  assert.ok(refused?.what === "failed" && /24 texts are waiting/.test(refused.reason));
});

for (
  const [how, leave] of [
    ["is gone", (scene: Scene) => scene.run.gone("b")],
    ["is paused", (scene: Scene) => scene.say("b", { type: "pause", paused: true })],
    ["gives up", (scene: Scene) => {
      scene.say("b", { type: "write-failed", edition: scene.edition, stage: 0, reason: "its link is gone" });
    }],
  ] as const
) {
  Deno.test(`texts: a peer that writes ${how}: it begins anew with others, from what is written`, () => {
    const scene = new Scene(["a", "b"], { shadows: true });
    scene.run.commit();
    scene.ask(1);
    scene.opened();
    scene.wrote(1);
    scene.wrote(1, 4);
    const before = scene.edition;
    scene.run.commit();
    scene.orders();
    leave(scene);
    scene.run.now += 10;
    scene.run.feed({ type: "tick" });
    const orders = scene.orders();
    const closed = orders.filter(({ order }) => order === "close").map(({ to_ }) => to_).sort();
    assert.deepEqual(closed, how === "is gone" ? ["a"] : ["a", "b"]);
    assert.notEqual(scene.edition, before);
    const { seats, step } = scene.run.state.texts.edition!;
    const others = how === "gives up" ? "ab" : "aa";
    assert.deepEqual([step, seats.map(({ peer }) => peer).join("")], [2, others]);
    scene.opened();
    const text = scene.ordered("text")[0]!;
    assert.equal(text.drawn, 1);
    scene.wrote(1);
    scene.wrote(1, 5);
    scene.wrote(1);
    scene.wrote(1, 6);
    assert.deepEqual(scene.tokens(1), [4, 5, 6]);
    assert.deepEqual(scene.told(1).filter(({ what }) => what === "begun"), [
      { what: "begun", step: 1, restarts: 0 },
      { what: "begun", step: 2, restarts: 1 },
    ]);
  });
}

Deno.test("texts: a stage that only a refusing peer holds is asked a few times, then the reason is told", () => {
  const scene = new Scene();
  scene.ask(1);
  let asked = 0;
  for (let i = 0; i < 40 && scene.told(1).length === 0; i++) {
    if (scene.run.state.texts.edition !== null) {
      asked++;
      const reason = "a copy of stage 1 needs 9 MiB, and 3 are left";
      scene.say("a", { type: "write-failed", edition: scene.edition, stage: 0, reason });
    }
    scene.tick(500);
  }
  assert.equal(asked, 5);
  const [failed] = scene.told(1);
  assert.ok(
    failed?.what === "failed" && failed.code === "no-writers" && /a: a copy .* 9 MiB/.test(failed.reason),
  );
  scene.ask(2);
  assert.ok(scene.run.state.texts.edition !== null, "the next one is tried afresh");
});

Deno.test("texts: editions that come on with a text are no failures, however many end", () => {
  const scene = new Scene();
  scene.ask(1, { count: 20 });
  for (let token = 0; token < 10; token++) {
    for (let i = 0; i < 20 && scene.run.state.texts.edition === null; i++) scene.tick(500);
    scene.opened();
    while (scene.tokens(1).length === token) {
      const { underWay, pieces } = scene.run.state.texts.writing[0]!;
      scene.wrote(1, underWay === 1 && pieces.length === 0 ? 5 : undefined);
    }
    scene.say("a", { type: "write-failed", edition: scene.edition, stage: 0, reason: "its link is gone" });
  }
  assert.deepEqual([scene.tokens(1).length, scene.told(1).filter(({ what }) => what === "failed")], [10, []]);
  const metrics = metricsText(scene.run.state);
  assert.match(metrics, /^shoal_text_tokens_total 10$/m);
  assert.match(metrics, /^shoal_text_restarts_total 10$/m);
  assert.match(metrics, /^shoal_texts{state="waiting"} 1$/m);
});

Deno.test("texts: silence ends an edition, and everything ends in time", () => {
  const scene = new Scene();
  scene.ask(1);
  scene.tick(OPEN_MS + 1_000);
  assert.equal(scene.ordered("close").length, 2, "nobody has copied anything");
  scene.tick(1_000);
  scene.opened();
  const second = scene.edition;
  scene.tick(STALL_MS + 1_000);
  assert.notEqual(scene.run.state.texts.edition?.id, second, "no piece came back");
  scene.tick(TEXT_MS);
  const failed = scene.told(1).at(-1)!;
  assert.ok(failed.what === "failed" && /after 300 s/.test(failed.reason), JSON.stringify(failed));
  assert.deepEqual(scene.run.state.texts.waiting, []);
});

Deno.test("texts: without peers that write it waits for a while, and after the run there is only the checkpoint", () => {
  const scene = new Scene();
  scene.run.state.peers["b"]!.writes = false;
  scene.ask(1);
  assert.deepEqual(scene.orders(), []);
  scene.tick(WAIT_MS + 1_000);
  const [failed] = scene.told(1);
  assert.ok(failed?.what === "failed" && /stage 2 has no computer/.test(failed.reason));
  scene.run.state.status = "finished";
  scene.ask(2);
  const [over] = scene.told(2);
  assert.ok(over?.what === "failed" && /the run is over/.test(over.reason));
});

Deno.test("texts: whoever goes away frees what the peers keep", () => {
  const scene = new Scene();
  scene.ask(1);
  scene.ask(2);
  scene.opened();
  scene.orders();
  scene.run.feed({ type: "text-cancel", id: 1 });
  assert.deepEqual(scene.orders().map(({ order, to_ }) => `${order} ${to_}`), ["drop a", "drop b"]);
  scene.wrote(1, 3);
  assert.deepEqual(scene.tokens(1), [], "what was under way is nobody's");
  scene.run.feed({ type: "text-cancel", id: 2 });
  assert.equal(scene.ordered("close").length, 2);
});

Deno.test("texts: what is not of the edition, not from its last stage or no token of the model changes nothing or ends it", () => {
  const scene = new Scene();
  scene.ask(1);
  scene.say("b", { type: "write-open", edition: scene.edition, stage: 0 });
  assert.ok(scene.run.state.texts.edition!.seats.every(({ open }) => !open), "it is not b's stage");
  scene.opened();
  const { edition } = scene;
  scene.say("b", { type: "wrote", edition: edition + 1, text: 1, position: 2 });
  scene.say("b", { type: "wrote", edition, text: 7, position: 2 });
  scene.wrote(1, 3, "a");
  scene.say("a", { type: "write-failed", edition, stage: 1, reason: "another's" });
  assert.equal(scene.run.state.texts.writing[0]!.underWay, 2);
  scene.wrote(1, 3);
  assert.deepEqual(scene.tokens(1), [], "a token before its turn");
  scene.wrote(1, 7);
  assert.deepEqual(scene.tokens(1), [], "the model has seven");
  assert.notEqual(scene.edition, edition);
});

Deno.test("texts: who has least to do writes, and whoever leaves is not asked", () => {
  const scene = new Scene(["a", "b"], { shadows: true });
  scene.run.commit();
  scene.ask(1);
  // Each computes one stage and keeps the other: the shadows have the time.
  const computes = scene.run.state.view!.stages.map((stage) =>
    stage.replicas.find((it) => it.microBatches.length > 0)!.peer
  );
  const writes = scene.run.state.texts.edition!.seats.map(({ peer }) => peer);
  assert.deepEqual(writes, [...computes].reverse());
  scene.run.feed({ type: "text-cancel", id: 1 });
  scene.run.state.peers["b"]!.leaving = true;
  scene.ask(2);
  assert.deepEqual(scene.run.state.texts.edition!.seats.map(({ peer }) => peer), ["a", "a"]);
});
