// What a GGUF file says of a byte-pair tokenizer, as an independent reader finds it, what transformers is told of it, and which
// tokenizers are refused. That llama.cpp cuts a text alike is shown in test/e2e/export_gguf_words_test.ts.
import assert from "node:assert/strict";
import { gguf } from "@huggingface/gguf";
import { Tokenizer } from "@huggingface/tokenizers";
import { ShoalError } from "../../peer/wire/errors.ts";
import { AWKWARD_TEXTS, smallBytePairs } from "../../test/support/byte_pairs.ts";
import { inTempFolder, planOf, writeTiny } from "../../test/support/export_support.ts";
import { newTokenizer } from "../corpora/tokenizer.ts";
import { gpt2TokenizerJson } from "../corpora/gpt2.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf } from "../../peer/model/layout.ts";
import { tokenizerOf } from "../store/text_tokenizer.ts";
import { textMarks } from "../store/tokenizer_marks.ts";
import { type BytePairs, bytePairsOf } from "./byte_pairs.ts";
import { configFiles } from "./hf.ts";
import { openCheckpoint } from "./source.ts";
import { tokenizerConfig } from "./tokenizer_files.ts";
import { TOKEN_KIND } from "./tokenizer_parts.ts";
import { writeExport } from "./write.ts";

type Json = Record<string, unknown>;

/** Names of a tokenizer's tokens, filled up to a multiple of 64. */
function vocabOf(json: string): string[] {
  return newTokenizer({ label: "test", json }, 64).tokenizer.vocab;
}

function pairsOf(json: string, vocab: readonly string[]): BytePairs {
  return bytePairsOf(JSON.parse(json), vocab);
}

function changed(change: (json: Json & { model: Json; added_tokens: Json[] }) => void): string {
  const json = JSON.parse(smallBytePairs(20));
  change(json);
  return JSON.stringify(json);
}

Deno.test("gguf: an independent reader finds byte pairs under the keys of llama.cpp's converter", () =>
  inTempFolder(async (folder) => {
    const tokenizer = smallBytePairs(20), vocab = vocabOf(tokenizer);
    using source = await openCheckpoint(await writeTiny(folder, { vocab, tokenizerJson: tokenizer }));
    const plan = planOf(source, { format: "gguf", dtype: "f32", tokenizer });
    const path = await writeExport(plan, `${folder}/out.gguf`);
    const { metadata } = await gguf(path, { allowLocalFile: true });
    const {
      "tokenizer.ggml.tokens": tokens,
      "tokenizer.ggml.token_type": kinds,
      "tokenizer.ggml.merges": merges,
      ...rest
    } = metadata as unknown as Json;
    assert.deepEqual(tokens, vocab);
    const count = 256 + 20;
    assert.equal(vocab.length, 320);
    const { normal, control, unused } = TOKEN_KIND;
    assert.deepEqual(kinds, vocab.map((_, id) => id < count ? normal : id === count ? control : unused));
    assert.deepEqual([(merges as string[]).length, (merges as string[])[0]], [20, "Ġ t"]);
    const own = Object.fromEntries(Object.entries(rest).filter(([key]) => key.startsWith("tokenizer.")));
    assert.deepEqual(own, {
      ...{ "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2" },
      ...{ "tokenizer.ggml.bos_token_id": count, "tokenizer.ggml.eos_token_id": count },
      ...{ "tokenizer.ggml.add_bos_token": false, "tokenizer.ggml.add_eos_token": false },
    });
  }));

Deno.test("gguf: GPT-2's tokenizer keeps its numbers, and nothing is made up", () => {
  const json = gpt2TokenizerJson();
  const vocab = newTokenizer({ label: "gpt2", json }, 1).tokenizer.vocab;
  const { tokens, kinds, merges, begin, end, pre } = pairsOf(json, vocab);
  assert.deepEqual([tokens.length, merges.length, begin, end, pre], [
    50_257,
    50_000,
    50_256,
    50_256,
    "gpt-2",
  ]);
  assert.deepEqual([tokens[0], tokens[262], tokens[50_256]], ["!", "Ġthe", "<|endoftext|>"]);
  assert.equal(kinds.filter((kind) => kind === TOKEN_KIND.normal).length, 50_256);
});

