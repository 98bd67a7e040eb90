// An imported model computes what transformers' definition says, whatever type and shards it came in, and is a checkpoint like any
// other. What is not a Llama of ours, or no model at all, is refused by name and leaves nothing behind.
import assert from "node:assert/strict";
import { createSampler } from "../../peer/engine/sampler.ts";
import { relativeError } from "../../shaders/reference/check.ts";
import { readCheckpoint, stageStateOf } from "../store/checkpoints.ts";
import { readWeights } from "../store/weights.ts";
import { splitLayers } from "../../peer/model/layout.ts";
import { type ErrorCode, ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder } from "../../test/support/checkpoint.ts";
import {
  charTokenizerJson,
  drawLlama,
  type LlamaFiles,
  llamaLogits,
  type LlamaShape,
  writeLlama,
} from "../../test/support/llama.ts";
import { importModel } from "./import_model.ts";

const VOCAB = [..."\n abcdefgh"];
const SHAPE: LlamaShape = {
  ...{ vocab_size: VOCAB.length, hidden_size: 24, intermediate_size: 20, num_hidden_layers: 3 },
  ...{ num_attention_heads: 6, num_key_value_heads: 2, max_position_embeddings: 16 },
  ...{ rms_norm_eps: 1e-3, rope_theta: 500, tie_word_embeddings: false },
};

function files(more: Partial<LlamaFiles> = {}): LlamaFiles {
  const shape = more.shape ?? SHAPE;
  return {
    ...{ shape, weights: drawLlama(shape, 5), dtype: "F32", shards: 1, tokenizer: charTokenizerJson(VOCAB) },
    ...more,
  };
}

const TOKENS = [3, 0, 9, 9, 1, 5, 2, 7, 7, 4, 6, 8];

for (const dtype of ["F32", "F16", "BF16"] as const) {
  for (const [kind, more] of [["untied", {}], ["tied", { tie_word_embeddings: true }]] as const) {
    Deno.test(`import: logits equal the definition's in double precision: ${dtype}, ${kind}`, () =>
      inTempFolder(async (folder) => {
        const model = files({ dtype, shards: dtype === "F16" ? 3 : 1, shape: { ...SHAPE, ...more } });
        await writeLlama(`${folder}/model`, model);
        const { path, spec } = await importModel({
          from: `${folder}/model`,
          out: `${folder}/run`,
          config: {},
        });
        const { params } = await readWeights(path);
        const logits = createSampler(spec, params).logits(TOKENS);
        const expected = llamaLogits(model.shape, model.weights, TOKENS).flat();
        // The sampler's rows are f32, its sums double: a few roundings of 6e-8 per layer.
        assert.ok(relativeError(logits, Float64Array.from(expected)) < 5e-6);
      }));
  }
}

Deno.test("import: the checkpoint is step 0 of a run, in any cut, with zero moments", () =>
  inTempFolder(async (folder) => {
    const model = files();
    await writeLlama(`${folder}/model`, model);
    const config = { block_size: 8, max_iters: 50 };
    const single = `${folder}/model/model.safetensors`;
    const { path, params, tokenizer } = await importModel({ from: single, out: `${folder}/run`, config });
    assert.match(path, /run\/checkpoints\/step-000000000$/);
    const { manifest } = await readCheckpoint(path);
    const { block_size, max_iters, learning_rate, rope_theta, norm_eps } = manifest.config;
    assert.deepEqual([block_size, max_iters, learning_rate, rope_theta, norm_eps], [8, 50, 1e-4, 500, 1e-3]);
    assert.deepEqual([manifest.step, manifest.vocab, tokenizer], [0, VOCAB, "characters"]);
    assert.equal(params, [...model.weights.values()].reduce((sum, { values }) => sum + values.length, 0));
    const checkpoint = await readCheckpoint(path);
    for (const stage of splitLayers(manifest.spec, [1, 1, 1])) {
      const state = stageStateOf(checkpoint, stage);
      for (const { name, offset, size } of state.layout.tensors) {
        const { values } = model.weights.get(name)!;
        assert.deepEqual(state.params.subarray(offset, offset + size), Float32Array.from(values), name);
      }
      assert.ok([...state.m, ...state.v, ...state.exponents].every((value) => value === 0));
      assert.equal(state.step, 0);
    }
  }));

Deno.test("import: an embedding with more rows than the vocabulary keeps them, without a character", () =>
  inTempFolder(async (folder) => {
    await writeLlama(`${folder}/model`, files({ shape: { ...SHAPE, vocab_size: 16 } }));
    const { path } = await importModel({ from: `${folder}/model`, out: `${folder}/run`, config: {} });
    const { manifest: { vocab, spec } } = await readWeights(path);
    assert.deepEqual([vocab.slice(0, 10), vocab.length, spec.vocab_size], [VOCAB, 16, 16]);
    assert.ok(vocab.slice(10).every((char) => char > "\u{f0000}"));
  }));

