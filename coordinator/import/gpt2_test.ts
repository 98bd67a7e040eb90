// An imported GPT-2 computes what transformers' definition says, in logits and loss, under both ways of naming its tensors; it can
// be fine-tuned; what is not a GPT-2 of ours is refused by name and leaves nothing behind.
import assert from "node:assert/strict";
import { createCpuEngine } from "../../peer/engine/cpu.ts";
import type { StageEngine } from "../../peer/engine/engine.ts";
import { createSampler } from "../../peer/engine/sampler.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import { blankState } from "../../peer/model/state_file.ts";
import { type ErrorCode, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { relativeError } from "../../shaders/reference/check.ts";
import { inTempFolder } from "../../test/support/checkpoint.ts";
import {
  drawGpt2,
  type Gpt2Files,
  gpt2Logits,
  gpt2Loss,
  type Gpt2Shape,
  writeGpt2,
} from "../../test/support/gpt2.ts";
import { charTokenizerJson } from "../../test/support/llama.ts";
import { readWeights } from "../store/weights.ts";
import { importModel } from "./import_model.ts";

const VOCAB = [..."\n abcdefgh"];
const SHAPE: Gpt2Shape = {
  ...{ vocab_size: VOCAB.length, n_positions: 16, n_embd: 24, n_layer: 3, n_head: 6, n_inner: 20 },
  ...{ layer_norm_epsilon: 1e-3, tie_word_embeddings: true },
};
const TOKENS = [3, 0, 9, 9, 1, 5, 2, 7, 7, 4, 6, 8, 3];

function files(more: Partial<Gpt2Files> = {}): Gpt2Files {
  const shape = more.shape ?? SHAPE;
  return { shape, weights: drawGpt2(shape, 5), dtype: "F32", tokenizer: charTokenizerJson(VOCAB), ...more };
}

async function imported(folder: string, model: Gpt2Files, config: Record<string, unknown> = {}) {
  await writeGpt2(`${folder}/model`, model);
  const { path, spec, config: run } = await importModel({
    ...{ from: `${folder}/model`, out: `${folder}/run`, config },
  });
  return { ...await readWeights(path), path, spec, run };
}

const KINDS: [string, Partial<Gpt2Files>][] = [
  ["F32", {}],
  ["F16, untied", { dtype: "F16", shape: { ...SHAPE, tie_word_embeddings: false } }],
  ["BF16, without a prefix but with masks", { dtype: "BF16", bare: true }],
  ["an inner layer that is not said", { shape: { ...SHAPE, n_inner: null } }],
];

for (const [kind, more] of KINDS) {
  Deno.test(`import: a GPT-2's logits and loss equal the definition's in double precision: ${kind}`, () =>
    inTempFolder(async (folder) => {
      const model = files(more);
      // A window shorter than the model's: its first positions are used.
      const { spec, params } = await imported(folder, model, { block_size: TOKENS.length - 1 });
      const inputs = TOKENS.slice(0, -1), targets = Uint32Array.from(TOKENS.slice(1));
      const logits = createSampler(spec, params).logits(inputs);
      const expected = gpt2Logits(model.shape, model.weights, inputs).flat();
      // The sampler's rows are f32, its sums double: a few roundings of 6e-8 per layer.
      assert.ok(relativeError(logits, Float64Array.from(expected)) < 5e-6);
      const engine = engineOf(spec);
      await engine.load(params);
      const { loss } = await engine.forward(null, { tokens: Uint32Array.from(inputs), targets });
      // Activations are f32 between layers, sums double.
      assert.ok(Math.abs(loss! - gpt2Loss(model.shape, model.weights, TOKENS)) < 1e-5);
    }));
}

/** One sequence at a time through the whole model. */
function engineOf(spec: ModelSpec): StageEngine {
  return createCpuEngine({
    ...{ spec, stage: wholeModel(spec), batchSize: 1, slots: 1 },
    ...{ codecForward: "raw32", codecBackward: "raw32" },
  });
}

Deno.test("import: a GPT-2 learns on from where it was", () =>
  inTempFolder(async (folder) => {
    const { spec, run, params, manifest } = await imported(folder, files(), { block_size: 12 });
    assert.deepEqual([manifest.spec.architecture, manifest.step, manifest.vocab], ["gpt2", 0, VOCAB]);
    assert.equal(run.architecture, "gpt2");
    const stage = wholeModel(spec), engine = engineOf(spec);
    const state = { ...blankState(spec, stage), params };
    const inputs = {
      tokens: Uint32Array.from(TOKENS.slice(0, -1)),
      targets: Uint32Array.from(TOKENS.slice(1)),
    };
    const losses: number[] = [];
    for (let step = 0; step < 6; step++) {
      await engine.load(state.params);
      losses.push((await engine.forward(0, inputs)).loss!);
      await engine.backward(0, null);
      const gradient = await engine.weightGrad(0);
      for (const [i, value] of gradient.entries()) state.params[i]! -= 1e-2 * value;
    }
    assert.ok(losses.every((loss, i) => i === 0 || loss < losses[i - 1]!), losses.join());
  }));

const FOREIGN: [Partial<Gpt2Files>, RegExp][] = [
  [{ config: { activation_function: "gelu" } }, /activation_function is "gelu"; our layers have gelu_new/],
  [{ config: { scale_attn_by_inverse_layer_idx: true } }, /scale_attn_by_inverse_layer_idx is true/],
  [{ config: { scale_attn_weights: false } }, /scale_attn_weights is false; in our layers it is true/],
  [{ config: { add_cross_attention: true } }, /add_cross_attention is true/],
  [{ config: { quantization_config: {} } }, /quantised/],
  [{ config: { n_embd: "24" } }, /n_embd is missing or no number above 0/],
  [{ config: { layer_norm_epsilon: 0 } }, /layer_norm_epsilon is missing/],
  [{ config: { n_inner: 21 } }, /c_fc.weight is \[24,20\], config.json says \[24,21\]/],
  [{ config: { n_positions: 15 } }, /wpe.weight is \[16,24\], config.json says \[15,24\]/],
  [{ config: { n_layer: 2 } }, /tensor "transformer.h.2[^"]*" has no place in our model/],
  [{ config: { n_layer: 4 } }, /tensor transformer.h.3.ln_1.weight is missing/],
  [{ config: { tie_word_embeddings: false } }, /tensor lm_head.weight is missing/],
  [
    { config: { architectures: ["GPT2ForSequenceClassification"] } },
    /only LlamaForCausalLM and GPT2LMHeadModel/,
  ],
];

Deno.test("import: what is not a GPT-2 of ours is refused by name, and nothing is left behind", () =>
  inTempFolder(async (folder) => {
    async function refused(model: Gpt2Files, pattern: RegExp, code: ErrorCode = "bad-model"): Promise<void> {
      const config = code === "bad-config" ? { n_inner: 8 } : {};
      await assert.rejects(imported(folder, model, config), (error) => {
        return error instanceof ShoalError && error.code === code && pattern.test(error.message);
      }, String(pattern));
      assert.deepEqual([...Deno.readDirSync(folder)].map(({ name }) => name), ["model"]);
    }
    for (const [more, pattern] of FOREIGN) await refused(files(more), pattern);
    await refused(files(), /n_inner is decided by the model/, "bad-config");
    const weights = drawGpt2(SHAPE, 5);
    weights.get("transformer.h.1.attn.c_attn.bias")!.values[3] = NaN;
    await refused(files({ weights }), /tensor transformer.h.1.attn.c_attn.bias contains NaN/);
  }));
