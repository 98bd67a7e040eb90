// The organizer's texts over HTTP, once with the real worker: upload, progress, list, use, delete; what is wrong with a file is told with its
// line, and nothing of it stays on the disk.
import assert from "node:assert/strict";
import { Hono } from "hono";
import { join } from "node:path";
import { ShoalError } from "../../peer/wire/errors.ts";
import { loadCorpus } from "../store/corpus.ts";
import type { PrepareJob, PreparePort } from "./jobs.ts";
import { CorpusLibrary, UPLOAD_BYTES_MAX } from "./library.ts";
import { openPrepareWorker, Preparer } from "./preparer.ts";
import { addCorporaRoutes } from "./routes.ts";
import type { CorpusInfo } from "./types.ts";
import { doJob } from "./work.ts";

interface Site {
  folder: string;
  library: CorpusLibrary;
  used: Set<string>;
  ask(method: string, path: string, body?: BodyInit | null, headers?: HeadersInit): Promise<Response>;
  /** Uploads and waits until it is ready or has failed. */
  bring(query: string, body: BodyInit): Promise<CorpusInfo>;
  files(): string[];
}

/** Does the same work on this thread, which starts at once. */
class Inline implements PreparePort {
  onmessage: PreparePort["onmessage"] = null;
  onerror: PreparePort["onerror"] = null;
  postMessage(job: PrepareJob): void {
    void doJob(job, (data) => this.onmessage?.(new MessageEvent("message", { data })));
  }
  terminate(): void {}
}

