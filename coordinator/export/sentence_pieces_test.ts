// What a GGUF file says of a tokenizer of SentencePiece's kind, as an independent reader finds it, and which are refused. That llama.cpp
// cuts a text alike is shown in test/e2e/export_gguf_words_test.ts.
import assert from "node:assert/strict";
import { gguf } from "@huggingface/gguf";
import { ShoalError } from "../../peer/wire/errors.ts";
import { AWKWARD_TEXTS, smallSentencePieces } from "../../test/support/byte_pairs.ts";
import { inTempFolder, planOf, writeTiny } from "../../test/support/export_support.ts";
import { newTokenizer } from "../corpora/tokenizer.ts";
import { tokenizerOf } from "../store/text_tokenizer.ts";
import { openCheckpoint } from "./source.ts";
import { isSentencePieces, sentencePiecesOf } from "./sentence_pieces.ts";
import { TOKEN_KIND } from "./tokenizer_parts.ts";
import { writeExport } from "./write.ts";

type Json = Record<string, unknown>;
type Changeable = Json & {
  model: Json & { vocab: Record<string, number>; merges: string[] };
  added_tokens: Json[];
};

const JSON_TEXT = smallSentencePieces(60);
const VOCAB = newTokenizer({ label: "test", json: JSON_TEXT }, 64).tokenizer.vocab;

function changed(change: (json: Changeable) => void): Changeable {
  const json = JSON.parse(JSON_TEXT);
  change(json);
  return json;
}

Deno.test("gguf: an independent reader finds SentencePiece's tokens, kinds and scores", () =>
  inTempFolder(async (folder) => {
    using source = await openCheckpoint(await writeTiny(folder, { vocab: VOCAB, tokenizerJson: JSON_TEXT }));
    const plan = planOf(source, { format: "gguf", dtype: "f32", tokenizer: JSON_TEXT });
    const path = await writeExport(plan, `${folder}/out.gguf`);
    const { metadata } = await gguf(path, { allowLocalFile: true });
    const {
      "tokenizer.ggml.tokens": tokens,
      "tokenizer.ggml.token_type": kinds,
      "tokenizer.ggml.scores": scores,
      ...rest
    } = metadata as unknown as Json & Record<string, number[]>;
    assert.deepEqual(tokens, VOCAB);
    const { normal, unknown, control, unused, byte } = TOKEN_KIND;
    assert.deepEqual(kinds!.slice(0, 5), [unknown, control, control, byte, byte]);
    assert.deepEqual([kinds![258], kinds![259], kinds!.at(-1)], [byte, normal, unused]);
    // The first pair of all is the first joint, and whatever makes no joint has the score of none.
    assert.deepEqual([scores![VOCAB.indexOf("▁t")], scores![VOCAB.indexOf("a")], scores![0]], [-1, 0, 0]);
    const pieces = VOCAB.slice(259, 259 + 60).map((name) => scores![VOCAB.indexOf(name)]!);
    assert.deepEqual(pieces, pieces.toSorted((a, b) => b - a), "the earlier joint has the higher score");
    const own = Object.fromEntries(Object.entries(rest).filter(([key]) => key.startsWith("tokenizer.")));
    assert.deepEqual(own, {
      ...{ "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default" },
      ...{ "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2 },
      ...{ "tokenizer.ggml.add_bos_token": true, "tokenizer.ggml.add_eos_token": false },
      ...{ "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_space_prefix": true },
    });
  }));

Deno.test("gguf: whether a text begins with a space is read from either place where it is said", () => {
  const before = (json: unknown) => sentencePiecesOf(json, VOCAB).spaceBefore;
  assert.equal(before(JSON.parse(JSON_TEXT)), true);
  const other = smallSentencePieces(60, "metaspace");
  assert.equal(before(JSON.parse(other)), true);
  const [ours, theirs] = [JSON_TEXT, other].map((json) => tokenizerOf({ vocab: VOCAB }, json));
  for (const text of AWKWARD_TEXTS) {
    const same = ours!.encodePrompt(text).length === theirs!.encodePrompt(text).length;
    assert.equal(same, !text.startsWith(" "), "the one difference: no second space before a first one");
  }
  const [, replace] = (JSON.parse(JSON_TEXT).normalizer as { normalizers: Json[] }).normalizers;
  assert.equal(before(changed((it) => it.normalizer = replace)), false);
  const never = { type: "Metaspace", replacement: "▁", prepend_scheme: "never", split: false };
  assert.equal(before(changed((it) => [it.normalizer, it.pre_tokenizer] = [null, never])), false);
});

const UNFIT: [string, RegExp, (json: Changeable) => void][] = [
  ["other spaces", /what it makes of spaces/, (it) => it.normalizer = { type: "Lowercase" }],
  ["words", /what it makes of spaces/, (it) => it.pre_tokenizer = { type: "Whitespace" }],
  ["split words", /what it makes of spaces/, (it) => {
    it.normalizer = null;
    it.pre_tokenizer = { type: "Metaspace", replacement: "▁", prepend_scheme: "always", split: true };
  }],
  ["a byte less", /no token for each byte/, (it) => delete it.model.vocab["<0x41>"]],
  ["no end", /no token that ends a text/, (it) => it.added_tokens = it.added_tokens.slice(0, 2)],
  ["a pair of nothing", /the pair "q z" makes no token/, (it) => it.model.merges.push("q z")],
  ["a joint too few", /would join "\S+" in more ways/, (it) => it.model.merges.splice(7, 1)],
  ["a joint too late", /it makes "\S+" early and late/, (it) => {
    // Two ways to one token, with another token's between them.
    const twice = it.model.merges.findIndex((pair, i) =>
      it.model.merges[i + 1]?.replace(" ", "") === pair.replace(" ", "")
    );
    it.model.merges.push(...it.model.merges.splice(twice, 1));
  }],
  ["whole words first", /ignore_merges/, (it) => it.model.ignore_merges = true],
];

for (const [kind, pattern, change] of UNFIT) {
  Deno.test(`gguf: SentencePiece's pairs that llama.cpp would join otherwise are refused: ${kind}`, () => {
    const json = changed(change);
    assert.ok(isSentencePieces(json));
    assert.throws(
      () => sentencePiecesOf(json, VOCAB),
      (error) => error instanceof ShoalError && error.code === "usage" && pattern.test(error.message),
    );
  });
}
