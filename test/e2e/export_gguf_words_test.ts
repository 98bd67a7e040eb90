// Exported GGUF files of models that read byte pairs, in llama.cpp itself: any text has the same tokens there, shown by their number and
// by the probabilities of what follows; the greedy text is the same, and ends where the model says so.
import assert from "node:assert/strict";
import { Buffer } from "node:buffer";
import { gpt2TokenizerJson } from "../../coordinator/corpora/gpt2.ts";
import { tokenizerOf } from "../../coordinator/store/text_tokenizer.ts";
import { TOKEN_KIND } from "../../coordinator/export/tokenizer_parts.ts";
import { adapt, writeAdapted } from "../support/adapted_model.ts";
import {
  AWKWARD_TEXTS,
  smallBytePairs,
  smallSentencePieces,
  type WordCutter,
} from "../support/byte_pairs.ts";
import { logSoftmax } from "../support/compare_logits.ts";
import { bytesOf, inTempFolder, planOf } from "../support/export_support.ts";
import { type TrainedModel, trainSmallModel, writeTrained } from "../support/trained_model.ts";
import { openWeights } from "../../coordinator/export/merged.ts";
import { type LlamaTab, openLlama } from "./llama_tab.ts";

/** Pairs of the small tokenizers: enough that words are several tokens and common ones a few. */
const MERGES = 300;
/** f32 in another order of sums. */
const TOLERANCE = 1e-3;
const SHORT = {
  ...{ block_size: 160, batch_size: 1, max_iters: 60, learning_rate: 1e-2, min_lr: 1e-3 },
  ...{ tie_word_embeddings: true, vocab_multiple: 64 },
};
const GPT2 = { architecture: "gpt2" as const, n_kv_head: 8, learning_rate: 3e-3 };
const SHARED = { sanitizeOps: false, sanitizeResources: false };

async function ggufOf(
  model: TrainedModel,
  write = (folder: string) => writeTrained(folder, model),
): Promise<Uint8Array> {
  return await inTempFolder(async (folder) => {
    using source = await openWeights(await write(folder), "gguf");
    const { tokenizer } = model;
    return await bytesOf(planOf(source, { format: "gguf", dtype: "f32", tokenizer }).files[0]!.pieces);
  });
}

/** The same weights behind a tokenizer with the same tokens that cuts otherwise. */
function withCutter(model: TrainedModel, cutter: WordCutter): TrainedModel {
  const json = smallBytePairs(MERGES, cutter);
  const { encodePrompt: encode, decode } = tokenizerOf(model, json);
  return { ...model, encode, decode, tokenizer: json };
}

/**
 * The file with every token that is no whole character marked as unused: a text has the same tokens, but such a token stands for
 * nothing. This build of llama.cpp cannot say halves of characters among its probabilities.
 */
function withoutHalves(gguf: Uint8Array, model: TrainedModel): Uint8Array {
  const out = gguf.slice(), key = new TextEncoder().encode("tokenizer.ggml.token_type");
  const at = Buffer.from(out.buffer).indexOf(key) + key.length;
  const view = new DataView(out.buffer), count = model.vocab.length;
  assert.equal(view.getBigUint64(at + 8, true), BigInt(count));
  for (let id = 0; id < count; id++) {
    if (model.decode([id]).includes("\ufffd")) view.setInt32(at + 16 + 4 * id, TOKEN_KIND.unused, true);
  }
  return out;
}

/** A few together, which takes a third of the time. */
const PROMPTS = [0, 4, 8].map((at) => AWKWARD_TEXTS.slice(at, at + 4).join("\n") + "<|endoftext|>one");