async function withSite(
  body: (site: Site) => Promise<void>,
  spawn: () => PreparePort = () => new Inline(),
): Promise<void> {
  const outer = await Deno.makeTempDir({ prefix: "shoal-library-" }), folder = join(outer, "corpora");
  const used = new Set<string>();
  const usedBy = (id: string) => used.has(id) ? ["my run"] : [];
  const library = await CorpusLibrary.open({ folder, usedBy, spawn });
  const app = new Hono();
  addCorporaRoutes(app, {
    library,
    isAdmin: (request) => request.headers.get("authorization") === "Bearer admin",
  });
  const ask: Site["ask"] = async (method, path, body = null, headers = {}) => {
    const init = { method, body, headers: { authorization: "Bearer admin", ...headers } };
    return await app.request(`http://localhost/api/corpora${path}`, init);
  };
  async function bring(query: string, body: BodyInit): Promise<CorpusInfo> {
    const known = new Set(library.listCorpora().map(({ id }) => id));
    const response = await ask("POST", `?${query}`, body);
    assert.equal(response.status, 202, await response.clone().text());
    while (true) {
      const done = library.listCorpora().find(({ id, state }) =>
        !known.has(id) && (state === "ready" || state === "failed")
      );
      if (done !== undefined) return done;
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
  try {
    await body({
      folder,
      library,
      used,
      ask,
      bring,
      files: () => [...Deno.readDirSync(folder)].map(({ name }) => name),
    });
  } finally {
    library.close();
    await Deno.remove(outer, { recursive: true });
  }
}

async function refused(response: Response, status: number, code: string, pattern: RegExp): Promise<void> {
  const text = await response.text();
  assert.equal(response.status, status, text);
  const problem = JSON.parse(text) as { code: string; message: string };
  assert.equal(problem.code, code);
  assert.match(problem.message, pattern);
}

Deno.test("library: a text is brought, listed, learned by a run, and deleted once nobody uses it", () =>
  withSite(async ({ folder, ask, bring, used, files }) => {
    assert.deepEqual(await (await ask("GET", "")).json().then((it) => it.corpora), []);
    const lines = Array.from({ length: 300 }, (_, i) => JSON.stringify({ body: `Hello world ${i}` })).join(
      "\n",
    );
    const info = await bring("name=my+texts.jsonl&column=body&tokenizer=gpt2&multiple=64", lines);
    const { id, ...rest } = info;
    assert.deepEqual(rest, {
      ...{ name: "my texts.jsonl", format: "jsonl", tokenizer: "gpt2", column: "body", bytes: lines.length },
      ...{
        bytesTotal: null,
        bytesDone: lines.length,
        documents: 300,
        tokens: info.tokens,
        vocabulary: 50_304,
      },
      ...{ state: "ready", error: null, usedBy: [] },
    });
    const corpus = await loadCorpus(`corpus:${id}`, undefined, null, { folder });
    assert.deepEqual([...corpus.tokens.subarray(0, 4)], [15496, 995, 657, 50256]);
    assert.deepEqual(files(), [id]);
    used.add(id);
    await refused(await ask("DELETE", `/${id}`), 409, "usage", /used by "my run"/);
    used.delete(id);
    assert.equal((await ask("DELETE", `/${id}`)).status, 204);
    assert.deepEqual(files(), []);
    await refused(await ask("DELETE", `/${id}`), 409, "usage", /there is no text/);
  }, openPrepareWorker));

Deno.test("library: the same text again is the one that is there; after a restart it is still there", () =>
  withSite(async ({ folder, library, bring, ask, files }) => {
    const { id } = await bring("name=a.txt", "abc\n".repeat(100));
    assert.equal((await ask("POST", "?name=b.txt", "abc\n".repeat(100))).status, 202);
    while (library.listCorpora().length > 1) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.deepEqual([library.listCorpora()[0]!.name, files()], ["a.txt", [id]]);
    await Deno.writeTextFile(join(folder, ".upload-0000"), "cut off by a crash");
    const again = await CorpusLibrary.open({ folder });
    assert.deepEqual(again.listCorpora(), library.listCorpora());
    assert.deepEqual(files(), [id]);
  }));

Deno.test("library: what is wrong with a file is told with its line, and nothing of it stays", () =>
  withSite(async ({ bring, ask, files, library }) => {
    const cases: [string, BodyInit, RegExp][] = [
      ["name=a.jsonl", '{"text":"a"}\n{"text":', /"a.jsonl", line 2: it is not JSON/],
      ["name=a.txt", Uint8Array.of(0x61, 0x0a, 0xff), /"a.txt", line 2, byte 2: ff is not UTF-8/],
      ["name=a.parquet", "PAR1 or not", /no Parquet file, or its end is missing/],
      ["name=b.txt", Uint8Array.of(0x50, 0x4b, 3, 4), /ZIP archive/],
    ];
    for (const [query, body, pattern] of cases) {
      const { state, error, id } = await bring(query, body);
      assert.deepEqual([state, error?.code], ["failed", "bad-corpus"]);
      assert.match(error!.message, pattern);
      assert.deepEqual(files(), []);
      assert.equal((await ask("DELETE", `/${id}`)).status, 204, "a failure is forgotten");
    }
    assert.deepEqual(library.listCorpora(), []);
  }));

Deno.test("library: an upload that breaks off or is too large leaves nothing", () =>
  withSite(async ({ ask, library, files }) => {
    const broken = new ReadableStream({
      start(controller) {
        controller.enqueue(new TextEncoder().encode("abc"));
        controller.error(new Error("the line went dead"));
      },
    });
    await refused(
      await ask("POST", "?name=a.txt", broken),
      422,
      "bad-corpus",
      /did not arrive: the line went dead/,
    );
    const short = { "content-length": "10" };
    await refused(await ask("POST", "?name=a.txt", "abc", short), 422, "bad-corpus", /3 of 10 bytes arrived/);
    const large = { "content-length": String(UPLOAD_BYTES_MAX + 1) };
    await refused(
      await ask("POST", "?name=a.txt", "abc", large),
      422,
      "bad-corpus",
      /at most 17179869184 are taken/,
    );
    assert.deepEqual([library.listCorpora(), files()], [[], []]);
  }));

Deno.test("library: only the organizer may look, bring or delete; a wish that does not fit is refused at once", () =>
  withSite(async ({ ask }) => {
    for (
      const [method, path] of [["GET", ""], ["POST", "?name=a"], ["POST", "/tokenizers"], [
        "DELETE",
        "/0000",
      ]] as const
    ) {
      assert.equal(
        (await ask(method, path, null, { authorization: "Bearer join" })).status,
        401,
        `${method} ${path}`,
      );
    }
    const wishes: [string, RegExp][] = [
      ["", /has no name/],
      ["name=a%00b", /printable/],
      ["name=a&format=doc", /the format "doc" is not known; use text, jsonl, parquet/],
      ["name=a&multiple=0", /multiple is "0"; use 1 to 1024/],
    ];
    for (const [query, pattern] of wishes) {
      await refused(await ask("POST", `?${query}`, "a"), 409, "usage", pattern);
    }
    await refused(
      await ask("POST", "?name=a&tokenizer=../x", "a"),
      422,
      "bad-corpus",
      /tokenizer "..\/x" is not here/,
    );
    await refused(await ask("POST", "?name=a", null), 422, "bad-corpus", /is empty/);
  }));

Deno.test("library: a tokenizer.json is brought once and cuts texts; one that cannot be used is refused", () =>
  withSite(async ({ ask, bring, folder }) => {
    const model = { type: "WordLevel", vocab: { "[UNK]": 0, hello: 1, world: 2 }, unk_token: "[UNK]" };
    const rest = { normalizer: null, post_processor: null, decoder: null, added_tokens: [] };
    const json = JSON.stringify({ model, pre_tokenizer: { type: "Whitespace" }, ...rest });
    const send = (text: string) => {
      return ask("POST", "/tokenizers?name=../my words.json", text, {
        "content-length": String(text.length),
      });
    };
    await refused(
      await send('{"model":{}}'),
      422,
      "bad-corpus",
      /"my-words.json" cannot be used: .*vocabulary/,
    );
    const answer = await send(json);
    assert.equal(answer.status, 201);
    const { tokenizer, vocabulary } = await answer.json();
    assert.equal(vocabulary, 3);
    assert.deepEqual((await (await ask("GET", "")).json()).tokenizers, [{
      id: tokenizer,
      name: "my-words.json",
    }]);
    const info = await bring(`name=a.txt&tokenizer=${tokenizer}`, "hello world hello you\n");
    assert.deepEqual([info.tokenizer, info.vocabulary, info.tokens], ["my-words.json", 3, 4]);
    const corpus = await loadCorpus(`corpus:${info.id}`, undefined, null, { folder });
    assert.deepEqual([[...corpus.tokens], corpus.tokenizer], [[1, 2, 1, 0], json]);
    const again = await CorpusLibrary.open({ folder });
    assert.deepEqual(again.listTokenizers(), [{ id: tokenizer, name: "my-words.json" }]);
  }));

/** A worker that never answers by itself. */
class StubWorker implements PreparePort {
  onmessage: PreparePort["onmessage"] = null;
  onerror: PreparePort["onerror"] = null;
  ended = false;
  postMessage(): void {}
  terminate(): void {
    this.ended = true;
  }
}

Deno.test("library: a text that is being prepared can be deleted, and the next has its turn", async () => {
  const workers: StubWorker[] = [];
  const spawn = () => {
    workers.push(new StubWorker());
    return workers.at(-1)!;
  };
  await withSite(async ({ ask, library, files }) => {
    const first = await (await ask("POST", "?name=a.txt", "abc")).json() as CorpusInfo;
    const second = await (await ask("POST", "?name=b.txt", "abd")).json() as CorpusInfo;
    const states = () => library.listCorpora().map(({ name, state }) => [name, state]);
    await settled(() => workers.length === 1);
    assert.deepEqual(states(), [["a.txt", "preparing"], ["b.txt", "waiting"]]);
    const progress = { bytes: 1.5, of: 3, tokens: 1, documents: 0 };
    workers[0]!.onmessage!(new MessageEvent("message", { data: { type: "progress", progress } }));
    assert.deepEqual([library.listCorpora()[0]!.bytesDone, library.listCorpora()[0]!.tokens], [1, 1]);
    await ask("DELETE", `/${first.id}`);
    await settled(() => workers.length === 2);
    await settled(() => states().length === 1);
    assert.ok(workers[0]!.ended && !workers[1]!.ended);
    assert.deepEqual(states(), [["b.txt", "preparing"]]);
    await ask("DELETE", `/${second.id}`);
    await settled(() => files().length === 0);
  }, spawn);
});

Deno.test("preparer: a worker that says nothing is ended, and the job fails with a remedy", async () => {
  const worker = new StubWorker();
  const job = { type: "check" as const, choice: { label: "x", json: "{}" } };
  await assert.rejects(
    new Preparer(() => worker, 5).run(job, { signal: new AbortController().signal }),
    (error) =>
      error instanceof ShoalError && /no progress for 0.005 s; try a smaller part/.test(error.message),
  );
  assert.ok(worker.ended);
});

async function settled(done: () => boolean): Promise<void> {
  while (!done()) await new Promise((resolve) => setTimeout(resolve, 5));
}
