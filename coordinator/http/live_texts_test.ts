// Texts by a run's peers on the side of whoever asks: into tokens and back, stops, limits, and ends. The core here answers by hand;
// with real peers it is test/e2e/live_text_test.ts.
import assert from "node:assert/strict";
import { ADMIN, openSite } from "../../test/support/site.ts";
import { byteLevelTokenizerJson } from "../../test/support/llama.ts";
import type { RunEvent } from "../core/run_state.ts";
import type { TextTold, TextWish } from "../core/text_state.ts";
import { specOf } from "../../peer/model/layout.ts";
import { readConfig } from "../../peer/model/config.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { addedTokensOf } from "../store/tokenizer_marks.ts";
import { LiveTexts, type TextShell } from "./live_texts.ts";
import type { TextRequest } from "./text_protocol.ts";
import { BusyError, TextService } from "./text_service.ts";

const CONFIG = readConfig({ n_layer: 1, n_head: 1, n_kv_head: 1, n_embd: 4, n_inner: 4, block_size: 4 });

class Core implements TextShell {
  readonly fed: RunEvent[] = [];
  onText: (id: number, told: TextTold) => void = () => {};
  readonly core = { state: { view: null, status: "training" as const, spec: specOf(CONFIG, 3) } };
  readonly options: TextShell["options"] = { corpus: { vocab: ["a", "b", "c"] } };
  feed(event: Parameters<TextShell["feed"]>[0]): void {
    this.fed.push(event as RunEvent);
  }
  wishes(): TextWish[] {
    return this.fed.flatMap((it) => it.type === "text" ? [it.wish] : []);
  }
  tokens(id: number, ...tokens: number[]): void {
    for (const token of tokens) this.onText(id, { what: "token", token });
  }
}

const REQUEST: TextRequest = {
  ...{ prompt: "abc", count: 4, temperature: 0.5, topK: 2, topP: 0.9, seed: 7, stop: [] },
};

function setUp() {
  const core = new Core(), live = new LiveTexts(core);
  const ask = (changes: Partial<TextRequest> = {}, patient = false) => {
    const gone = new AbortController(), texts: string[] = [];
    const onText = (text: string) => void texts.push(text);
    const order = { request: { ...REQUEST, ...changes }, onText, signal: gone.signal, patient };
    const done = live.write(order);
    done.catch(() => {});
    return { gone, texts, done };
  };
  return { core, live, ask };
}

Deno.test("live texts: a prompt goes as tokens, what comes is text, and the end says whose weights wrote", async () => {
  const { core, ask } = setUp();
  const text = ask({ prompt: "abcabc" });
  const draws = { count: 4, temperature: 0.5, topK: 2, topP: 0.9, seed: 7 };
  assert.deepEqual(core.wishes(), [{ prompt: [2, 0, 1, 2], ...draws }], "no more than a window holds");
  core.onText(1, { what: "begun", step: 3, restarts: 0 });
  core.tokens(1, 0, 1);
  core.onText(1, { what: "begun", step: 5, restarts: 1 });
  core.onText(1, { what: "begun", step: 5, restarts: 2 });
  core.tokens(1, 2);
  core.tokens(9, 2);
  core.onText(1, { what: "end" });
  assert.deepEqual(await text.done, {
    ...{ step: 5, end: { reason: "length", promptTokens: 6, tokens: 3 } },
    live: { steps: [3, 5], restarts: 2 },
  });
  assert.deepEqual(text.texts, ["a", "b", "c"]);
});

Deno.test("live texts: an echo comes once, when it is sure that there will be a text", async () => {
  const { core, ask } = setUp();
  const text = ask({ prompt: [2, 0], echo: true });
  assert.deepEqual(text.texts, []);
  core.onText(1, { what: "begun", step: 3, restarts: 0 });
  core.onText(1, { what: "begun", step: 4, restarts: 1 });
  core.tokens(1, 1);
  core.onText(1, { what: "end" });
  assert.equal((await text.done).end.tokens, 1);
  assert.deepEqual(text.texts, ["ca", "b"]);
});

