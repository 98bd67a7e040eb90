// The corpus: what a data set may be, and that one which cannot be used is refused with the remedy before a run starts.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { type ErrorCode, ShoalError } from "../../peer/wire/errors.ts";
import { loadCorpus } from "./corpus.ts";

async function inFolder(body: (folder: string) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-corpus-" });
  try {
    await body(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

function refusal(code: ErrorCode, pattern: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof ShoalError, String(error));
    assert.equal(error.code, code);
    assert.match(error.message, pattern);
    return true;
  };
}

Deno.test("corpus: Moby Dick has 81 distinct characters and begins with its first chapter", async () => {
  const corpus = await loadCorpus("moby-dick");
  assert.equal(corpus.vocab.length, 81);
  assert.equal(corpus.bytesPerToken, 1);
  assert.ok(corpus.tokens.length > 1_000_000, `${corpus.tokens.length} characters`);
  assert.match(corpus.decode(corpus.tokens.subarray(0, 200)), /Loomings[\s\S]*Call me Ishmael\./);
  assert.equal(corpus.hash, createHash("sha256").update(corpus.tokens).digest("hex"));
  assert.equal((await loadCorpus("moby-dick")).hash, corpus.hash);
});

Deno.test("corpus: a text file is read as its characters, not as its bytes", () =>
  inFolder(async (folder) => {
    const path = join(folder, "text.txt");
    await Deno.writeTextFile(path, "näïve\n🐋🐋");
    const corpus = await loadCorpus(path);
    assert.equal(corpus.tokens.length, 8);
    assert.equal(corpus.vocab.length, 7);
    assert.equal(corpus.decode(corpus.tokens), "näïve\n🐋🐋");
  }));

Deno.test("corpus: more than 256 characters take two bytes each", () =>
  inFolder(async (folder) => {
    const path = join(folder, "wide.txt");
    const text = Array.from({ length: 300 }, (_, i) => String.fromCodePoint(0x4e00 + i)).join("");
    await Deno.writeTextFile(path, text);
    const corpus = await loadCorpus(path);
    assert.deepEqual([corpus.bytesPerToken, corpus.tokens instanceof Uint16Array], [2, true]);
    assert.equal(corpus.decode(corpus.tokens), text);
  }));

Deno.test("corpus: what cannot be read is refused with the known data sets as the remedy", () =>
  inFolder(async (folder) => {
    const remedy = /use a UTF-8 text, .* or a known data set \(moby-dick\)/;
    await assert.rejects(loadCorpus("moby-dock"), refusal("bad-corpus", remedy));
    await assert.rejects(loadCorpus(folder), refusal("bad-corpus", remedy));
    const latin = join(folder, "latin.txt");
    await Deno.writeFile(latin, Uint8Array.of(0x6e, 0xe4, 0x68, 0x65));
    await assert.rejects(loadCorpus(latin), refusal("bad-corpus", /line 1, byte 1: e4 68 65 is not UTF-8/));
    await assert.rejects(loadCorpus("constructor"), refusal("bad-corpus", remedy));
    await assert.rejects(loadCorpus("__proto__"), refusal("bad-corpus", remedy));
  }));

Deno.test("corpus: an empty text is refused", () =>
  inFolder(async (folder) => {
    const path = join(folder, "empty.txt");
    await Deno.writeTextFile(path, "");
    await assert.rejects(loadCorpus(path), refusal("bad-corpus", /./));
  }));

Deno.test("corpus: a checkpoint's vocabulary rules; a character outside it is refused", () =>
  inFolder(async (folder) => {
    const path = join(folder, "text.txt");
    await Deno.writeTextFile(path, "abba");
    const corpus = await loadCorpus(path, ["z", "b", "a"]);
    assert.deepEqual(Array.from(corpus.tokens), [2, 1, 1, 2]);
    await assert.rejects(loadCorpus(path, ["a", "z"]), refusal("bad-corpus", /b/));
  }));

Deno.test({
  name: "corpus: a file that this program may not read is named with what lets it",
  permissions: { read: [import.meta.dirname!] },
  fn: () =>
    assert.rejects(
      loadCorpus("/elsewhere/text.txt"),
      /"\/elsewhere\/text.txt" may not be read: .*; add --dataset \/elsewhere\/text.txt/,
    ),
});