async function refused(
  folder: string,
  { code, pattern, config = {} }: { code: ErrorCode; pattern: RegExp; config?: Record<string, unknown> },
): Promise<void> {
  await assert.rejects(
    importModel({ from: `${folder}/model`, out: `${folder}/run`, config }),
    (error) => error instanceof ShoalError && error.code === code && pattern.test(error.message),
    String(pattern),
  );
  assert.deepEqual(
    [...Deno.readDirSync(folder)].map(({ name }) => name),
    ["model"],
    "something was left behind",
  );
}

const FOREIGN: [Record<string, unknown>, RegExp][] = [
  [
    { architectures: ["PhiForCausalLM"] },
    /architecture is "PhiForCausalLM"; only LlamaForCausalLM and GPT2LMHeadModel/,
  ],
  [{ architectures: null, model_type: "mistral" }, /architecture is "mistral"/],
  [{ attention_bias: true }, /attention_bias is true/],
  [{ mlp_bias: true }, /mlp_bias is true/],
  [{ hidden_act: "gelu" }, /hidden_act is "gelu"/],
  [{ rope_scaling: { type: "linear", factor: 2 } }, /rope_scaling is of kind "linear"/],
  [{ rope_parameters: { rope_type: "llama3" } }, /rope_parameters is of kind "llama3"/],
  [{ quantization_config: { bits: 4 } }, /quantised/],
  [{ partial_rotary_factor: 0.5 }, /partial_rotary_factor is 0.5/],
  [{ head_dim: 8 }, /head_dim is 8/],
  [{ hidden_size: "24" }, /hidden_size is missing or no number/],
  [{ num_hidden_layers: 0 }, /num_hidden_layers is missing or no number/],
  [{ vocab_size: 300_000 }, /vocab_size is 300000; at most 262144/],
  [{ vocab_size: 12 }, /embed_tokens.weight is \[10,24\], config.json says \[12,24\]/],
  [{ num_hidden_layers: 2 }, /tensor "model.layers.2[^"]*" has no place in our model/],
  [{ num_hidden_layers: 4 }, /tensor model.layers.3.input_layernorm.weight is missing/],
  [{ intermediate_size: 21 }, /gate_proj.weight is \[20,24\], config.json says \[21,24\]/],
];

Deno.test("import: what our kernels do not compute is refused by name", () =>
  inTempFolder(async (folder) => {
    for (const [config, pattern] of FOREIGN) {
      await writeLlama(`${folder}/model`, files({ config }));
      await refused(folder, { code: "bad-model", pattern });
    }
    await writeLlama(`${folder}/model`, files());
    const fixed = {
      code: "bad-config" as const,
      pattern: /n_layer is decided by the model/,
      config: { n_layer: 2 },
    };
    await refused(folder, fixed);
    const long = {
      code: "bad-config" as const,
      pattern: /block_size 17 exceeds the 16/,
      config: { block_size: 17 },
    };
    await refused(folder, long);
    await writeLlama(
      `${folder}/model`,
      files({ config: { num_attention_heads: 8, num_key_value_heads: 8 } }),
    );
    await refused(folder, { code: "bad-config", pattern: /n_embd \/ n_head is 3/ });
  }));

Deno.test("import: a tokenizer that cannot cut a sentence is refused before anything is written", () =>
  inTempFolder(async (folder) => {
    const model = { type: "Unheard", vocab: { a: 0, bc: 1 }, merges: [] };
    await writeLlama(`${folder}/model`, files({ tokenizer: { model } }));
    await refused(folder, { code: "bad-model", pattern: /the tokenizer cannot be used: .*tokenizer.json/ });
    const list = { model: { type: "Unigram", vocab: [["a", 0], 7], unk_id: 0 } };
    await writeLlama(`${folder}/model`, files({ tokenizer: list }));
    await refused(folder, { code: "bad-model", pattern: /token "" has no number/ });
  }));

Deno.test("import: a list of pieces with scores is a vocabulary, too", () =>
  inTempFolder(async (folder) => {
    const pieces = ["<unk>", ..."abcdefgh", "ab"].map((piece, i) => [piece, -i]);
    const steps = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
    const model = { type: "Unigram", vocab: pieces, unk_id: 0 };
    const tokenizer = { version: "1.0", added_tokens: [], ...steps, model };
    await writeLlama(`${folder}/model`, files({ tokenizer }));
    const { path } = await importModel({ from: `${folder}/model`, out: `${folder}/run`, config: {} });
    const { manifest } = await readWeights(path);
    assert.deepEqual([manifest.vocab[0], manifest.vocab[9], manifest.tokenizer], [
      "<unk>",
      "ab",
      "tokenizer.json",
    ]);
  }));

Deno.test("import: a folder that is in use is refused, and stays as it is", () =>
  inTempFolder(async (folder) => {
    await writeLlama(`${folder}/model`, files());
    const again = () => importModel({ from: `${folder}/model`, out: `${folder}/run`, config: {} });
    const { path } = await again();
    const before = await Deno.readTextFile(`${path}/manifest.json`);
    await assert.rejects(again(), (error) => error instanceof ShoalError && error.code === "usage");
    assert.equal(await Deno.readTextFile(`${path}/manifest.json`), before);
  }));