Deno.test("live texts: a stop text ends it, and the peers are told", async () => {
  const { core, ask } = setUp();
  const text = ask({ prompt: [1], stop: ["ca"] });
  core.onText(1, { what: "begun", step: 3, restarts: 0 });
  core.tokens(1, 1, 2, 2, 0);
  core.tokens(1, 1);
  const { end } = await text.done;
  assert.deepEqual([end, text.texts.join("")], [{ reason: "stop", promptTokens: 1, tokens: 4 }, "bc"]);
  assert.deepEqual(core.fed.at(-1), { type: "text-cancel", id: 1 });
});

Deno.test("live texts: the token that ends a text ends it, unless the reader wants it to go on", async () => {
  const { core, ask } = setUp();
  const tokenizer = byteLevelTokenizerJson(["t h", "th e"]), end = addedTokensOf(tokenizer)[0]!.id;
  core.options.corpus.vocab = Array.from({ length: end + 1 }, (_, i) => `<${i}>`);
  core.options.corpus.tokenizer = JSON.stringify(tokenizer);
  const [first, second] = [ask({ prompt: [1] }), ask({ prompt: [1], ignoreEos: true })];
  assert.ok(core.wishes().every((wish) => !("ignoreEos" in wish)), "the peers know nothing of it");
  for (const id of [1, 2]) core.tokens(id, 257, end, 257);
  core.onText(2, { what: "end" });
  const [{ end: stopped }, { end: whole }] = [await first.done, await second.done];
  assert.deepEqual([stopped.reason, stopped.tokens, first.texts.join("")], ["stop", 2, "the"]);
  assert.deepEqual([whole.reason, whole.tokens, second.texts.join("")], ["length", 3, "thethe"]);
});

Deno.test("live texts: whoever goes away ends theirs alone, and closing ends all", async () => {
  const { core, live, ask } = setUp();
  const [first, second] = [ask(), ask()];
  first.gone.abort(new Error("the reader went away"));
  await assert.rejects(first.done, /went away/);
  assert.deepEqual(core.fed.at(-1), { type: "text-cancel", id: 1 });
  core.onText(2, { what: "failed", code: "no-writers", reason: "b is gone" });
  await assert.rejects(second.done, (it) => it instanceof ShoalError && it.code === "no-writers");
  const third = ask();
  live.close();
  await assert.rejects(third.done, /is being stopped/);
  await assert.rejects(ask().done, /is being stopped/);
});

Deno.test("live texts: so many are let in, further ones of a request that is in may wait with them", async () => {
  const { ask } = setUp();
  for (let i = 0; i < 12; i++) ask();
  await assert.rejects(ask().done, (it) => it instanceof BusyError && /12 texts/.test(it.message));
  for (let i = 0; i < 12; i++) ask({}, true);
  await assert.rejects(ask({}, true).done, BusyError);
});

Deno.test("live texts: what the model cannot read is refused before anybody is troubled", async () => {
  const { core, ask } = setUp();
  const cases: [TextRequest["prompt"], string, RegExp][] = [
    ["abZ", "bad-corpus", /"Z"/],
    [[3], "usage", /token 3 is not one of 0 to 2/],
    [[], "usage", /empty/],
    ["a".repeat(65_537), "usage", /65537 characters/],
  ];
  for (const [prompt, code, pattern] of cases) {
    const matches = (it: unknown) => it instanceof ShoalError && it.code === code && pattern.test(it.message);
    await assert.rejects(ask({ prompt }).done, matches);
  }
  assert.deepEqual(core.fed, []);
});

Deno.test("live texts: a run with a view is a model of its own, which a run that is over is not", async () => {
  const service = new TextService(() => assert.fail("no checkpoint is asked"));
  await using site = await openSite({ texts: service, live: (shell) => new LiveTexts(shell) });
  const models = async () => {
    const { data } = await (await site.ask("/v1/models", { token: ADMIN })).json();
    return data.map(({ id }: { id: string }) => id);
  };
  assert.deepEqual(await models(), []);
  const { state } = site.shell.core;
  state.view = { stages: [] } as unknown as typeof state.view;
  assert.deepEqual(await models(), ["the run:live"]);
  state.status = "finished";
  assert.deepEqual(await models(), []);
  const body = JSON.stringify({ model: "the run:live", prompt: "ab" });
  const response = await site.ask("/v1/completions", { method: "POST", token: ADMIN, body });
  assert.equal(response.status, 503);
  assert.match((await response.json()).error.message, /the run is over; its last checkpoint writes texts/);
  service.close();
});
