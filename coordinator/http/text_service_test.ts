// The queue before the writer: one text at a time, in order, bounded, each ended by its text, an error or its caller. The writer
// here is a hand-fed port; the real one is in completions_test.ts.
import assert from "node:assert/strict";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { FromWriter, TextRequest, ToWriter } from "./text_protocol.ts";
import { BusyError, QUEUE_MAX, TextService, type WriterPort } from "./text_service.ts";

class Port implements WriterPort {
  readonly heard: ToWriter[] = [];
  terminated = false;
  onmessage: ((event: MessageEvent<FromWriter>) => void) | null = null;
  onerror: ((event: ErrorEvent) => void) | null = null;
  postMessage(message: ToWriter): void {
    this.heard.push(message);
  }
  terminate(): void {
    this.terminated = true;
  }
  say(message: FromWriter): void {
    this.onmessage?.(new MessageEvent("message", { data: message }));
  }
  get ids(): number[] {
    return this.heard.filter((it) => it.type === "write").map((it) => it.id);
  }
  end(id: number): void {
    this.say({ type: "end", id, step: 3, end: { reason: "length", promptTokens: 1, tokens: 2 } });
  }
}

function setUp() {
  const ports: Port[] = [];
  const service = new TextService(() => {
    const port = new Port();
    ports.push(port);
    return port;
  });
  const request: TextRequest = {
    ...{ prompt: "a", count: 1, temperature: 0, topK: 0, topP: 1, seed: 0, stop: [] },
  };
  function ask(signal = new AbortController().signal, patient = false) {
    const texts: string[] = [];
    const done = service.write({
      ...{ path: "/c", request, signal, patient },
      onText: (text) => texts.push(text),
    });
    done.catch(() => {});
    return { texts, done };
  }
  return { ports, service, ask };
}

Deno.test("texts: one at a time, in the order of asking, each with its own pieces", async () => {
  const { ports, service, ask } = setUp();
  const [a, b] = [ask(), ask()];
  const port = ports[0]!;
  assert.deepEqual(port.ids, [1]);
  port.say({ type: "text", id: 1, text: "x" });
  port.say({ type: "text", id: 2, text: "not yet begun" });
  port.end(1);
  assert.deepEqual(port.ids, [1, 2]);
  port.say({ type: "text", id: 1, text: "late" });
  port.say({ type: "failed", id: 2, code: "bad-corpus", message: "why" });
  assert.equal((await a.done).step, 3);
  assert.deepEqual(a.texts, ["x"]);
  await assert.rejects(b.done, (error) => error instanceof ShoalError && error.code === "bad-corpus");
  assert.deepEqual(b.texts, []);
  assert.equal(ports.length, 1);
  service.close();
  assert.ok(port.terminated);
});

Deno.test("texts: a full queue refuses at once and says when to come again", () => {
  const { ports, service, ask } = setUp();
  for (let i = 0; i <= QUEUE_MAX; i++) ask();
  assert.throws(
    () => ask(),
    (error) => error instanceof BusyError && error.retrySeconds >= 1 && error.retrySeconds <= 120,
  );
  ports[0]!.end(1);
  ask();
  service.close();
});

Deno.test("texts: whoever goes away makes room: in the queue, and while their text is written", async () => {
  const { ports, service, ask } = setUp();
  const [first, second] = [new AbortController(), new AbortController()];
  const [a, b, c] = [ask(first.signal), ask(second.signal), ask()];
  second.abort(new Error("b left"));
  await assert.rejects(b.done, /b left/);
  first.abort(new Error("a left"));
  await assert.rejects(a.done, /a left/);
  const port = ports[0]!;
  assert.deepEqual(port.heard.at(-1), { type: "cancel", id: 1 });
  assert.deepEqual(port.ids, [1], "the writer is still at it");
  port.say({ type: "failed", id: 1, code: "usage", message: "cancelled" });
  assert.deepEqual(port.ids, [1, 3]);
  port.end(3);
  await c.done;
  assert.throws(() => ask(AbortSignal.abort(new Error("before it began"))), /before it began/);
  service.close();
});

Deno.test("texts: a writer that dies fails its text, and the next one gets a new writer", async () => {
  const { ports, service, ask } = setUp();
  const [a, b] = [ask(), ask()];
  ports[0]!.onerror?.(new ErrorEvent("error", { message: "out of memory", cancelable: true }));
  await assert.rejects(a.done, /the writer failed: out of memory/);
  assert.ok(ports[0]!.terminated);
  assert.deepEqual(ports[1]!.ids, [2]);
  ports[1]!.end(2);
  await b.done;
  service.close();
});

Deno.test("texts: closing refuses what waits and what comes", async () => {
  const { service, ask } = setUp();
  const waiting = [ask(), ask()];
  service.close();
  for (const { done } of waiting) await assert.rejects(done, /being stopped/);
  assert.throws(() => ask(), (error) => error instanceof ShoalError && error.code === "offline");
});
