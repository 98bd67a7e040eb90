// Stages that write together: whatever the cut, the bits are the whole model's, beyond the window too; and work that is put aside
// between two pieces comes out the same.
import assert from "node:assert/strict";
import { randomArray } from "../../shaders/reference/check.ts";
import { findTensor, splitLayers, stageLayout, wholeModel } from "../model/layout.ts";
import { randomStream } from "../model/random.ts";
import { readAnew, readOn, windowOf, type WindowPiece } from "../model/text_window.ts";
import { ShoalError } from "../wire/errors.ts";
import type { ModelSpec, StageSpec } from "../wire/run.ts";
import { createSampler } from "./sampler.ts";
import { drawToken } from "./sampler_draw.ts";
import { atOnce, cacheBytes, StageSampler } from "./sampler_stage.ts";

const llama: ModelSpec = {
  ...{ vocab_size: 11, block_size: 7, n_layer: 3, n_head: 4, n_kv_head: 2, n_embd: 16, n_inner: 10 },
  ...{ tie_word_embeddings: false, rope_theta: 10000, norm_eps: 1e-5 },
};
const gpt2: ModelSpec = { ...llama, architecture: "gpt2", n_kv_head: 4 };
const MODELS: [string, ModelSpec][] = [
  ["Llama", llama],
  ["Llama, tied", { ...llama, tie_word_embeddings: true }],
  ["GPT-2", gpt2],
  ["GPT-2, tied", { ...gpt2, tie_word_embeddings: true }],
];
const OPTIONS = { temperature: 1, topK: 0, topP: 1 };

function randomParams(spec: ModelSpec): Float32Array {
  const layout = stageLayout(spec, wholeModel(spec)), flat = new Float32Array(layout.size);
  layout.tensors.forEach((tensor, i) => flat.set(randomArray(i, tensor.size, 0.7), tensor.offset));
  return flat;
}

/** The stage's part of the whole model's parameters. */
function paramsOf(spec: ModelSpec, stage: StageSpec, whole: Float32Array): Float32Array {
  const layout = stageLayout(spec, stage), from = stageLayout(spec, wholeModel(spec));
  const flat = new Float32Array(layout.size);
  for (const { name, offset, size } of layout.tensors) {
    const at = findTensor(from, name)!.offset;
    flat.set(whole.subarray(at, at + size), offset);
  }
  return flat;
}

/** Logits after each piece, of a model in stages. */
function chain(spec: ModelSpec, cuts: number[], params: Float32Array): (piece: WindowPiece) => Float32Array {
  const stages = splitLayers(spec, cuts).map((stage) => {
    const sampler = new StageSampler(spec, stage, paramsOf(spec, stage, params));
    return { sampler, cache: sampler.open() };
  });
  return ({ tokens, position }) => {
    let rows: readonly number[] | Float32Array = tokens;
    for (const { sampler, cache } of stages) {
      // As it comes over a link: bytes, in an array of its own.
      const input: readonly number[] | Float32Array = rows instanceof Float32Array ? rows.slice() : rows;
      rows = atOnce(sampler.read(cache, input, position));
    }
    return atOnce(stages.at(-1)!.sampler.logits((rows as Float32Array).subarray(-spec.n_embd)));
  };
}

for (const [name, spec] of MODELS) {
  Deno.test(`stages write what the whole model writes, to the bit: ${name}`, () => {
    const params = randomParams(spec), prompt = [4, 2, 9, 1, 0, 3, 3, 8, 10, 5];
    for (const length of [1, 3, 10]) {
      const text = prompt.slice(0, length), seed = length;
      const expected = createSampler(spec, params).generate(text, { ...OPTIONS, count: 30, seed });
      for (const cuts of [[3], [1, 2], [2, 1], [1, 1, 1]]) {
        const read = chain(spec, cuts, params), next = randomStream([seed]), window: number[] = [];
        readAnew(window, windowOf(text, spec.block_size)).forEach(read);
        let token = text.at(-1)!;
        const written = Array.from({ length: 30 }, () => {
          const logits = readOn(window, token, spec.block_size).map(read).at(-1)!;
          return token = drawToken(logits, OPTIONS, next);
        });
        assert.deepEqual(written, expected, `cut ${cuts}`);
      }
    }
  });
}

Deno.test("a prompt in pieces of any length has the same bits", () => {
  const spec = { ...llama, block_size: 40 }, params = randomParams(spec);
  const tokens = Array.from({ length: 40 }, (_, i) => (i * i + 3 * i) % 11);
  const window: number[] = [];
  const inPieces = readAnew(window, tokens);
  assert.deepEqual(inPieces.map((it) => [it.position, it.tokens.length]), [[0, 16], [16, 16], [32, 8]]);
  assert.deepEqual(window, tokens);
  const read = chain(spec, [1, 2], params), one = chain(spec, [3], params);
  const last = inPieces.map(read).at(-1)!;
  assert.deepEqual(tokens.map((token, position) => one({ position, tokens: [token] })).at(-1), last);
});

Deno.test("a window that is full keeps its newer half, one token more, and never an empty piece", () => {
  for (const T of [1, 2, 3, 6]) {
    const window: number[] = [], read: number[] = [];
    for (let token = 0; token < 4 * T; token++) {
      for (const { position, tokens } of readOn(window, token, T)) {
        assert.ok(tokens.length > 0 && position + tokens.length <= T);
        assert.equal(position === 0 || position === read.length, true);
        read.splice(position, Infinity, ...tokens);
      }
      assert.deepEqual(read, window);
      assert.equal(window.at(-1), token);
      assert.ok(window.length >= Math.min(token + 1, Math.floor(T / 2) + 1));
    }
  }
});

Deno.test("rows that do not follow the ones before are our own mistake, foreign parameters a coded one", () => {
  const sampler = new StageSampler(llama, wholeModel(llama), randomParams(llama));
  const cache = sampler.open();
  atOnce(sampler.read(cache, [1, 2], 0));
  assert.throws(() => atOnce(sampler.read(cache, [3], 3)), /rows at 3 after 2/);
  atOnce(sampler.read(cache, [3], 2));
  assert.equal(cache.length, 3);
  assert.throws(
    () => new StageSampler(llama, wholeModel(llama), new Float32Array(9)),
    (error) => error instanceof ShoalError && error.code === "bad-state",
  );
  const bytes = cache.blocks.reduce((sum, it) => sum + it.keys.byteLength + it.values.byteLength, 0);
  assert.equal(cacheBytes(llama, wholeModel(llama)), bytes);
});

Deno.test("a long product and many rows are cut into pieces of work", () => {
  const spec = { ...llama, n_embd: 256, n_inner: 1024, n_head: 4, n_kv_head: 4, vocab_size: 2048 };
  const stage = { ...wholeModel(spec), endLayer: 1, head: false };
  const sampler = new StageSampler(spec, stage, new Float32Array(stageLayout(spec, stage).size));
  let pieces = 0;
  for (const _ of sampler.read(sampler.open(), [1, 2, 3, 4, 5], 0)) pieces++;
  // 5 rows: q, k and v 0.98 M multiply-adds, o 0.3 M, gate and up 2.6 M, down 1.3 M, of at most about 1 M each; and 5 rows of attention.
  assert.equal(pieces, 1 + 1 + 3 + 2 + 5);
});
