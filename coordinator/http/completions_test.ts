// What the API does when something is missing, full or breaks, with a writer that the test feeds by hand. What it answers when
// all goes well is in coordinator/cli/serve_test.ts, with the real writer.
import assert from "node:assert/strict";
import { Hono } from "hono";
import { ADMIN, JOIN, openSite } from "../../test/support/site.ts";
import { addCompletionRoutes } from "./completions.ts";
import type { FromWriter, ToWriter } from "./text_protocol.ts";
import { QUEUE_MAX, TextService, type WriterPort } from "./text_service.ts";

class Port implements WriterPort {
  readonly heard: ToWriter[] = [];
  onmessage: ((event: MessageEvent<FromWriter>) => void) | null = null;
  onerror: ((event: ErrorEvent) => void) | null = null;
  postMessage(message: ToWriter): void {
    this.heard.push(message);
  }
  terminate(): void {}
  say(message: FromWriter): void {
    this.onmessage?.(new MessageEvent("message", { data: message }));
  }
}

interface Scene {
  port: Port;
  ask(body?: Record<string, unknown>): Promise<Response>;
  /** Resolves once the writer has this many orders. */
  heard(count: number): Promise<ToWriter>;
}

async function scene(
  checkpoint: string | null | (() => string),
  body: (scene: Scene) => Promise<void>,
): Promise<void> {
  const port = new Port(), app = new Hono();
  const service = new TextService(() => port);
  addCompletionRoutes(app, {
    ...{ service, model: "m", owner: "o", authorised: () => true },
    checkpoint: () => Promise.resolve(typeof checkpoint === "function" ? checkpoint() : checkpoint),
  });
  const ask = (more: Record<string, unknown> = {}) => {
    const init = { method: "POST", body: JSON.stringify({ prompt: "a", ...more }) };
    return Promise.resolve(app.fetch(new Request("http://127.0.0.1/v1/completions", init)));
  };
  const heard = async (count: number) => {
    while (port.heard.length < count) await new Promise((resolve) => setTimeout(resolve, 1));
    return port.heard[count - 1]!;
  };
  try {
    await body({ port, ask, heard });
  } finally {
    service.close();
  }
}

const END = { type: "end" as const, step: 3, end: { reason: "length" as const, promptTokens: 1, tokens: 1 } };

Deno.test("completions: before the first checkpoint there is no model, and a time to ask again", () =>
  scene(null, async ({ ask }) => {
    const response = await ask();
    assert.equal(response.status, 503);
    assert.ok(Number(response.headers.get("retry-after")) > 0);
    assert.equal((await response.json()).error.code, "no_checkpoint");
  }));

Deno.test("completions: the writer gets the checkpoint and the request", () =>
  scene("/c", async ({ ask, heard, port }) => {
    const asked = ask({ max_tokens: 3, seed: 9, stop: "z" });
    const order = await heard(1);
    const request = { prompt: "a", stop: ["z"], count: 3, temperature: 1, topP: 1, topK: 0, seed: 9 };
    assert.deepEqual(order, { type: "write", id: 1, path: "/c", request });
    port.say({ type: "text", id: 1, text: "bc" });
    port.say({ ...END, id: 1 });
    const { choices, system_fingerprint: print } = await (await asked).json();
    assert.deepEqual([choices[0].text, print], ["bc", "step-3"]);
  }));

Deno.test("completions: a checkpoint that a run removed before it was read is replaced by the newest, not for ever", async () => {
  let newest = 0;
  await scene(() => `/${newest}`, async ({ ask, heard, port }) => {
    const gone = (id: number) =>
      port.say({ type: "failed", id, code: "bad-checkpoint", message: "it is gone" });
    const asked = ask();
    await heard(1);
    newest = 1;
    gone(1);
    const order = await heard(2);
    assert.ok(order.type === "write" && order.path === "/1");
    port.say({ ...END, id: 2 });
    assert.equal((await asked).status, 200);
    const hopeless = ask();
    for (let id = 3; id <= 8; id++) {
      await heard(id);
      newest++;
      gone(id);
    }
    assert.equal((await hopeless).status, 500);
    assert.equal(port.heard.length, 8);
  });
});

