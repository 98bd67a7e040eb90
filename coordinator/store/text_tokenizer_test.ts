// Tokenizers of a checkpoint: every text survives, piece by piece as well as whole, and the bytes that are counted are the text's.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../../peer/wire/errors.ts";
import { byteLevelTokenizerJson } from "../../test/support/llama.ts";
import { type TextTokenizer, tokenizerOf } from "./text_tokenizer.ts";

const WORDS = JSON.stringify(byteLevelTokenizerJson(["t h", "th e", "Ġ the", "Ã ©"]));
const ENDS = 260;

/** As SentencePiece's models are written: a low line for a space, one at the beginning, single bytes for what is not known. */
function sentencePieces(): string {
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`);
  const names = ["<unk>", "<s>", "</s>", ...bytes, "\u2581", "a", "b", "c", "ab", "\u2581ab"];
  const added = ["<unk>", "<s>", "</s>"].map((content, id) => (
    { id, content, special: true, single_word: false, lstrip: false, rstrip: false, normalized: false }
  ));
  const steps = [{ type: "Replace", pattern: { String: "\u2581" }, content: " " }, { type: "ByteFallback" }];
  return JSON.stringify({
    ...{ version: "1.0", added_tokens: added, pre_tokenizer: null },
    normalizer: {
      type: "Sequence",
      normalizers: [{ type: "Prepend", prepend: "\u2581" }, {
        type: "Replace",
        pattern: { String: " " },
        content: "\u2581",
      }],
    },
    post_processor: {
      type: "TemplateProcessing",
      single: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }],
      pair: [{ Sequence: { id: "A", type_id: 0 } }, { Sequence: { id: "B", type_id: 1 } }],
      special_tokens: { "<s>": { id: "<s>", ids: [1], tokens: ["<s>"] } },
    },
    decoder: {
      type: "Sequence",
      decoders: [...steps, { type: "Fuse" }, { type: "Strip", content: " ", start: 1, stop: 0 }],
    },
    model: {
      ...{ type: "BPE", unk_token: "<unk>", byte_fallback: true, fuse_unk: true },
      ...{ vocab: Object.fromEntries(names.map((name, id) => [name, id])), merges: ["a b", "\u2581 ab"] },
    },
  });
}

const CHARACTERS = [..." abcéthe水🙂"].filter((char, i, all) => all.indexOf(char) === i);
const names = (count: number) => Array.from({ length: count }, (_, i) => `<${i}>`);
const tokenizers: [string, TextTokenizer][] = [
  ["characters", tokenizerOf({ vocab: CHARACTERS }, null)],
  ["bytes and merges", tokenizerOf({ vocab: names(300) }, WORDS)],
  ["sentence pieces", tokenizerOf({ vocab: names(300) }, sentencePieces())],
];
const texts = fc.array(fc.constantFrom(...CHARACTERS, "the", " the"), { minLength: 1, maxLength: 12 })
  .map((parts) => parts.join(""));

for (const [name, tokenizer] of tokenizers) {
  Deno.test(`tokenizer: a text survives, whole and token by token, with its bytes: ${name}`, () => {
    fc.assert(
      fc.property(texts, (text) => {
        const tokens = tokenizer.encode(text);
        assert.ok(tokens.every((token) => token >= 0 && token < tokenizer.vocabSize));
        assert.equal(tokenizer.decode(tokens), text);
        const stream = tokenizer.stream(), pieces = tokens.map((token) => stream.push(token));
        assert.equal([...pieces, stream.rest()].join(""), text);
        assert.ok(pieces.every((piece) => !piece.includes("\ufffd")), "half a character was told");
        const bytes = new TextEncoder().encode(text).length;
        // Sentence pieces begin with a space that is not the text's.
        assert.equal(tokenizer.bytes(tokens), name === "sentence pieces" ? bytes + 1 : bytes);
      }),
      { seed: 20264, numRuns: 300 },
    );
  });
}

Deno.test("tokenizer: a text that goes on from another keeps the space between them", () => {
  for (const [, tokenizer] of tokenizers) {
    const whole = tokenizer.encode("ab ab abc"), stream = tokenizer.stream(whole.slice(0, 1));
    const rest = whole.slice(1).map((token) => stream.push(token)).join("") + stream.rest();
    assert.equal(tokenizer.decode(whole.slice(0, 1)) + rest, "ab ab abc");
  }
});

Deno.test("tokenizer: merges make fewer tokens, and special tokens end a text and stand for no bytes", () => {
  const [, [, words], [, pieces]] = tokenizers as [unknown, [string, TextTokenizer], [string, TextTokenizer]];
  assert.deepEqual(words.encode("the the"), [257, 258]);
  assert.deepEqual([words.ends(ENDS), words.ends(258)], [true, false]);
  assert.equal(words.bytes([258, ENDS]), 4);
  assert.deepEqual(words.encodePrompt("the"), [257]);
  assert.deepEqual(pieces.encodePrompt("ab"), [1, ...pieces.encode("ab")], "a prompt begins with <s>");
  assert.deepEqual([pieces.endTokens, pieces.ends(2), pieces.ends(1)], [[2, 1], true, true]);
  assert.ok(!pieces.ends(0), "an unknown word ends no text");
  assert.deepEqual([words.endTokens, tokenizers[0]![1].endTokens], [[ENDS], []]);
});

Deno.test("tokenizer: a token by itself is its text, or its bytes where they are no whole character", () => {
  const [characters, words, pieces] = tokenizers.map(([, it]) => it) as [
    TextTokenizer,
    TextTokenizer,
    TextTokenizer,
  ];
  assert.equal(characters.nameOf(1), "a");
  assert.deepEqual([words.nameOf(258), words.nameOf(ENDS)], [" the", "<|endoftext|>"]);
  assert.deepEqual(
    words.encode("水").map((it) => words.nameOf(it)).join(""),
    "bytes:\\xe6bytes:\\xb0bytes:\\xb4",
  );
  assert.deepEqual([259, 264, 3 + 0x0a, 3 + 0xe6].map((it) => pieces.nameOf(it)), [
    " ",
    " ab",
    "\n",
    "bytes:\\xe6",
  ]);
});

Deno.test("tokenizer: half a character at the end of a text is told as what it is", () => {
  const words = tokenizers[1]![1], stream = words.stream();
  const [first] = words.encode("水");
  assert.equal(stream.push(first!), "");
  assert.equal(stream.rest(), "\ufffd");
});

Deno.test("tokenizer: files that are none are refused with a code", () => {
  const code = (work: () => unknown, expected: string) =>
    assert.throws(work, (error) => error instanceof ShoalError && error.code === expected);
  for (const json of ["", "{", "null", "7", "[]", "{}", '{"model":{"type":"Magic"}}', '{"model":null}']) {
    code(() => tokenizerOf({ vocab: names(300) }, json), "bad-checkpoint");
  }
  code(() => tokenizerOf({ vocab: names(100) }, WORDS).encode("the"), "bad-corpus");
  code(() => tokenizerOf({ vocab: CHARACTERS }, null).encode("Z"), "bad-corpus");
});
