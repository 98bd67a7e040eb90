// Exported GGUF files in llama.cpp itself: a model trained for some steps on Moby Dick gives the same tokens, the same
// probabilities and the same text there as with Shoal's engine in double precision.
import assert from "node:assert/strict";
import { openCheckpoint } from "../../coordinator/export/source.ts";
import { openWeights } from "../../coordinator/export/merged.ts";
import type { ExportDtype } from "../../coordinator/export/dtypes.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { adapt, type AdaptedModel, writeAdapted } from "../support/adapted_model.ts";
import { largestDifference, logSoftmax } from "../support/compare_logits.ts";
import { AWKWARD_VOCAB, bytesOf, inTempFolder, planOf, writeTiny } from "../support/export_support.ts";
import { type TrainedModel, trainSmallModel, writeTrained } from "../support/trained_model.ts";
import { type LlamaTab, openLlama } from "./llama_tab.ts";

/** Written after each prompt; together with the longest prompt they fit the model's 32 tokens. */
const COUNT = 10;
/** A dash of three bytes, a line's end, quotation marks, and nothing but one letter. */
const PROMPTS = ["Call me Ishmael. Some", "T", "—what\nis it?", '"I say, '];

/**
 * f32 is computed in another order, no more. llama.cpp multiplies f16 weights with inputs rounded to f16, eleven bits, and
 * Q8_0 weights with inputs rounded to eight, so logits of size 6 are off by some thousandths and some hundredths.
 */
const TOLERANCES: readonly [dtype: ExportDtype, tolerance: number][] = [
  ["f32", 1e-3],
  ["f16", 1e-2],
  ["q8_0", 0.25],
];

/** Eight bits of each weight and input. */
const BF16_TOLERANCE = 5e-2;

async function trained(overrides: Partial<RunConfig>): Promise<TrainedModel & { gguf: GgufMaker }> {
  const model = await trainSmallModel(overrides);
  return { ...model, gguf: (dtype) => ggufOf(model, dtype) };
}

type GgufMaker = (dtype: ExportDtype) => Promise<Uint8Array>;

/** By way of a checkpoint on disk, as `shoal export` goes. */
async function ggufOf(model: TrainedModel, dtype: ExportDtype): Promise<Uint8Array> {
  return await inTempFolder(async (folder) => await ggufAt(await writeTrained(folder, model), dtype));
}

/** A run's adapters alone. */
async function adaptersOf(model: AdaptedModel): Promise<Uint8Array> {
  return await inTempFolder(async (folder) => {
    using source = await openWeights(await writeAdapted(folder, model), "gguf-lora");
    return await bytesOf(planOf(source, { format: "gguf-lora", dtype: "f32" }).files[0]!.pieces);
  });
}

/** llama.cpp applies the adapters to the base's own file, which is loaded with them. */
async function compareAdapted(
  tab: LlamaTab,
  base: TrainedModel & { gguf: GgufMaker },
  { lora_targets, lora_alpha }: { lora_targets: string; lora_alpha: number },
): Promise<void> {
  const adapted = adapt(base, { lora_rank: 3, lora_alpha, lora_targets });
  await tab.load(await base.gguf("f32"), base.spec.block_size, await adaptersOf(adapted));
  const { logits, greedy } = adapted;
  const worst = await compare(tab, { ...base, logits, greedy }, true);
  assert.ok(worst > 0 && worst < TOLERANCES[0]![1], `log-probabilities differ by ${worst}`);
}

async function ggufAt(checkpoint: string, dtype: ExportDtype): Promise<Uint8Array> {
  using source = await openCheckpoint(checkpoint);
  const plan = planOf(source, { format: "gguf", dtype, name: "Moby" });
  return await bytesOf(plan.files[0]!.pieces);
}

