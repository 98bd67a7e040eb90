// Characters to tokens and back, and every refusal.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../wire/errors.ts";
import { charTokenizer, checkTokens, VOCAB_MAX } from "./tokenizer.ts";

function isBadCorpus(error: unknown): boolean {
  return error instanceof ShoalError && error.code === "bad-corpus";
}

Deno.test("tokenizer: the vocabulary is sorted by code point, beyond the first plane too", () => {
  const { vocab, encode } = charTokenizer("b😀a\uffe5b\n");
  assert.deepEqual(vocab, ["\n", "a", "b", "\uffe5", "😀"]);
  assert.deepEqual(encode("😀a"), Uint8Array.of(4, 1));
});

Deno.test("tokenizer: decode(encode(text)) is text, and the vocabulary alone suffices", () => {
  const texts = fc.string({ unit: "grapheme", minLength: 1 });
  fc.assert(
    fc.property(texts, (text) => {
      const first = charTokenizer(text);
      const again = charTokenizer(first.vocab);
      assert.equal(again.decode(first.encode(text)), text);
      assert.deepEqual(again.encode(text), first.encode(text));
    }),
    { seed: 4 },
  );
});

Deno.test("tokenizer: tokens take 16 bits beyond 256 characters", () => {
  const vocab = Array.from({ length: 257 }, (_, i) => String.fromCodePoint(0x400 + i));
  assert.ok(charTokenizer(vocab.slice(1)).encode("") instanceof Uint8Array);
  assert.deepEqual(charTokenizer(vocab).encode(vocab[256]!), Uint16Array.of(256));
});

Deno.test("tokenizer: malformed vocabularies are refused", () => {
  const tooMany = Array.from({ length: VOCAB_MAX + 1 }, (_, i) => String.fromCodePoint(0x20000 + i));
  for (
    const vocab of [[], [""], ["ab"], ["a", "a"], ["\ud800"], [1 as unknown as string], tooMany, "", "\udc00"]
  ) {
    assert.throws(() => charTokenizer(vocab), isBadCorpus);
  }
});

Deno.test("tokenizer: what is outside the vocabulary is named", () => {
  const { encode, decode } = charTokenizer("abc");
  assert.throws(() => encode("abx"), /character "x" at position 2/);
  assert.throws(() => decode([0, 3]), /token 3 at position 1/);
  assert.throws(() => decode([0.5]), isBadCorpus);
  assert.throws(() => checkTokens(Uint8Array.of(0, 1, 9), 3), /token 9 at position 2/);
  checkTokens(Uint8Array.of(0, 1, 2), 3);
});
