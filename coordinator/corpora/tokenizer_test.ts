// Tokenizers of new runs: GPT-2's numbers are OpenAI's, a text cut in pieces gives the tokens of the whole, and a tokenizer.json that
// cannot be used is refused before a text is read.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../../peer/wire/errors.ts";
import { loadCorpus } from "../store/corpus.ts";
import { tokenizerOf } from "../store/text_tokenizer.ts";
import { END_OF_TEXT, gpt2TokenizerJson } from "./gpt2.ts";
import { PIECE_CHARS, Pieces, piecesOf } from "./pieces.ts";
import { chooseTokenizer, newTokenizer, vocabularyRows } from "./tokenizer.ts";

const GPT2 = { label: "gpt2", json: gpt2TokenizerJson() };
const gpt2 = newTokenizer(GPT2, 64).tokenizer;
/** The whole text at once, as the library does it. */
const whole = tokenizerOf({ vocab: gpt2.vocab }, GPT2.json);

Deno.test("gpt2: the numbers are those of GPT-2", () => {
  // Known from OpenAI's encoder.
  const golden: [string, number[]][] = [
    ["Hello world", [15496, 995]],
    [" Hello", [18435]],
    ["Call me Ishmael.", [14134, 502, 1148, 21720, 417, 13]],
    ["Hello, world! 123  \n\n foo  bar's", [15496, 11, 995, 0, 17031, 220, 220, 628, 22944, 220, 2318, 338]],
    [`a${END_OF_TEXT}b`, [64, 50256, 65]],
  ];
  for (const [text, ids] of golden) assert.deepEqual(gpt2.encode(text), ids, text);
  assert.deepEqual(gpt2.separator, [50256]);
  assert.equal(vocabularyRows(GPT2, 1), 50257);
  assert.equal(gpt2.vocab.length, 50304);
  assert.equal(gpt2.vocab[50303], "<unused 50303>");
});

Deno.test("gpt2: looking words up gives what the whole way gives, whatever the text", () => {
  const part = fc.oneof(
    fc.constantFrom(
      " ",
      "  ",
      "\n",
      "\t",
      "don't",
      "WE'LL",
      "1234",
      "!?",
      "\u00a0",
      "中文",
      "🐋",
      "e\u0301",
      "<|end",
      END_OF_TEXT,
    ),
    fc.string({ unit: "grapheme", maxLength: 6 }),
  );
  fc.assert(
    fc.property(fc.array(part, { maxLength: 12 }), (parts) => {
      const text = parts.join("");
      assert.deepEqual(gpt2.encode(text), text === "" ? [] : whole.encode(text), JSON.stringify(text));
      assert.equal(
        whole.decode(gpt2.encode(text.replaceAll(END_OF_TEXT, ""))),
        text.replaceAll(END_OF_TEXT, ""),
      );
    }),
    { seed: 9, numRuns: 300 },
  );
});

Deno.test("pieces: a document in pieces has the tokens of the whole, and they do not depend on how it was read", async () => {
  const moby = await loadCorpus("moby-dick");
  const book = moby.decode(moby.tokens.subarray(0, 3 * PIECE_CHARS + 100));
  // No spaces for long, ends of lines, and only spaces.
  const text = `${book}\n\n${"深海".repeat(PIECE_CHARS)}\n\nand then${"\n \t".repeat(PIECE_CHARS)} the end`;
  const pieces = [...piecesOf(text)];
  assert.equal(pieces.join(""), text);
  assert.ok(pieces.length > 6 && pieces.every((it) => it.length <= PIECE_CHARS + 1 && it.isWellFormed()));
  for (const size of [1000, 7919, PIECE_CHARS + 1]) {
    const reader = new Pieces(), found: string[] = [];
    for (let at = 0; at < text.length; at += size) {
      found.push(...reader.push(text.slice(at, at + size), false));
    }
    found.push(...reader.push("", true));
    assert.deepEqual(found, pieces, `read in ${size}`);
  }
  assert.deepEqual([...piecesOf(book)].flatMap((piece) => gpt2.encode(piece)), whole.encode(book));
});

Deno.test("pieces: a cut waits for the character behind it, which decides", () => {
  const text = `${"x ".repeat(PIECE_CHARS / 2 - 1)}xx 1${" y".repeat(9)}`;
  const reader = new Pieces();
  const found = [
    ...reader.push(text.slice(0, PIECE_CHARS + 1), false),
    ...reader.push(text.slice(PIECE_CHARS + 1), true),
  ];
  assert.deepEqual(found, [...piecesOf(text)]);
  assert.equal(found[0]!.length, PIECE_CHARS - 3);
});

Deno.test("pieces: half a surrogate pair is never cut off", () => {
  const pieces = [...piecesOf("a" + "🐋".repeat(PIECE_CHARS))];
  assert.ok(pieces.length > 1 && pieces.every((piece) => piece.isWellFormed()));
});

Deno.test("tokenizer: a list of characters is a character tokenizer, documents separated by a line's end", () => {
  const model = { type: "BPE", vocab: { a: 0, "\n": 1, b: 2 }, merges: [] };
  const { json, tokenizer } = newTokenizer({ label: "x", json: JSON.stringify({ model }) }, 1);
  assert.equal(json, null);
  assert.deepEqual([tokenizer.encode("ab\n"), tokenizer.separator], [[0, 2, 1], [1]]);
  assert.throws(() => tokenizer.encode("abc"), refusal(/character "c" is none of the 3/));
});

Deno.test("tokenizer: a tokenizer.json that cannot be used is refused with its name and the reason", async () => {
  const files: [unknown, RegExp][] = [
    ["{", /"x" cannot be used: .*JSON/],
    [{}, /no model with a vocabulary/],
    [{ model: { vocab: {} } }, /vocabulary is empty/],
    [{ model: { type: "BPE", vocab: { a: 0, b: 0 }, merges: [] } }, /number 0 is "b" and "a"/],
    [{ model: { type: "BPE", vocab: { a: 2 ** 40 }, merges: [] } }, /tokens; at most 262144/],
    [{ model: { type: "BPE", vocab: { a: -1 }, merges: [] } }, /has no number/],
    [
      { model: { type: "Nonsense", vocab: { ab: 0 }, merges: [] }, normalizer: { type: "Lowercase" } },
      /cannot be used/,
    ],
  ];
  for (const [json, pattern] of files) {
    const text = typeof json === "string" ? json : JSON.stringify(json);
    assert.throws(() => newTokenizer({ label: "x", json: text }, 1), refusal(pattern), text);
  }
  await assert.rejects(
    chooseTokenizer("gpt-2"),
    refusal(/"gpt-2" cannot be read.*use char, gpt2, or the path/),
  );
});

function refusal(pattern: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof ShoalError && error.code === "bad-corpus", String(error));
    assert.match(error.message, pattern);
    return true;
  };
}
