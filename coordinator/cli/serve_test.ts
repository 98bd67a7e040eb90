// The completions API over a real checkpoint, a real worker and a real socket, as a client meets it: answers, streams, counts,
// errors in OpenAI's shape, and a reader that goes away.
import assert from "node:assert/strict";
import { inTempFolder, TINY_VOCAB, writeTiny } from "../../test/support/checkpoint.ts";
import { type Served, startServing } from "./serve.ts";
import { createSampler } from "../../peer/engine/sampler.ts";
import { readWeights } from "../store/weights.ts";
import { TextModel } from "./text_model.ts";

const KEY = "a-key-of-the-test";

async function withServer(body: (served: Served, folder: string) => Promise<void>): Promise<void> {
  await inTempFolder(async (folder) => {
    await writeTiny(folder, { step: 7 });
    const served = await startServing({
      checkpoint: folder,
      host: "127.0.0.1",
      port: 0,
      name: "tiny",
      key: KEY,
    });
    try {
      await body(served, folder);
    } finally {
      await served.stop();
    }
  });
}

function ask(url: string, body: unknown, init: RequestInit & { key?: string } = {}): Promise<Response> {
  const { key = KEY, ...rest } = init;
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const text = typeof body === "string" ? body : JSON.stringify(body);
  return fetch(`${url}/completions`, { method: "POST", headers, body: text, ...rest });
}

/** The data of each server-sent event. */
function events(text: string): string[] {
  return text.split("\n\n").filter((it) => it !== "").map((it) => {
    assert.ok(it.startsWith("data: ") && !it.includes("\n"), it);
    return it.slice(6);
  });
}

async function problem(response: Response, status: number, code: string | null) {
  assert.equal(response.status, status);
  const { error, ...rest } = await response.json();
  assert.deepEqual(rest, {});
  assert.deepEqual(Object.keys(error).sort(), ["code", "message", "param", "type"]);
  assert.equal(error.code, code);
  assert.ok(error.message.length > 10);
  return error;
}

const REQUEST = { model: "tiny", prompt: "abc", max_tokens: 30, temperature: 1, seed: 5 };

Deno.test("serve: a completion is what the model writes, with its counts", () =>
  withServer(async ({ url, step }, folder) => {
    assert.equal(step, 7);
    const model = await TextModel.open(`${folder}/checkpoints/step-000000007`);
    const options = { prompt: "abc", count: 30, temperature: 1, topK: 0, topP: 1, seed: 5, stop: [] };
    const expected = [...model.write(options)].join("");
    const response = await ask(url, REQUEST);
    assert.equal(response.status, 200);
    const { id, created, ...answer } = await response.json();
    assert.match(id, /^cmpl-[0-9a-f]{32}$/);
    assert.ok(Number.isInteger(created));
    assert.deepEqual(answer, {
      ...{ object: "text_completion", model: "tiny", system_fingerprint: "step-7" },
      choices: [{ text: expected, index: 0, logprobs: null, finish_reason: "length" }],
      usage: { prompt_tokens: 3, completion_tokens: 30, total_tokens: 33 },
    });
    const stop = expected.slice(5, 7);
    const echoed = await (await ask(url, { ...REQUEST, echo: true, stop })).json();
    assert.equal(echoed.choices[0].text, "abc" + expected.slice(0, expected.indexOf(stop)));
    assert.equal(echoed.choices[0].finish_reason, "stop");
    const tokens = await (await ask(url, {
      ...REQUEST,
      prompt: [..."abc"].map((c) => TINY_VOCAB.indexOf(c)),
      echo: true,
    })).json();
    assert.equal(tokens.choices[0].text, `abc${expected}`, "tokens are echoed as text");
  }));

Deno.test("serve: a stream carries the same text in pieces, then the reason, the counts and [DONE]", () =>
  withServer(async ({ url }) => {
    const whole = (await (await ask(url, REQUEST)).json()).choices[0].text;
    const body = { ...REQUEST, stream: true, stream_options: { include_usage: true }, echo: true };
    const response = await ask(url, body);
    assert.match(response.headers.get("content-type")!, /^text\/event-stream/);
    const told = events(await response.text());
    assert.equal(told.pop(), "[DONE]");
    const pieces = told.map((it) => JSON.parse(it));
    const counts = pieces.pop();
    assert.deepEqual([counts.choices, counts.usage.completion_tokens], [[], 30]);
    assert.equal(pieces.map((it) => it.choices[0].text).join(""), `abc${whole}`);
    const reasons = pieces.map((it) => it.choices[0].finish_reason);
    assert.equal(reasons.pop(), "length");
    assert.ok(reasons.every((it) => it === null));
    assert.equal(new Set([...pieces, counts].map((it) => it.id)).size, 1);
  }));

