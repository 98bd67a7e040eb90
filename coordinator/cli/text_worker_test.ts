// The worker as its service meets it: texts in pieces, refusals with their code, a text that is cancelled ends at once, and another
// checkpoint is loaded when another is named.
import assert from "node:assert/strict";
import type { FromWriter, TextRequest, ToWriter } from "../http/text_protocol.ts";
import { openTextWorker } from "../main.ts";
import { inTempFolder, writeTiny } from "../../test/support/checkpoint.ts";

const REQUEST: TextRequest = {
  ...{ prompt: "abc", count: 20, temperature: 1, topK: 0, topP: 1, seed: 5, stop: [] },
};

async function withWorker(
  body: (ask: (order: ToWriter) => void, next: () => Promise<FromWriter>) => Promise<void>,
): Promise<void> {
  const worker = openTextWorker();
  const heard: FromWriter[] = [];
  let wake: () => void = () => {};
  worker.onmessage = ({ data }: MessageEvent<FromWriter>) => {
    heard.push(data);
    wake();
  };
  const next = async () => {
    while (heard.length === 0) await new Promise<void>((resolve) => wake = resolve);
    return heard.shift()!;
  };
  try {
    await body((order) => worker.postMessage(order), next);
  } finally {
    worker.terminate();
  }
}

Deno.test("text worker: a text comes in pieces and ends with its counts; a refusal has its code", () =>
  inTempFolder((folder) =>
    withWorker(async (ask, next) => {
      const path = await writeTiny(folder, { step: 3 });
      ask({ type: "write", id: 1, path, request: REQUEST });
      let text = "", message = await next();
      for (; message.type === "text"; message = await next()) text += message.text;
      assert.equal([...text].length, 20);
      assert.deepEqual(message, {
        ...{ type: "end", id: 1, step: 3, end: { reason: "length", promptTokens: 3, tokens: 20 } },
      });
      ask({ type: "write", id: 2, path, request: { ...REQUEST, prompt: "Z" } });
      const refused = await next();
      assert.ok(refused.type === "failed" && refused.id === 2 && refused.code === "bad-corpus");
      ask({ type: "write", id: 3, path: `${folder}/none`, request: REQUEST });
      const missing = await next();
      assert.ok(missing.type === "failed" && missing.code === "bad-checkpoint");
      const other = await writeTiny(folder, { step: 4 });
      ask({ type: "write", id: 4, path: other, request: REQUEST });
      for (message = await next(); message.type === "text";) message = await next();
      assert.ok(message.type === "end" && message.step === 4);
    })
  ));

Deno.test("text worker: a text that is cancelled ends, however long it was to be", () =>
  inTempFolder((folder) =>
    withWorker(async (ask, next) => {
      const path = await writeTiny(folder);
      ask({ type: "write", id: 1, path, request: { ...REQUEST, count: 1e12 } });
      assert.equal((await next()).type, "text");
      ask({ type: "cancel", id: 1 });
      let message = await next();
      while (message.type === "text") message = await next();
      assert.ok(message.type === "failed" && /cancelled/.test(message.message));
      ask({ type: "write", id: 2, path, request: REQUEST });
      assert.equal((await next()).id, 2);
    })
  ));
