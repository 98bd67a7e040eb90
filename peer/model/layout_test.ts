// Layout invariants for random models and cuts, and the names and shapes of one known model.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../wire/errors.ts";
import type { ModelSpec } from "../wire/run.ts";
import { DEFAULT_CONFIG } from "./config.ts";
import {
  EMBEDDING_NAME,
  findTensor,
  GROUP_ALIGNMENT,
  HEAD_NAME,
  paramCount,
  specOf,
  splitLayers,
  stageLayout,
  wholeModel,
} from "./layout.ts";

const SPEC = specOf(DEFAULT_CONFIG, 83);
const TIED: ModelSpec = { ...SPEC, tie_word_embeddings: true };

const specs = fc.record({
  vocab_size: fc.integer({ min: 1, max: 300 }),
  n_layer: fc.integer({ min: 1, max: 9 }),
  groups: fc.integer({ min: 1, max: 3 }),
  n_kv_head: fc.integer({ min: 1, max: 3 }),
  half: fc.integer({ min: 1, max: 5 }),
  n_inner: fc.integer({ min: 1, max: 70 }),
  tie_word_embeddings: fc.boolean(),
  gpt2: fc.boolean(),
}).map(({ groups, half, gpt2, ...rest }): ModelSpec => {
  const n_head = groups * rest.n_kv_head;
  const own = gpt2 ? { architecture: "gpt2" as const, n_kv_head: n_head } : {};
  return { ...SPEC, ...rest, n_head, n_embd: n_head * half * 2, ...own };
});

Deno.test("layout: the demo's first and last stage have Llama's names and shapes", () => {
  const [first, last] = splitLayers(SPEC, [1, 1]).map((stage) => stageLayout(SPEC, stage)) as [
    ReturnType<typeof stageLayout>,
    ReturnType<typeof stageLayout>,
  ];
  assert.deepEqual(first.tensors.slice(0, 10).map(({ name, shape }) => [name, shape]), [
    ["model.embed_tokens.weight", [83, 64]],
    ["model.layers.0.input_layernorm.weight", [64]],
    ["model.layers.0.self_attn.q_proj.weight", [64, 64]],
    ["model.layers.0.self_attn.k_proj.weight", [32, 64]],
    ["model.layers.0.self_attn.v_proj.weight", [32, 64]],
    ["model.layers.0.self_attn.o_proj.weight", [64, 64]],
    ["model.layers.0.post_attention_layernorm.weight", [64]],
    ["model.layers.0.mlp.gate_proj.weight", [192, 64]],
    ["model.layers.0.mlp.up_proj.weight", [192, 64]],
    ["model.layers.0.mlp.down_proj.weight", [64, 192]],
  ]);
  assert.deepEqual(last.tensors.slice(-2).map(({ name, shape }) => [name, shape]), [
    ["model.norm.weight", [64]],
    ["lm_head.weight", [83, 64]],
  ]);
});

Deno.test("layout: a GPT-2 has learned positions, and a bias behind each norm and matrix but the head's", () => {
  const spec = specOf({ ...DEFAULT_CONFIG, architecture: "gpt2", n_kv_head: 4, n_layer: 1 }, 83);
  const { tensors } = stageLayout(spec, wholeModel(spec));
  assert.deepEqual(tensors.map(({ name, shape }) => [name.replace("model.layers.0.", ""), shape]), [
    ["model.embed_tokens.weight", [83, 64]],
    ["model.embed_positions.weight", [64, 64]],
    ["input_layernorm.weight", [64]],
    ["input_layernorm.bias", [64]],
    ...["q", "k", "v"].map((name) => [`self_attn.${name}_proj.weight`, [64, 64]]),
    ...["q", "k", "v"].map((name) => [`self_attn.${name}_proj.bias`, [64]]),
    ["self_attn.o_proj.weight", [64, 64]],
    ["self_attn.o_proj.bias", [64]],
    ["post_attention_layernorm.weight", [64]],
    ["post_attention_layernorm.bias", [64]],
    ["mlp.up_proj.weight", [192, 64]],
    ["mlp.up_proj.bias", [192]],
    ["mlp.down_proj.weight", [64, 192]],
    ["mlp.down_proj.bias", [64]],
    ["model.norm.weight", [64]],
    ["model.norm.bias", [64]],
    ["lm_head.weight", [83, 64]],
  ]);
});

