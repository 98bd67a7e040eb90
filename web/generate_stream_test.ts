// Reading a text as it comes: events cut anywhere, the end and its counts, refusals in the server's words, and a reader who stops.
import assert from "node:assert/strict";
import { ShoalError } from "../peer/wire/errors.ts";
import { type StreamEnd, streamText } from "./generate_stream.ts";

const WISH = { prompt: "a\u00e9", count: 9, temperature: 0.5, topK: 3, topP: 0.9, seed: 5, live: false };

function event(data: unknown): string {
  return `data: ${JSON.stringify(data)}\n\n`;
}

function piece(text: string, finish_reason: string | null = null): string {
  return event({ choices: [{ text, index: 0, finish_reason }] });
}

const COUNTS = event({ choices: [], system_fingerprint: "step-7", usage: { completion_tokens: 9 } });
const DONE = "data: [DONE]\n\n";

interface Asked {
  path: string;
  key: string | null;
  body: unknown;
}

/** Asks a server that answers with `answer`; tells what was asked, and the pieces that came. */
async function read(
  answer: () => Response,
  signal = new AbortController().signal,
  onText = (_: string) => {},
  wish = WISH,
): Promise<{ end: StreamEnd; text: string[]; asked: Asked[] }> {
  const [text, asked]: [string[], Asked[]] = [[], []];
  const server = Deno.serve({ port: 0, hostname: "127.0.0.1", onListen: () => {} }, async (request) => {
    const key = request.headers.get("authorization");
    asked.push({ path: new URL(request.url).pathname, key, body: await request.json() });
    return answer();
  });
  try {
    const base = `http://127.0.0.1:${server.addr.port}/r/one`;
    const heard = (it: string) => {
      text.push(it);
      onText(it);
    };
    const end = await streamText(wish, { base, token: "t", signal, onText: heard });
    return { end, text, asked };
  } finally {
    await server.shutdown();
  }
}

/** A body that comes in pieces of so many bytes. */
function inPieces(text: string, bytes: number): Response {
  const all = new TextEncoder().encode(text);
  let at = 0;
  return new Response(
    new ReadableStream({
      pull(controller) {
        if (at >= all.length) return controller.close();
        controller.enqueue(all.subarray(at, at += bytes));
      },
    }),
  );
}

Deno.test("generate stream: pieces in order wherever the line is cut, and how it ended", async () => {
  const whole = [piece("\u00e9\n\n"), piece("data: x"), piece("", "stop"), COUNTS, DONE].join("");
  for (const bytes of [1, 7, 10_000]) {
    const { end, text, asked } = await read(() => inPieces(whole, bytes));
    assert.deepEqual(text, ["\u00e9\n\n", "data: x"]);
    assert.deepEqual(end, { reason: "stop", step: 7, live: null, tokens: 9 });
    const body = { prompt: "a\u00e9", max_tokens: 9, temperature: 0.5, top_k: 3, top_p: 0.9, seed: 5 };
    assert.deepEqual(asked, [{
      ...{ path: "/r/one/v1/completions", key: "Bearer t" },
      body: { ...body, stream: true, stream_options: { include_usage: true } },
    }]);
  }
});

Deno.test("generate stream: the run's peers are asked for, and say whose weights wrote", async () => {
  const shoal = { live: true, steps: [3, 8], restarts: 1 };
  const end = event({
    choices: [{ text: "", finish_reason: "length" }],
    system_fingerprint: "step-3",
    shoal,
  });
  const wish = { ...WISH, live: true };
  const { end: told, asked } = await read(
    () => inPieces(piece("a") + end + DONE, 50),
    undefined,
    undefined,
    wish,
  );
  assert.deepEqual(told, {
    reason: "length",
    step: null,
    live: { steps: [3, 8], restarts: 1 },
    tokens: null,
  });
  assert.equal((asked[0]!.body as Record<string, unknown>).live, true);
});

Deno.test("generate stream: refusals keep the server's code and words, before the text and in it", async () => {
  const refused = (code: string | null, message: string) => ({
    error: { code, message, type: "x", param: null },
  });
  const cases: [() => Response, string, RegExp][] = [
    [() => Response.json(refused("no_checkpoint", "none yet"), { status: 503 }), "no_checkpoint", /none yet/],
    [() => Response.json(refused(null, "odd"), { status: 500 }), "internal", /odd/],
    [() => new Response("<html>", { status: 502 }), "offline", /502/],
    [() => inPieces(piece("a") + event(refused("internal", "it broke")), 9), "internal", /it broke/],
    [() => inPieces(piece("a"), 9), "offline", /mid-text/],
    [() => inPieces("data: {nonsense\n\n", 9), "offline", /no answer/],
    [() => inPieces("x".repeat((1 << 20) + 1), 1 << 16), "offline", /not one of a coordinator/],
  ];
  for (const [answer, code, words] of cases) {
    await assert.rejects(
      read(answer),
      (error) => error instanceof ShoalError && error.code === code && words.test(error.message),
      code,
    );
  }
});

Deno.test("generate stream: who stops gets the signal's reason, and the server loses its reader", async () => {
  const stop = new AbortController();
  let gone = false;
  const endless = () =>
    new Response(
      new ReadableStream({
        start: (controller) => controller.enqueue(new TextEncoder().encode(piece("a"))),
        cancel: () => void (gone = true),
      }),
    );
  await assert.rejects(
    read(endless, stop.signal, () => stop.abort(new Error("enough"))),
    (error) => (error as Error).message === "enough",
  );
  assert.ok(gone);
});

Deno.test("generate stream: no server is no answer", async () => {
  const options = {
    base: "http://127.0.0.1:1",
    token: "t",
    signal: new AbortController().signal,
    onText: () => {},
  };
  await assert.rejects(streamText(WISH, options), (error) => (error as ShoalError).code === "offline");
});
