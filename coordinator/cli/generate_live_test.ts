// `generate --url` against a server that answers by script: the text as it comes, whose weights wrote it, and every way in which an
// answer may fail. The real coordinator is in test/e2e/live_text_test.ts.
import assert from "node:assert/strict";
import { ShoalError } from "../../peer/wire/errors.ts";
import { generate } from "./generate.ts";

interface Heard {
  path: string;
  authorization: string | null;
  body: Record<string, unknown>;
}

async function run(answer: () => Response, flags: Record<string, string> = {}, at = "/r/one/admin#secret") {
  const heard: Heard[] = [], data: string[] = [], notes: string[] = [];
  const server = Deno.serve({ hostname: "127.0.0.1", port: 0, onListen: () => {} }, async (request) => {
    const { pathname: path } = new URL(request.url);
    heard.push({ path, authorization: request.headers.get("authorization"), body: await request.json() });
    return answer();
  });
  const url = `http://127.0.0.1:${server.addr.port}${at}`;
  const options = {
    flags: { url, prompt: "ab", count: "3", seed: "4", ...flags },
    config: {},
    positionals: [],
  };
  try {
    await generate(options, { data: (it) => data.push(it), note: (it) => notes.push(it) });
    return { heard: heard[0]!, data, notes };
  } finally {
    await server.shutdown();
  }
}

function events(...all: unknown[]): () => Response {
  const lines = all.map((it) => `data: ${typeof it === "string" ? it : JSON.stringify(it)}\n\n`).join("");
  return () => new Response(lines);
}

const piece = (text: string, finish_reason: string | null = null) => ({ choices: [{ text, finish_reason }] });
const WRITTEN = [
  ...[piece("c"), piece("d")],
  { ...piece("", "stop"), shoal: { live: true, steps: [3, 8], restarts: 1 } },
  { choices: [], usage: { prompt_tokens: 2, completion_tokens: 2 } },
];

Deno.test("generate --url: the peers' text comes as it is written, with whose weights it is", async () => {
  const { heard, data, notes } = await run(events(...WRITTEN, "[DONE]"), {
    ...{ stop: "z", ignore_eos: "true" },
  });
  assert.deepEqual([heard.path, heard.authorization], ["/r/one/v1/completions", "Bearer secret"]);
  assert.deepEqual(heard.body, {
    ...{ prompt: "ab", max_tokens: 3, temperature: 0.8, top_k: 0, top_p: 1, seed: 4, stop: ["z"] },
    ignore_eos: true,
    ...{ live: true, stream: true, stream_options: { include_usage: true } },
  });
  assert.deepEqual(data, ["ab", "c", "d", "\n"]);
  assert.match(
    notes[0]!,
    /^2 tokens in .* by the peers, with the weights of step 3, then 8; begun anew 1 time$/,
  );
  const json = await run(events(...WRITTEN, "[DONE]"), { json: "true" }, "/#t");
  assert.equal(json.heard.path, "/v1/completions");
  const { seconds, ...line } = JSON.parse(json.data.join(""));
  assert.ok(seconds >= 0 && json.notes.length === 0);
  assert.deepEqual(line, {
    ...{ prompt: "ab", text: "cd", finish_reason: "stop", steps: [3, 8], restarts: 1 },
    ...{ prompt_tokens: 2, tokens: 2 },
  });
});

Deno.test("generate --url: what fails has its code and says why", async () => {
  const error = { error: { code: "invalid_api_key", message: "the API key is wrong" } };
  const cases: [() => Response, string, RegExp][] = [
    [() => Response.json(error, { status: 401 }), "invalid_api_key", /the API key is wrong/],
    [() => new Response("?", { status: 502 }), "offline", /status 502/],
    [events(piece("c"), { error: { code: "offline", message: "b is gone" } }), "offline", /b is gone/],
    [events(piece("c")), "offline", /it ended before the text did/],
    [events("no JSON"), "offline", /cut off/],
    [() => new Response("x".repeat((1 << 20) + 1)), "offline", /not a coordinator's/],
  ];
  for (const [answer, code, pattern] of cases) {
    await assert.rejects(
      run(answer),
      (it) => it instanceof ShoalError && it.code === code && pattern.test(it.message),
      String(pattern),
    );
  }
  const never = () => assert.fail("nobody is asked");
  for (const link of ["runs/one", "ftp://a/#t", "http://127.0.0.1:1/admin"]) {
    await assert.rejects(run(never, { url: link }), /what follows its #/);
  }
  await assert.rejects(run(never, { checkpoint: "runs/one" }), /two ways to write/);
});