Deno.test("completions: a full queue is 429 with a time to come again", () =>
  scene("/c", async ({ ask, heard, port }) => {
    const asked = Array.from({ length: QUEUE_MAX + 2 }, (_, i) => ask({ seed: i }));
    // One computes, the others but one wait: whichever came last is refused while all the others are still there.
    const refused = await Promise.any(
      asked.map(async (it) => (await it).status === 429 ? await it : Promise.reject()),
    );
    assert.ok(Number(refused.headers.get("retry-after")) >= 1);
    const { error } = await refused.json();
    assert.deepEqual([error.code, error.type], ["rate_limit_exceeded", "rate_limit_error"]);
    for (let id = 1; id < asked.length; id++) {
      assert.equal((await heard(id)).id, id);
      port.say({ ...END, id });
    }
    const served = (await Promise.all(asked)).filter((it) => it.status === 200);
    assert.equal(served.length, QUEUE_MAX + 1);
    for (const it of served) assert.equal((await it.json()).choices[0].finish_reason, "length");
  }));

for (const stream of [true, false]) {
  Deno.test(`completions: a reader that goes away cancels its text, stream = ${stream}`, () =>
    scene("/c", async ({ ask, heard, port }) => {
      const asked = ask({ stream });
      await heard(1);
      port.say({ type: "text", id: 1, text: "b" });
      await (await asked).body!.cancel();
      assert.deepEqual(await heard(2), { type: "cancel", id: 1 });
      port.say({ type: "text", id: 1, text: "late" });
      port.say({ type: "failed", id: 1, code: "usage", message: "the text was cancelled" });
    }));

  Deno.test(`completions: what fails before the first text has a status of its own, stream = ${stream}`, () =>
    scene("/c", async ({ ask, heard, port }) => {
      for (
        const [code, status] of [["bad-corpus", 400], ["bad-checkpoint", 500], ["internal", 500]] as const
      ) {
        const asked = ask({ stream }), id = port.heard.length + 1;
        await heard(id);
        port.say({ type: "failed", id, code, message: "the reason of the test" });
        const response = await asked;
        assert.equal(response.status, status);
        assert.equal((await response.json()).error.message, "the reason of the test");
      }
    }));

  Deno.test(`completions: what fails later is told in the answer, stream = ${stream}`, () =>
    scene("/c", async ({ ask, heard, port }) => {
      const asked = ask({ stream });
      await heard(1);
      port.say({ type: "text", id: 1, text: "b" });
      const response = await asked;
      assert.equal(response.status, 200);
      port.onerror?.(new ErrorEvent("error", { message: "out of memory", cancelable: true }));
      const text = await response.text();
      const last = stream ? text.trimEnd().split("\n\n").at(-1)!.slice("data: ".length) : text;
      assert.match(JSON.parse(last).error.message, /the writer failed: out of memory/);
      assert.doesNotMatch(text, /DONE/);
    }));
}

Deno.test("completions: on a run the admin token is a key, and the join token only if everybody may write", async () => {
  const service = new TextService(() => new Port());
  await using closed = await openSite({ texts: service });
  assert.equal((await closed.ask("/v1/models", { token: ADMIN })).status, 200);
  for (
    const [method, path] of [["GET", "/v1/models"], ["GET", "/v1/models/m"], ["POST", "/v1/completions"]]
  ) {
    assert.equal((await closed.ask(path!, { method: method!, token: JOIN })).status, 401);
  }
  const told = async (site: typeof closed) =>
    (await (await site.ask("/api/invite", { token: JOIN })).json()).text;
  assert.equal(await told(closed), undefined);
  await using site = await openSite({ texts: service, publicText: true });
  assert.equal(await told(site), true);
  for (const token of [JOIN, ADMIN]) {
    const list = await (await site.ask("/v1/models", { token })).json();
    assert.deepEqual(list, { object: "list", data: [] }, "there is no checkpoint yet");
    const post = { method: "POST", token, body: JSON.stringify({ prompt: "a" }) };
    assert.equal((await site.ask("/v1/completions", post)).status, 503);
  }
  for (const token of ["", "wrong", `${JOIN}x`]) {
    for (const [method, path] of [["GET", "/v1/models"], ["POST", "/v1/completions"]]) {
      const response = await site.ask(path!, { method: method!, token });
      assert.equal(response.status, 401);
      assert.equal((await response.json()).error.code, "invalid_api_key");
    }
  }
  service.close();
});
