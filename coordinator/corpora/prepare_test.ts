// From a file to tokens on the disk and back: separators, widths, one preparation per content, progress, and what is left after a
// failure.
import assert from "node:assert/strict";
import { join } from "node:path";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { Corpus } from "../../peer/model/data.ts";
import { loadCorpus, openCorpus } from "../store/corpus.ts";
import { heldBytes, TokenFile } from "../store/token_store.ts";
import { gpt2TokenizerJson } from "./gpt2.ts";
import { prepareCharacters, type PrepareProgress, prepareTokens } from "./prepare.ts";
import { describeCorpus, openPrepared, sha256 } from "./prepared.ts";
import type { TextPart } from "./sources.ts";

async function inFolder(body: (folder: string) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-corpora-" });
  try {
    await body(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

async function* parts(...texts: string[]): AsyncGenerator<TextPart> {
  let done = 0;
  for (const text of texts) yield await Promise.resolve({ text, ends: true, done: done += text.length });
}

Deno.test("prepare: documents of characters are separated by a line's end, those of GPT-2 by its end of text", () =>
  inFolder(async (folder) => {
    const path = join(folder, "a.jsonl");
    await Deno.writeTextFile(path, '{"body":"ab"}\n\n{"body":""}\n{"body":"ba c"}\n');
    const chars = await loadCorpus(path, undefined, null, { column: "body" });
    assert.equal(chars.decode(chars.tokens), "ab\n\nba c\n");
    const words = await loadCorpus(path, undefined, null, { column: "body", tokenizer: "gpt2" });
    assert.deepEqual([...words.tokens], [397, 50256, 50256, 7012, 269, 50256]);
    assert.deepEqual([words.bytesPerToken, words.vocab.length], [2, 50257]);
    assert.equal(words.tokenizer, gpt2TokenizerJson());
    assert.equal(words.decode(words.tokens), "abba c");
    await assert.rejects(loadCorpus(path), refusal(/line 1: it has no field "text"; it has "body"/));
  }));

Deno.test("prepare: a single document gets no character of its own", async () => {
  const one = await prepareCharacters(() => parts("ab"), { name: "a" });
  assert.deepEqual([one.vocab, one.tokens], [["a", "b"], 2]);
  const two = await prepareCharacters(() => parts("ab", "a"), { name: "a" });
  assert.deepEqual([two.vocab, two.tokens, two.documents], [["\n", "a", "b"], 5, 2]);
});

Deno.test("prepare: more than 65,536 tokens take four bytes each, through the disk too", () =>
  inFolder(async (folder) => {
    const vocab = Object.fromEntries(Array.from({ length: 70_000 }, (_, i) => [`w${i}`, i]));
    const model = { type: "WordLevel", vocab, unk_token: "w0" };
    const rest = { normalizer: null, post_processor: null, decoder: null, added_tokens: [] };
    const json = JSON.stringify({ model, pre_tokenizer: { type: "Whitespace" }, ...rest });
    await Deno.writeTextFile(join(folder, "words.json"), json);
    const text = join(folder, "a.txt");
    await Deno.writeTextFile(text, "w69999 w5 w65536\n".repeat(70_000));
    const options = { tokenizer: join(folder, "words.json"), folder: join(folder, "kept") };
    const made = await loadCorpus(text, undefined, null, options);
    assert.deepEqual([...made.tokens.subarray(0, 4)], [69_999, 5, 65_536, 69_999]);
    assert.ok(made.tokens instanceof Uint32Array && made.bytesPerToken === 4);
    assert.equal(made.tokens.length, 210_000);
  }));

Deno.test("prepare: a text is prepared once, and a changed one anew", () =>
  inFolder(async (folder) => {
    const path = join(folder, "a.txt"), kept = join(folder, "kept");
    const progress: PrepareProgress[] = [];
    const load = () =>
      loadCorpus(path, undefined, null, { folder: kept, onProgress: (it) => progress.push(it) });
    await Deno.writeTextFile(path, "abc\n".repeat(300_000));
    const first = await load();
    assert.deepEqual(progress.at(-1), {
      bytes: 1_200_000,
      of: 1_200_000,
      tokens: progress.at(-1)!.tokens,
      documents: 0,
    });
    assert.ok(progress.every(({ bytes }, i) => i === 0 || bytes >= progress[i - 1]!.bytes));
    progress.length = 0;
    const again = await load();
    assert.deepEqual([again.hash, again.vocab, progress], [first.hash, first.vocab, []]);
    assert.equal(again.decode(again.tokens.subarray(0, 5)), "abc\na");
    await Deno.writeTextFile(path, "abcd\n".repeat(300_000));
    assert.notEqual((await load()).hash, first.hash);
    assert.equal([...Deno.readDirSync(kept)].length, 2);
  }));

Deno.test("prepare: what was prepared is named by its id, and a checkpoint with other tokens cannot use it", () =>
  inFolder(async (folder) => {
    const path = join(folder, "a.txt"), kept = join(folder, "kept");
    await Deno.writeTextFile(path, "abc\n".repeat(300_000));
    const made = await loadCorpus(path, undefined, null, { folder: kept });
    const [{ name: id }] = [...Deno.readDirSync(kept)] as [Deno.DirEntry];
    const named = await loadCorpus(`corpus:${id}`, made.vocab, null, { folder: kept });
    assert.equal(named.hash, made.hash);
    await assert.rejects(
      loadCorpus(`corpus:${id}`, ["a"], null, { folder: kept }),
      refusal(/tokens are not those of "corpus:/),
    );
    await assert.rejects(
      loadCorpus("corpus:0123456789abcdef", undefined, null, { folder: kept }),
      refusal(/is not here/),
    );
    await assert.rejects(
      loadCorpus("corpus:../a", undefined, null, { folder: kept }),
      refusal(/is not here/),
    );
    const description = await describeCorpus(kept, id);
    assert.deepEqual(description.split, {
      train: { begin: 0, end: 1_080_000 },
      val: { begin: 1_080_000, end: 1_200_000 },
    });
  }));

Deno.test("prepare: a prepared text that was altered on the disk is refused", () =>
  inFolder(async (folder) => {
    const path = join(folder, "a.txt"), kept = join(folder, "kept");
    await Deno.writeTextFile(path, "abc\n".repeat(300_000));
    await loadCorpus(path, undefined, null, { folder: kept });
    const [{ name: id }] = [...Deno.readDirSync(kept)] as [Deno.DirEntry];
    const tokens = await Deno.readFile(join(kept, id, "tokens.bin"));
    tokens[77]! ^= 1;
    await Deno.writeFile(join(kept, id, "tokens.bin"), tokens);
    await assert.rejects(openPrepared(kept, id), refusal(/tokens were altered; prepare it anew/));
    await Deno.writeFile(join(kept, id, "tokens.bin"), tokens.subarray(1));
    await assert.rejects(openPrepared(kept, id), refusal(/tokens were altered/));
    await Deno.writeTextFile(join(kept, id, "corpus.json"), '{"format":1,"tokens":1e15}');
    await assert.rejects(openPrepared(kept, id), refusal(/name: .*; prepare it anew/));
  }));

Deno.test("prepare: tokens that are many stay on the disk, are the same there, and are refused if they were altered", () =>
  inFolder(async (folder) => {
    const path = join(folder, "a.txt"), kept = join(folder, "kept");
    await Deno.writeTextFile(path, Array.from({ length: 90_000 }, (_, i) => `${i} of many\n`).join(""));
    const options = { folder: kept, tokenizer: "gpt2" };
    const here = await loadCorpus(path, undefined, null, options);
    const there = await openCorpus(path, undefined, null, { ...options, heldBytesMax: 1000, pageBytes: 512 });
    assert.ok(there.tokens instanceof TokenFile);
    assert.deepEqual([there.tokens.length, there.hash, there.vocab], [
      here.tokens.length,
      here.hash,
      here.vocab,
    ]);
    const { byteLength } = there.tokens;
    assert.equal(byteLength, 2 * here.tokens.length);
    const parts: Uint8Array[] = [];
    for await (const part of there.tokens.pieces(0, byteLength)) parts.push(part);
    assert.equal(sha256(Buffer.concat(parts)), here.hash);
    assert.equal(there.tokens.pages.digests.length, 32 * Math.ceil(byteLength / 512));
    assert.ok(heldBytes(there.tokens) < byteLength / 8);
    const tokens = await Deno.readFile(there.tokens.path);
    tokens[byteLength - 1]! ^= 1;
    await Deno.writeFile(there.tokens.path, tokens);
    const [{ name: id }] = [...Deno.readDirSync(kept)] as [Deno.DirEntry];
    for (const heldBytesMax of [1000, byteLength]) {
      await assert.rejects(openPrepared(kept, id, { heldBytesMax }), refusal(/tokens were altered/));
    }
    await Deno.truncate(there.tokens.path, byteLength - 1);
    await assert.rejects(openPrepared(kept, id, { heldBytesMax: 1000 }), refusal(/tokens were altered/));
  }));

Deno.test("prepare: whoever takes the blocks gets all tokens in order, and none is kept", async () => {
  let at = 0, blocksTaken = 0;
  const text = "abc\n".repeat(700_000);
  const open = async function* () {
    yield await Promise.resolve({ text, ends: false, done: text.length });
  };
  const take = async (block: Corpus) => {
    await Promise.resolve();
    assert.ok(block.every((token, i) => token === [1, 2, 3, 0][(at + i) % 4]), `block ${blocksTaken}`);
    at += block.length;
    blocksTaken++;
  };
  const { blocks, tokens } = await prepareCharacters(open, { name: "a", take });
  assert.deepEqual([blocks, tokens], [[], 2_800_000]);
  assert.ok(at === tokens && blocksTaken >= 3, `${at} in ${blocksTaken}`);
});

Deno.test("prepare: a text of no use is refused before anything is written", () =>
  inFolder(async (folder) => {
    const path = join(folder, "a.txt"), kept = join(folder, "kept");
    await Deno.writeTextFile(path, "abc\n".repeat(300_000));
    const accept = () => {
      throw new ShoalError("bad-corpus", "too short");
    };
    await assert.rejects(loadCorpus(path, undefined, null, { folder: kept, accept }), refusal(/too short/));
    assert.throws(() => Deno.statSync(kept), Deno.errors.NotFound);
  }));

Deno.test("prepare: others run meanwhile, and it ends when nobody wants it any more", async () => {
  const abort = new AbortController();
  let now = 0, turns = 0;
  const turn = () => {
    if (++turns === 3) abort.abort(new Error("enough"));
    return Promise.resolve();
  };
  const options = { name: "a", now: () => now += 10, turn, signal: abort.signal };
  await assert.rejects(prepareCharacters(() => parts("ab ".repeat(200_000)), options), /enough/);
  assert.equal(turns, 3);
});

Deno.test("prepare: a text without a token is refused, and one that the tokenizer cannot cut names where", async () => {
  const empty = { vocab: ["a"], encode: () => [], separator: [] };
  await assert.rejects(
    prepareTokens(() => parts("a"), empty, { name: "a.txt" }),
    refusal(/"a.txt" has no text/),
  );
  await assert.rejects(prepareCharacters(() => parts(), { name: "a.txt" }), refusal(/"a.txt" has no text/));
  const picky = {
    ...empty,
    encode: (text: string) => {
      if (text.includes("b")) throw new Error("no b");
      return [0];
    },
  };
  await assert.rejects(
    prepareTokens(() => parts("a", "ab"), picky, { name: "a" }),
    refusal(/after token 1: no b/),
  );
});

function refusal(pattern: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof ShoalError && error.code === "bad-corpus", String(error));
    assert.match(error.message, pattern);
    return true;
  };
}
