// Initial weights: the same for every cut, the right spread, and pinned bits.
import assert from "node:assert/strict";
import { hashWords } from "../exact/hash.ts";
import { DEFAULT_CONFIG } from "./config.ts";
import { initParams } from "./init.ts";
import {
  EMBEDDING_NAME,
  findTensor,
  POSITIONS_NAME,
  specOf,
  splitLayers,
  stageLayout,
  wholeModel,
} from "./layout.ts";

const SPEC = { ...specOf(DEFAULT_CONFIG, 83), tie_word_embeddings: true };

const PARAMS_HASH = "f2538c74fbd4ece90c69ae131cc64eb8";
const FIRST_WEIGHTS = [-0.011489562690258026, 0.017554625868797302, -0.027926331385970116];

function tensorsOf(weights: number[], seed: number): Map<string, Float32Array> {
  const found = new Map<string, Float32Array>();
  for (const stage of splitLayers(SPEC, weights)) {
    const params = initParams(SPEC, stage, seed);
    for (const { name, offset, size } of stageLayout(SPEC, stage).tensors) {
      found.set(name, params.slice(offset, offset + size));
    }
  }
  return found;
}

function std(values: Float32Array): number {
  return Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);
}

Deno.test("init: a tensor does not depend on the cut into stages", () => {
  assert.deepEqual(tensorsOf([1], 5), tensorsOf([1, 2, 1], 5));
});

Deno.test("init: a GPT-2's biases are 0, its positions are drawn like words", () => {
  const spec = specOf({ ...DEFAULT_CONFIG, architecture: "gpt2", n_kv_head: 4 }, 83);
  const stage = wholeModel(spec), params = initParams(spec, stage, 5);
  for (const { name, offset, size } of stageLayout(spec, stage).tensors) {
    const values = params.subarray(offset, offset + size);
    if (name.endsWith(".bias")) assert.ok(values.every((value) => value === 0), name);
    if (name.endsWith("norm.weight")) assert.ok(values.every((value) => value === 1), name);
    if (name === POSITIONS_NAME) assert.ok(Math.abs(std(values) / 0.02 - 1) < 0.05);
  }
});

Deno.test("init: another seed or another name gives other weights", () => {
  const [a, b] = [tensorsOf([1], 5), tensorsOf([1], 6)];
  assert.notDeepEqual(a.get(EMBEDDING_NAME), b.get(EMBEDDING_NAME));
  const gate = (layer: number) => a.get(`model.layers.${layer}.mlp.gate_proj.weight`);
  assert.notDeepEqual(gate(0), gate(1));
});

Deno.test("init: gains are 1 and weights have GPT-2's standard deviations", () => {
  for (const [name, values] of tensorsOf([1], 1337)) {
    if (name.includes("norm")) {
      assert.ok(values.every((x) => x === 1), name);
    } else {
      const expected = /o_proj|down_proj/.test(name) ? 0.02 / Math.sqrt(8) : 0.02;
      // The smallest matrix has 2,048 values: five standard errors of its deviation are 8 %.
      assert.ok(Math.abs(std(values) / expected - 1) < 0.08, `${name}: ${std(values)}`);
      assert.ok(
        Math.abs(values.reduce((a, b) => a + b, 0) / values.length) < 5 * expected / Math.sqrt(values.length),
      );
    }
  }
});

Deno.test("init: padding is 0", () => {
  const spec = { ...SPEC, vocab_size: 7, n_embd: 24 };
  const layout = stageLayout(spec, wholeModel(spec));
  const params = initParams(spec, wholeModel(spec), 1);
  for (const { offset, size } of layout.tensors) params.fill(0, offset, offset + size);
  assert.ok(layout.size > layout.tensors.reduce((sum, { size }) => sum + size, 0));
  assert.ok(params.every((x) => x === 0));
});

Deno.test("init: the demo's bits are pinned, because all peers must start alike", () => {
  const params = initParams(SPEC, wholeModel(SPEC), 1337);
  const embedding = findTensor(stageLayout(SPEC, wholeModel(SPEC)), EMBEDDING_NAME)!;
  assert.deepEqual([...params.subarray(embedding.offset, embedding.offset + 3)], FIRST_WEIGHTS);
  assert.equal(hashWords(new Uint32Array(params.buffer)), PARAMS_HASH);
});