/** Number of every text's tokens, and the probabilities of the `vocabulary` likeliest that follow them. */
async function compare(
  tab: LlamaTab,
  model: TrainedModel,
  { vocabulary = model.vocab.length, gguf }: { vocabulary?: number; gguf?: Uint8Array } = {},
): Promise<void> {
  await tab.load(withoutHalves(gguf ?? await ggufOf(model), model), model.spec.block_size);
  for (const prompt of PROMPTS) {
    const shown = JSON.stringify(prompt), tokens = model.encode(prompt);
    const theirs = await tab.complete(prompt, { count: 1, vocabulary });
    assert.equal(theirs.promptTokens, tokens.length, `tokens of ${shown}`);
    const ours = logSoftmax(model.logits(tokens).at(-1)!);
    const told = theirs.logProbabilities[0]!.flatMap((value, id) =>
      Number.isFinite(value) ? [[ours[id]!, value]] : []
    );
    assert.ok(told.length >= vocabulary);
    const worst = Math.max(...told.map(([a, b]) => Math.abs(a! - b!)));
    assert.ok(worst > 0 && worst < TOLERANCE, `log-probabilities after ${shown} differ by ${worst}`);
  }
}

/** The text itself, from the file as it is exported. */
async function compareText(tab: LlamaTab, model: TrainedModel): Promise<void> {
  const end = model.vocab.indexOf("<|endoftext|>");
  const about = await tab.load(await ggufOf(model), model.spec.block_size);
  assert.deepEqual([about.vocabulary, about.endTokens, about.beginToken], [model.vocab.length, [end], end]);
  for (const prompt of AWKWARD_TEXTS.slice(0, 2)) {
    const { text } = await tab.complete(prompt, { count: 12, vocabulary: 1 });
    assert.equal(text, model.greedy(prompt, 12), JSON.stringify(prompt));
  }
}

/**
 * Hardly trained, which tokens do not mind; its matrices are enlarged until its tokens differ in what follows them, but not so far that
 * the halves show in which llama.cpp keeps its table of GELU.
 */
async function wholeGpt2(): Promise<TrainedModel> {
  const narrow = {
    n_embd: 8,
    n_head: 2,
    n_kv_head: 2,
    n_inner: 8,
    batch_size: 1,
    gradient_accumulation_steps: 1,
  };
  const config = { ...SHORT, ...GPT2, ...narrow, max_iters: 1, warmup_iters: 0, vocab_multiple: 1 };
  const model = await trainSmallModel(config, gpt2TokenizerJson());
  for (const { shape, offset, size } of model.state.layout.tensors) {
    if (shape.length === 2) { for (let i = 0; i < size; i++) model.state.params[offset + i]! *= 8; }
  }
  return model;
}

Deno.test("export: models of byte pairs have Shoal's tokens and text in llama.cpp", SHARED, async (test) => {
  await using tab = await openLlama();
  const llama = await trainSmallModel(SHORT, smallBytePairs(MERGES));
  assert.equal(llama.vocab.length, 576, "256 bytes, 300 pairs, the end, and rows up to a multiple of 64");
  for (const cutter of ["gpt-2", "smollm", "llama-bpe"] as const) {
    await test.step(`a Llama whose texts are cut as by ${cutter}`, () =>
      compare(tab, withCutter(llama, cutter)));
  }
  await test.step("a Llama with merged adapters, whose texts are cut as by qwen2", async () => {
    const base = withCutter(llama, "qwen2");
    const lora = adapt(base, { lora_rank: 2, lora_alpha: 4, lora_targets: "q_proj,k_proj,down_proj" });
    const gguf = await ggufOf(base, (folder) => writeAdapted(folder, lora));
    await compare(tab, { ...base, logits: lora.logits }, { gguf });
  });
  await test.step("a Llama with SentencePiece's pairs", async () => {
    await compare(tab, await trainSmallModel(SHORT, smallSentencePieces(150)));
  });
  await test.step("the text of a GPT-2", async () => {
    await compareText(tab, await trainSmallModel({ ...SHORT, ...GPT2 }, smallBytePairs(MERGES)));
  });
  await test.step("a GPT-2 with all of its 50,257 tokens", async () => {
    await compare(tab, await wholeGpt2(), { vocabulary: 200 });
  });
});
