// A model that is imported to be fine-tuned with adapters: its base computes what the definition says, the checkpoint holds adapters that
// change nothing yet, and the list of where the files have the same bytes is true. A failure leaves nothing behind.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createSampler } from "../../peer/engine/sampler.ts";
import { initParams } from "../../peer/model/init.ts";
import { baseSpec, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { BASE_DTYPES } from "../../peer/wire/base.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { relativeError } from "../../shaders/reference/check.ts";
import { inTempFolder } from "../../test/support/checkpoint.ts";
import { drawGpt2, gpt2Logits, writeGpt2 } from "../../test/support/gpt2.ts";
import { charTokenizerJson, drawLlama, llamaLogits, writeLlama } from "../../test/support/llama.ts";
import { BaseFile, readBase } from "../store/base.ts";
import { type BaseSource, readSource, SOURCE_NAME } from "../store/base_source.ts";
import { readCheckpoint, stageStateOf } from "../store/checkpoints.ts";
import { importModel } from "./import_model.ts";

const VOCAB = [..."\n abcdefgh"];
const TOKENS = [3, 0, 9, 9, 1, 5, 2, 7, 7, 4, 6, 8];
const LLAMA = {
  ...{ vocab_size: VOCAB.length, hidden_size: 24, intermediate_size: 20, num_hidden_layers: 3 },
  ...{ num_attention_heads: 6, num_key_value_heads: 2, max_position_embeddings: 16 },
  ...{ rms_norm_eps: 1e-3, rope_theta: 500, tie_word_embeddings: false },
};
const GPT2 = {
  ...{ vocab_size: VOCAB.length, n_positions: 16, n_embd: 24, n_layer: 2, n_head: 6, n_inner: null },
  ...{ layer_norm_epsilon: 1e-3, tie_word_embeddings: true },
};
const tokenizer = charTokenizerJson(VOCAB);
const ADAPTERS = { lora_rank: 2, lora_targets: "q_proj,down_proj" };

const llama = drawLlama(LLAMA, 5), gpt2 = drawGpt2(GPT2, 5);
const MODELS = [
  {
    name: "llama",
    write: (folder: string) =>
      writeLlama(folder, { shape: LLAMA, weights: llama, dtype: "BF16", shards: 3, tokenizer }),
    logits: () => llamaLogits(LLAMA, llama, TOKENS),
    /** Every tensor lies in the files as we have it. */
    placed: 3 * 9 + 3,
  },
  {
    name: "gpt2",
    write: (folder: string) => writeGpt2(folder, { shape: GPT2, weights: gpt2, dtype: "F16", tokenizer }),
    logits: () => gpt2Logits(GPT2, gpt2, TOKENS),
    /** Table, positions and last norm; of a layer two norms, six matrices and their biases, three of which are parts of one. */
    placed: 4 + 2 * (4 + 6 + 6),
  },
] as const;

for (const { name, write, logits, placed } of MODELS) {
  Deno.test(`import with adapters: a ${name}'s base computes the definition's logits, and the adapters are new`, () =>
    inTempFolder(async (folder) => {
      await write(`${folder}/model`);
      const run = `${folder}/run`;
      const { path, spec, config } = await importModel({
        from: `${folder}/model`,
        out: run,
        config: ADAPTERS,
      });
      const base = await readBase(run, spec);
      const found = createSampler(baseSpec(spec), base).logits(TOKENS);
      // As for a model that is imported whole.
      assert.ok(relativeError(found, Float64Array.from(logits().flat())) < 5e-6);
      const { state } = { state: stageStateOf(await readCheckpoint(path), wholeModel(spec)) };
      assert.equal(state.step, 0);
      assert.deepEqual(state.params, initParams(spec, wholeModel(spec), config.seed));
    }));

  for (const adapters of [true, false]) {
    const how = adapters ? "with adapters" : "of the whole";
    Deno.test(`import ${how}: where a ${name}'s files have a tensor, the list has the bytes' hash`, () =>
      inTempFolder(async (folder) => {
        await write(`${folder}/model`);
        // A shorter window takes a part of the positions.
        const config = { block_size: 8, ...(adapters ? ADAPTERS : {}) };
        const { path, spec } = await importModel({ from: `${folder}/model`, out: `${folder}/run`, config });
        const source = adapters ? (await BaseFile.open(`${folder}/run`, spec)).source! : await sourceOf(path);
        assert.equal(source.tensors.length, placed);
        const { tensors } = stageLayout(baseSpec(spec), wholeModel(spec));
        for (const { name, file, dtype, begin, end, sha256, turned } of source.tensors) {
          const bytes = await Deno.readFile(`${folder}/model/${source.files[file]}`);
          assert.equal(createHash("sha256").update(bytes.subarray(begin, end)).digest("hex"), sha256, name);
          const { size } = tensors.find((it) => it.name === name)!;
          const stored = turned === undefined ? size : turned.into * turned.out;
          assert.equal(end - begin, BASE_DTYPES[dtype] * stored, name);
        }
      }));
  }
}

async function sourceOf(checkpoint: string): Promise<BaseSource> {
  const source = readSource(await Deno.readTextFile(`${checkpoint}/${SOURCE_NAME}`));
  assert.ok(source.ok);
  return source.value;
}

Deno.test("import with adapters: what fails leaves nothing, and the base is not for the caller to name", () =>
  inTempFolder(async (folder) => {
    const broken = new Map(llama);
    broken.set("model.norm.weight", { shape: [24], values: new Float64Array(24).fill(Infinity) });
    await writeLlama(`${folder}/model`, {
      shape: LLAMA,
      weights: broken,
      dtype: "F32",
      shards: 1,
      tokenizer,
    });
    const refused = async (config: Record<string, unknown>, code: string, wanted: RegExp) => {
      await assert.rejects(
        importModel({ from: `${folder}/model`, out: `${folder}/run`, config }),
        (error) => error instanceof ShoalError && error.code === code && wanted.test(error.message),
        String(wanted),
      );
      assert.deepEqual([...Deno.readDirSync(folder)].map((it) => it.name), ["model"]);
    };
    await refused(ADAPTERS, "bad-model", /model.norm.weight contains Infinity/);
    await refused(
      { ...ADAPTERS, lora_base: "0".repeat(64) },
      "bad-config",
      /lora_base is decided by the model/,
    );
    await refused({ ...ADAPTERS, lora_rank: 21 }, "bad-config", /lora_rank 21 exceeds 20/);
  }));