Deno.test("gguf: a token that the tokenizer puts before a text is said to llama.cpp", () => {
  const begin = "<|begin_of_text|>", end = "<|end_of_text|>";
  const single = [{ SpecialToken: { id: begin, type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }];
  const json = changed((it) => {
    const [mark] = it.added_tokens;
    it.added_tokens = [{ ...mark, content: end }, { ...mark, id: 277, content: begin }, {
      ...{ ...mark, id: 278, content: "word", special: false },
    }];
    it.post_processor = {
      type: "Sequence",
      processors: [{ type: "ByteLevel" }, {
        ...{ type: "TemplateProcessing", single, pair: [] },
        special_tokens: { [begin]: { id: begin, ids: [277], tokens: [begin] } },
      }],
    };
  });
  const pairs = pairsOf(json, vocabOf(json));
  assert.deepEqual([pairs.begin, pairs.addsBegin, pairs.end, pairs.addsEnd], [277, true, 276, false]);
  assert.equal(pairs.kinds[278], TOKEN_KIND.own);
  // As the library that Shoal itself reads it with does.
  assert.equal(tokenizerOf({ vocab: vocabOf(json) }, json).encodePrompt("a")[0], 277);
});

Deno.test("gguf: without a token for a text's end an unused one is named, or the export is refused", () => {
  const json = changed((it) => it.added_tokens = []);
  assert.equal(pairsOf(json, vocabOf(json)).end, 276);
  const full = newTokenizer({ label: "test", json }, 1).tokenizer.vocab;
  assert.throws(() => pairsOf(json, full), /no token that ends a text/);
});

const UNFIT: [string, RegExp, Parameters<typeof changed>[0]][] = [
  ["words", /no byte-level byte-pair model/, (it) => it.model.type = "WordPiece"],
  ["SentencePiece's", /no byte-level byte-pair model/, (it) => it.model.byte_fallback = true],
  ["an unknown cut", /cutting a text into words/, (it) => it.pre_tokenizer = { type: "Whitespace" }],
  ["no cut", /cutting a text into words/, (it) => it.pre_tokenizer = null],
  ["a space before", /cutting/, (it) => (it.pre_tokenizer as Json).add_prefix_space = true],
  ["lower case", /normalizer "Lowercase"/, (it) => it.normalizer = { type: "Lowercase" }],
  ["composed accents", /normalizer "NFC"/, (it) => it.normalizer = { type: "NFC" }],
  ["ends of words", /end_of_word_suffix/, (it) => it.model.end_of_word_suffix = "</w>"],
  ["whole words first", /ignore_merges/, (it) => it.model.ignore_merges = true],
  ["a pair of three", /the pair "a b c"/, (it) => it.model.merges = ["a b c"]],
];

for (const [kind, pattern, change] of UNFIT) {
  Deno.test(`gguf: a tokenizer that llama.cpp would not follow is refused with the remedy: ${kind}`, () => {
    const vocab = vocabOf(smallBytePairs(20));
    assert.throws(
      () => pairsOf(changed(change), vocab),
      (error) =>
        error instanceof ShoalError && error.code === "usage" && pattern.test(error.message) &&
        /export it as hf/.test(error.message),
    );
  });
}

Deno.test("gguf: pairs may be written as lists; a token without a row is refused", () => {
  const lists = changed((it) =>
    it.model.merges = (it.model.merges as string[]).map((pair) => pair.split(" "))
  );
  const vocab = vocabOf(lists);
  assert.deepEqual(pairsOf(lists, vocab), pairsOf(smallBytePairs(20), vocab));
  assert.throws(() => pairsOf(lists, vocab.slice(0, 276)), /has no row in the model/);
});

Deno.test("hf: begin and end of a text are named in all three files, and the tokenizer goes on as it came", () =>
  inTempFolder(async (folder) => {
    const tokenizer = smallBytePairs(20), vocab = vocabOf(tokenizer);
    using source = await openCheckpoint(await writeTiny(folder, { vocab, tokenizerJson: tokenizer }));
    const path = await writeExport(
      planOf(source, { format: "hf", dtype: "f32", tokenizer }),
      `${folder}/out`,
    );
    const json = async (name: string) => JSON.parse(await Deno.readTextFile(`${path}/${name}`));
    for (const name of ["config.json", "generation_config.json"]) {
      const { bos_token_id, eos_token_id, pad_token_id } = await json(name);
      assert.deepEqual([bos_token_id, eos_token_id, pad_token_id], [276, 276, null], name);
    }
    const config = await json("tokenizer_config.json");
    assert.deepEqual([config.bos_token, config.eos_token, config.unk_token], [
      ...["<|endoftext|>", "<|endoftext|>"],
      null,
    ]);
    assert.deepEqual(Object.keys(config.added_tokens_decoder), ["276"]);
    const theirs = new Tokenizer(await json("tokenizer.json"), config);
    const ours = tokenizerOf({ vocab }, tokenizer);
    for (const text of AWKWARD_TEXTS) {
      assert.deepEqual(theirs.encode(text).ids, ours.encodePrompt(text));
      assert.equal(theirs.decode(ours.encode(text)), text);
    }
    assert.ok(ours.ends(276) && !ours.ends(275));
  }));

Deno.test("hf: transformers stops at the end of a turn, too", () => {
  const json = changed((it) => {
    const [end] = it.added_tokens;
    it.added_tokens = [
      { ...end, id: 277, content: "<|eot_id|>" },
      { ...end, id: 278, content: "<|image|>" },
      end!,
    ];
  });
  const spec = specOf(readConfig({}), 320), marks = textMarks(JSON.parse(json));
  const [config, generation] = configFiles(spec, "f32", marks).map(({ pieces: [bytes] }) =>
    JSON.parse(new TextDecoder().decode(bytes as Uint8Array))
  );
  assert.deepEqual([config.eos_token_id, generation.eos_token_id], [276, [276, 277]]);
});

Deno.test("hf: transformers is told to put a space before a text only where the tokenizer does", () => {
  const json = (add_prefix_space: boolean) => ({ pre_tokenizer: { type: "ByteLevel", add_prefix_space } });
  assert.equal(tokenizerConfig(8, json(true)).add_prefix_space, true);
  assert.equal("add_prefix_space" in tokenizerConfig(8, json(false)), false);
  assert.equal("add_prefix_space" in tokenizerConfig(8), false);
});