/** Largest difference of a log-probability over all prompts; also demands the same tokens and, of f32, the same text. */
async function compare(tab: LlamaTab, model: TrainedModel, sameText: boolean): Promise<number> {
  const vocabulary = model.vocab.length;
  let worst = 0;
  for (const prompt of PROMPTS) {
    const theirs = await tab.complete(prompt, { count: COUNT, vocabulary });
    const tokens = model.encode(prompt);
    assert.equal(theirs.promptTokens, tokens.length, `tokens of ${JSON.stringify(prompt)}`);
    assert.equal(
      theirs.text,
      model.decode(theirs.tokens),
      "llama.cpp's text is its tokens in our vocabulary",
    );
    if (sameText) {
      assert.equal(theirs.text, model.greedy(prompt, COUNT), `text after ${JSON.stringify(prompt)}`);
    }
    const rows = model.logits([...tokens, ...theirs.tokens.slice(0, -1)]).slice(tokens.length - 1);
    worst = Math.max(worst, largestDifference(rows.map(logSoftmax), theirs.logProbabilities));
  }
  return worst;
}

/** The browser's pipe is busy from the first test to the last, which the sanitizers take for a leak. */
const SHARED = { sanitizeOps: false, sanitizeResources: false };

Deno.test("export: GGUF files give Shoal's probabilities and text in llama.cpp", SHARED, async (test) => {
  await using tab = await openLlama();
  const model = await trained({});
  for (const [dtype, tolerance] of TOLERANCES) {
    await test.step(`${dtype}, within ${tolerance}`, async () => {
      const { metadata, ...about } = await tab.load(await model.gguf(dtype), model.spec.block_size);
      const { block_size, n_layer, n_embd } = model.spec;
      assert.deepEqual(about, {
        ...{ vocabulary: model.vocab.length, contextLength: block_size, layers: n_layer, width: n_embd },
        // A character that ended the text, or began each prompt, would not be Shoal's model.
        ...{ endTokens: [], beginToken: -1 },
      });
      assert.equal(metadata["general.name"], "Moby");
      const worst = await compare(tab, model, dtype === "f32");
      assert.ok(worst < tolerance, `log-probabilities differ by ${worst}`);
      assert.ok(worst > 0, "two programs agree to the last bit: were they compared at all?");
    });
  }
  await test.step("a head that is the embedding, in bf16", async () => {
    const tied = await trained({ tie_word_embeddings: true, learning_rate: 3e-3, min_lr: 3e-4 });
    await tab.load(await tied.gguf("bf16"), tied.spec.block_size);
    const worst = await compare(tab, tied, false);
    assert.ok(worst < BF16_TOLERANCE, `log-probabilities differ by ${worst}`);
  });
  await test.step("a GPT-2 in f32", async () => {
    const short = { max_iters: 100, learning_rate: 3e-3, min_lr: 3e-4 };
    const gpt2 = await trained({ architecture: "gpt2", n_kv_head: 8, tie_word_embeddings: true, ...short });
    const { metadata } = await tab.load(await gpt2.gguf("f32"), gpt2.spec.block_size);
    assert.equal(metadata["general.architecture"], "gpt2");
    const worst = await compare(tab, gpt2, true);
    assert.ok(worst > 0 && worst < TOLERANCES[0]![1], `log-probabilities differ by ${worst}`);
    // Larger ones would show the halves in which llama.cpp keeps its table of GELU.
    await compareAdapted(tab, gpt2, { lora_targets: "q_proj,v_proj,down_proj", lora_alpha: 2 });
  });
  await test.step("adapters by themselves, beside a Llama", () =>
    compareAdapted(tab, model, {
      ...{ lora_targets: "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", lora_alpha: 6 },
    }));
  await test.step("a character outside the vocabulary is refused, not guessed", async () => {
    await assert.rejects(tab.complete("é", { count: 1, vocabulary: model.vocab.length }), /invalid tokens/);
  });
  await test.step("characters that need escapes or several bytes are one token each", async () => {
    await tab.load(await inTempFolder(async (folder) => await ggufAt(await writeTiny(folder), "f32")), 8);
    const utf8 = AWKWARD_VOCAB.map((char) => [...new TextEncoder().encode(char)]);
    const vocabulary = AWKWARD_VOCAB.length;
    for (const prompt of ["\t\n\r\x7f", " \"'\\<", "x09|az", "\\x09\\", "é—▁漢🐋", "🐋🐋"]) {
      const { promptTokens, bytes } = await tab.complete(prompt, { count: 1, vocabulary });
      assert.equal(promptTokens, [...prompt].length, JSON.stringify(prompt));
      assert.deepEqual(bytes, utf8);
    }
  });
});