/** The natural logarithm of softmax(logits)[token]. */
function logSoftmax(logits: Float32Array, token: number): number {
  const most = Math.max(...logits);
  return logits[token]! - most - Math.log(logits.reduce((sum, value) => sum + Math.exp(value - most), 0));
}

Deno.test("serve: logprobs are the model's own, of the prompt too where it is echoed, whole as streamed", () =>
  withServer(async ({ url }, folder) => {
    const { manifest: { spec }, params } = await readWeights(`${folder}/checkpoints/step-000000007`);
    const asked = { ...REQUEST, max_tokens: 4, temperature: 0.5, echo: true, logprobs: 2 };
    const [choice] = (await (await ask(url, asked)).json()).choices;
    const { tokens, token_logprobs, top_logprobs, text_offset } = choice.logprobs;
    assert.equal(tokens.join(""), choice.text);
    assert.deepEqual(text_offset, [0, 1, 2, 3, 4, 5, 6]);
    const ids = tokens.map((char: string) => TINY_VOCAB.indexOf(char));
    const rows = createSampler(spec, params).logits(ids), V = TINY_VOCAB.length;
    assert.deepEqual([token_logprobs[0], top_logprobs[0]], [null, null]);
    for (let i = 1; i < ids.length; i++) {
      const row = rows.subarray((i - 1) * V, i * V);
      assert.ok(Math.abs(token_logprobs[i] - logSoftmax(row, ids[i])) < 1e-5, `token ${i}`);
      const best = [...row.keys()].toSorted((a, b) => row[b]! - row[a]!).slice(0, 2);
      const wanted = new Set([...best.map((id) => TINY_VOCAB[id]), tokens[i]]);
      assert.deepEqual(new Set(Object.keys(top_logprobs[i])), wanted);
    }
    const scored = await (await ask(url, { ...asked, prompt: ids, max_tokens: 0, logprobs: 0 })).json();
    assert.deepEqual(scored.choices[0].logprobs, { ...choice.logprobs, top_logprobs: null });
    assert.deepEqual([scored.choices[0].text, scored.usage.completion_tokens], [choice.text, 0]);
    const told = events(await (await ask(url, { ...asked, stream: true })).text()).slice(0, -1);
    const pieces = told.map((it) => JSON.parse(it).choices[0].logprobs).filter((it) => it !== null);
    assert.deepEqual(pieces.flatMap((it) => it.token_logprobs), token_logprobs);
    const alone = (await (await ask(url, { ...asked, echo: false })).json()).choices[0].logprobs;
    assert.deepEqual([alone.token_logprobs, alone.text_offset], [token_logprobs.slice(3), [0, 1, 2, 3]]);
    const long = await ask(url, { ...asked, prompt: "abcabcabc" });
    assert.match((await problem(long, 400, "usage")).message, /9 tokens, more than the window holds/);
  }));

Deno.test("serve: of what a stop text cuts off nothing is told, however it was cut into tokens", () =>
  withServer(async ({ url }) => {
    const asked = { ...REQUEST, logprobs: 1 };
    const [{ text }] = (await (await ask(url, asked)).json()).choices;
    const stop = [text.slice(9, 12), text.slice(20, 22)];
    const [cut] = (await (await ask(url, { ...asked, stop })).json()).choices;
    assert.equal(cut.finish_reason, "stop");
    assert.equal(cut.logprobs.tokens.join(""), cut.text);
    assert.ok(cut.text.length < text.length);
  }));

Deno.test("serve: several texts in several ways are one answer, whole or streamed", () =>
  withServer(async ({ url }) => {
    const alone = async (prompt: string, seed: number) =>
      (await (await ask(url, { ...REQUEST, prompt, seed })).json()).choices[0].text;
    const expected = [await alone("abc", 5), await alone("abc", 6), await alone("b", 5), await alone("b", 6)];
    const asked = { ...REQUEST, prompt: ["abc", "b"], n: 2 };
    const { choices, usage } = await (await ask(url, asked)).json();
    assert.deepEqual(choices.map((it: { index: number }) => it.index), [0, 1, 2, 3]);
    assert.deepEqual(choices.map((it: { text: string }) => it.text), expected);
    assert.deepEqual(usage, { prompt_tokens: 3 + 1, completion_tokens: 120, total_tokens: 124 });
    const told = events(await (await ask(url, { ...asked, stream: true, echo: true })).text());
    assert.equal(told.pop(), "[DONE]");
    const texts = ["", "", "", ""], ends = [0, 0, 0, 0];
    for (const { index, text, finish_reason } of told.map((it) => JSON.parse(it).choices[0])) {
      texts[index] += text;
      if (finish_reason === "length") ends[index]!++;
    }
    assert.deepEqual(texts, expected.map((text, i) => `${i < 2 ? "abc" : "b"}${text}`));
    assert.deepEqual(ends, [1, 1, 1, 1]);
  }));

