// What a peer asks of its coordinator over HTTP: again when something before it says that it is away, and of a text in parts nothing before
// it is read.
import assert from "node:assert/strict";
import { fetchCorpus, Requests } from "./requests.ts";
import { ShoalError } from "./wire/errors.ts";

type Answer = (request: Request, count: number) => Response;

async function withServer(
  answer: Answer,
  test: (requests: Requests, asked: { count: number; back: number }) => Promise<void>,
): Promise<void> {
  const asked = { count: 0, back: 0 };
  const server = Deno.serve(
    { hostname: "127.0.0.1", port: 0, onListen: () => {} },
    (request) => answer(request, ++asked.count),
  );
  const requests = new Requests({
    ...{
      origin: `http://127.0.0.1:${server.addr.port}`,
      token: "t",
      identity: () => null,
      over: () => false,
    },
    back: () => Promise.resolve(++asked.back > 0),
  });
  try {
    await test(requests, asked);
  } finally {
    await server.shutdown();
  }
}

function isProblem(code: string, pattern: RegExp) {
  return (error: unknown) =>
    error instanceof ShoalError && error.code === code && pattern.test(error.message);
}

Deno.test("requests: a proxy whose coordinator is away is asked again once it is back; a refusal is not", async () => {
  await withServer(
    (_, count) => new Response("", { status: count < 3 ? 502 : 200 }),
    async (requests, asked) => {
      assert.equal((await requests.fetch("/api/x")).status, 200);
      assert.deepEqual(asked, { count: 3, back: 2 });
    },
  );
  await withServer(() => new Response("", { status: 503 }), async (requests, asked) => {
    await assert.rejects(
      requests.fetch("/api/x"),
      isProblem("offline", /answered 503: the coordinator is away/),
    );
    assert.equal(asked.count, 3);
  });
  await withServer(() => new Response("no", { status: 404 }), async (requests, asked) => {
    await assert.rejects(requests.fetch("/api/x"), isProblem("bad-state", /answered 404: no/));
    assert.deepEqual(asked, { count: 1, back: 0 });
  });
});

Deno.test("requests: a text in parts is asked for only when it is read, and hashes that are not its own are refused", async () => {
  const announced = {
    tokens: 500,
    bytesPerToken: 1 as const,
    hash: "",
    pages: { bytes: 64, hash: "0".repeat(64) },
  };
  await withServer(() => new Response(new Uint8Array(8 * 32)), async (requests, asked) => {
    const corpus = await fetchCorpus(requests, announced);
    assert.deepEqual([corpus.length, asked.count], [500, 0]);
    assert.ok("read" in corpus);
    await assert.rejects(
      corpus.read({ begin: 0, end: 9 }),
      isProblem("bad-corpus", /hashes .* arrived damaged/),
    );
  });
});
