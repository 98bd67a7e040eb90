// The run's text over HTTP, from memory and from the disk: whole, in ranges, with hashes that prove its pages, and only for whoever may join.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { Hono } from "hono";
import { hashPages, pageBytesFor, TokenFile, type Tokens } from "../store/token_store.ts";
import { addCorpusRoutes } from "./corpus_routes.ts";

/** More than one piece of an answer, and an odd end. */
const SIZE = (2 << 20) + 77;
const PAGE = 4096;
const BYTES = Uint8Array.from({ length: SIZE }, (_, i) => (i * 31 + (i >> 9)) & 0xff);

type Ask = (path: string, headers?: Record<string, string>) => Promise<Response>;

async function withFile(test: (file: TokenFile, path: string) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-tokens-" }), path = join(folder, "tokens.bin");
  try {
    await Deno.writeFile(path, BYTES);
    const { bytes, hash, pages } = await hashPages(path, PAGE);
    assert.deepEqual([bytes, hash], [SIZE, sha256(BYTES)]);
    await test(new TokenFile(path, { tokens: SIZE, bytesPerToken: 1, pages }), path);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

function serve(tokens: Tokens): Ask {
  const app = new Hono();
  addCorpusRoutes(app, tokens, (request) => request.headers.get("authorization") === "Bearer join");
  return async (path, headers = {}) =>
    await app.request(`http://localhost/api/corpus${path}`, {
      headers: { authorization: "Bearer join", ...headers },
    });
}

function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

async function bodyOf(response: Response): Promise<Uint8Array> {
  return new Uint8Array(await response.arrayBuffer());
}

Deno.test("corpus: whole or in ranges the bytes are the same, from memory and from the disk", () =>
  withFile(async (file) => {
    // In the middle of a buffer, as a view may be.
    const outer = new Uint8Array(SIZE + 16);
    outer.set(BYTES, 8);
    for (const ask of [serve(file), serve(outer.subarray(8, 8 + SIZE))]) {
      const whole = await ask("");
      assert.deepEqual([whole.status, whole.headers.get("content-length")], [200, String(SIZE)]);
      assert.equal(sha256(await bodyOf(whole)), sha256(BYTES));
      for (const [first, last] of [[0, 0], [4000, 4200], [0, SIZE - 1], [SIZE - 5, SIZE - 1]] as const) {
        const part = await ask("", { range: `bytes=${first}-${last}` });
        assert.equal(part.status, 206);
        assert.equal(part.headers.get("content-range"), `bytes ${first}-${last}/${SIZE}`);
        assert.equal(sha256(await bodyOf(part)), sha256(BYTES.subarray(first, last + 1)), `${first}-${last}`);
      }
    }
  }));

Deno.test("corpus: a range that cannot be is refused, and nobody reads it without the run's link", () =>
  withFile(async (file) => {
    const ask = serve(file);
    const wrong = [
      `bytes=0-${SIZE}`,
      "bytes=5-4",
      "bytes=-5",
      "bytes=5-",
      "bytes=0-1,3-4",
      "bytes=a-b",
      "tokens=0-1",
    ];
    for (const range of wrong) {
      const response = await ask("", { range });
      assert.equal(response.status, 416, range);
      assert.match((await response.json()).message, /ask for a part/);
    }
    for (const path of ["", "/pages"]) {
      const response = await ask(path, { authorization: "Bearer other" });
      assert.equal(response.status, 401);
      await response.body?.cancel();
    }
  }));

Deno.test("corpus: the hashes prove each page; a text that is fetched whole has none", () =>
  withFile(async (file) => {
    const digests = await bodyOf(await serve(file)("/pages"));
    assert.equal(digests.length, Math.ceil(SIZE / PAGE) * 32);
    for (const page of [0, 1, 511, 512]) {
      const wanted = sha256(BYTES.subarray(page * PAGE, (page + 1) * PAGE));
      assert.equal(Buffer.from(digests.subarray(page * 32, page * 32 + 32)).toString("hex"), wanted);
    }
    assert.equal(file.pages.hash, sha256(digests));
    const none = await serve(BYTES)("/pages");
    assert.equal(none.status, 404);
    await none.body?.cancel();
  }));

Deno.test("corpus: pages are answered as they are listed, and what is no list of pages is refused", () =>
  withFile(async (file) => {
    const ask = serve(file), list = [512, 3, 4, 0, 3];
    const response = await ask(`/pages/${list.join(",")}`), bytes = await bodyOf(response);
    const wanted = list.map((page) => BYTES.subarray(page * PAGE, (page + 1) * PAGE));
    assert.equal(sha256(bytes), sha256(Buffer.concat(wanted)));
    assert.equal(response.headers.get("content-length"), String(bytes.length));
    const many = Array(257).fill(0).join(",");
    for (const wrong of ["513", "0,", ",0", "a", "-1", "1.5", "0,,1", "9999999999", many]) {
      const refused = await ask(`/pages/${wrong}`);
      assert.equal(refused.status, 400, wrong.slice(0, 20));
      assert.match((await refused.json()).message, /at most 256 pages from 0 to 512/);
    }
    for (const [path, token, status] of [["/pages/0", "other", 401], ["/pages/0", "join", 404]] as const) {
      const refused = await serve(token === "join" ? BYTES : file)(path, {
        authorization: `Bearer ${token}`,
      });
      assert.equal(refused.status, status);
      await refused.body?.cancel();
    }
  }));

Deno.test("corpus: a file that has become shorter ends the answer with an error, not with other bytes", () =>
  withFile(async (file, path) => {
    await Deno.truncate(path, 1000);
    const response = await serve(file)("", { range: "bytes=900-1100" });
    await assert.rejects(response.arrayBuffer(), /ends at byte 1000, before 1101/);
  }));

Deno.test("corpus: pages grow with the text, so that their hashes stay few", () => {
  assert.deepEqual([1, 512 << 20, (512 << 20) + 1, 2 ** 30, 4 * 2 ** 30].map(pageBytesFor), [
    ...[4096, 4096, 8192, 8192, 32768],
  ]);
});