Deno.test("layout: the parameter count is the sum of the textbook terms", () => {
  const layer = 2 * 64 + 64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 192;
  assert.equal(paramCount(SPEC), 2 * 83 * 64 + 4 * layer + 64);
  assert.equal(paramCount(TIED), 83 * 64 + 4 * layer + 64);
});

Deno.test("layout: a tied model keeps the embedding at both ends, once per stage", () => {
  const [first, last] = splitLayers(TIED, [1, 1]).map((stage) => stageLayout(TIED, stage));
  assert.ok(findTensor(first!, EMBEDDING_NAME) && findTensor(last!, EMBEDDING_NAME));
  assert.equal(findTensor(last!, HEAD_NAME), undefined);
  const whole = stageLayout(TIED, wholeModel(TIED));
  assert.equal(whole.tensors.filter(({ name }) => name === EMBEDDING_NAME).length, 1);
});

Deno.test("layout: tensors never overlap, groups are aligned, projections are contiguous", () => {
  fc.assert(
    fc.property(specs, (spec) => {
      const { tensors, size } = stageLayout(spec, wholeModel(spec));
      let end = 0;
      for (const tensor of tensors) {
        // What a kernel reads as one: q, k, v; gate and up; a norm's gain and bias.
        const joined = spec.architecture === "gpt2"
          ? /\.[kv]_proj\.\w+$|norm\.bias$/.test(tensor.name)
          : /\.(k_proj|v_proj|up_proj)\.weight$/.test(tensor.name);
        if (joined) assert.equal(tensor.offset, end, tensor.name);
        else assert.equal(tensor.offset % GROUP_ALIGNMENT, 0, tensor.name);
        assert.ok(tensor.offset >= end && tensor.offset < end + GROUP_ALIGNMENT);
        end = tensor.offset + tensor.size;
      }
      assert.ok(size >= end && size < end + GROUP_ALIGNMENT && size % GROUP_ALIGNMENT === 0);
    }),
    { seed: 1 },
  );
});

Deno.test("layout: every cut covers the layers in order and contains all tensors of the model", () => {
  const weights = fc.array(fc.double({ min: 0, max: 1e3, noNaN: true }), { minLength: 1, maxLength: 9 });
  fc.assert(
    fc.property(specs, weights, (spec, some) => {
      const stages = splitLayers(spec, some.slice(0, spec.n_layer));
      stages.forEach((stage, index) => {
        assert.equal(stage.index, index);
        assert.equal(stage.firstLayer, index === 0 ? 0 : stages[index - 1]!.endLayer);
        assert.ok(stage.endLayer > stage.firstLayer);
        assert.deepEqual([stage.embed, stage.head], [index === 0, index === stages.length - 1]);
      });
      assert.equal(stages.at(-1)!.endLayer, spec.n_layer);
      const parts = stages.flatMap((stage) => stageLayout(spec, stage).tensors.map(({ name }) => name));
      const whole = stageLayout(spec, wholeModel(spec)).tensors.map(({ name }) => name);
      assert.deepEqual([...new Set(parts)].sort(), whole.sort());
    }),
    { seed: 2 },
  );
});

Deno.test("layout: layers follow the weights", () => {
  const spec = { ...SPEC, n_layer: 10 };
  const layers = (weights: number[]) => splitLayers(spec, weights).map((s) => s.endLayer - s.firstLayer);
  assert.deepEqual(layers([1, 1]), [5, 5]);
  assert.deepEqual(layers([3, 1]), [8, 2]);
  assert.deepEqual(layers([1, 1, 1]), [4, 3, 3]);
  assert.deepEqual(layers([1000, 1, 1]), [8, 1, 1]);
  assert.deepEqual(layers([0, 0]), [5, 5]);
});

Deno.test("layout: impossible cuts are refused with bad-config", () => {
  for (const weights of [[], [1, 1, 1, 1, 1], [1, NaN], [-1, 2], [Infinity]]) {
    assert.throws(
      () => splitLayers(SPEC, weights),
      (error) => error instanceof ShoalError && error.code === "bad-config",
    );
  }
});