Deno.test("serve: the models are listed; a name that is none is 404", () =>
  withServer(async ({ url }) => {
    const headers = { authorization: `Bearer ${KEY}` };
    const list = await (await fetch(`${url}/models`, { headers })).json();
    assert.deepEqual([list.object, list.data.length, list.data[0].id], ["list", 1, "tiny"]);
    assert.equal((await (await fetch(`${url}/models/tiny`, { headers })).json()).id, "tiny");
    await problem(await fetch(`${url}/models/gpt-9`, { headers }), 404, "model_not_found");
    await problem(await ask(url, { ...REQUEST, model: "gpt-9" }), 404, "model_not_found");
    await problem(await fetch(`${url}/chat/completions`, { headers }), 404, null);
  }));

Deno.test("serve: every mistake is an error in OpenAI's shape", () =>
  withServer(async ({ url }) => {
    for (const key of ["", "wrong", `${KEY}x`]) {
      await problem(await ask(url, REQUEST, { key }), 401, "invalid_api_key");
    }
    for (const path of ["models", "models/tiny"]) {
      await problem(await fetch(`${url}/${path}`), 401, "invalid_api_key");
    }
    await problem(await ask(url, "{"), 400, null);
    assert.equal((await problem(await ask(url, { ...REQUEST, n: 5 }), 400, null)).param, "n");
    assert.match((await problem(await ask(url, { ...REQUEST, live: true }), 400, null)).message, /no peers/);
    const foreign = await problem(await ask(url, { ...REQUEST, prompt: "abZ" }), 400, "bad-corpus");
    assert.match(foreign.message, /never seen the character "Z"/);
    await problem(await ask(url, { ...REQUEST, prompt: "abZ", stream: true }), 400, "bad-corpus");
    await problem(await ask(url, { ...REQUEST, prompt: [99] }), 400, "usage");
    await problem(await ask(url, { ...REQUEST, prompt: "a".repeat(1 << 20) }), 413, "request_too_large");
    // Without a declared length; what comes after the limit is not read.
    let pieces = 0;
    const body = new ReadableStream<Uint8Array>({
      pull: (controller) =>
        pieces++ < 20 ? controller.enqueue(new Uint8Array(1 << 16).fill(32)) : controller.close(),
    });
    const headers = { authorization: `Bearer ${KEY}` };
    const chunked = new Request(`${url}/completions`, { method: "POST", headers, body });
    await problem(await fetch(chunked), 413, "request_too_large");
    assert.equal((await (await ask(url, REQUEST)).json()).usage.prompt_tokens, 3);
  }));

Deno.test("serve: a reader that goes away ends the text, and the next one is served", () =>
  withServer(async ({ url }) => {
    const leave = new AbortController();
    for (const stream of [true, false]) {
      const reading = ask(url, { ...REQUEST, max_tokens: 8192, stream }, { signal: leave.signal });
      const answer = await reading;
      assert.equal(answer.status, 200);
      await answer.body!.cancel();
    }
    leave.abort();
    const after = await (await ask(url, REQUEST)).json();
    assert.equal(after.usage.completion_tokens, 30);
  }));

Deno.test("serve: a run's folder answers with its newest checkpoint, also a later one", () =>
  withServer(async ({ url }, folder) => {
    const step = async () => (await (await ask(url, REQUEST)).json()).system_fingerprint;
    assert.equal(await step(), "step-7");
    await writeTiny(folder, { step: 9 });
    assert.equal(await step(), "step-9");
    const damaged = await writeTiny(folder, { step: 11 });
    await Deno.writeTextFile(`${damaged}/model-00001-of-00002.safetensors`, "no longer");
    const error = await problem(await ask(url, REQUEST), 500, "bad-checkpoint");
    assert.equal(error.type, "server_error");
  }));
