// The sampler against the double-precision stage at every position and beyond the window, and its draws: seeded,
// bounded by topK, following the softmax.
import assert from "node:assert/strict";
import { randomArray, relativeError } from "../../shaders/reference/check.ts";
import { stageForward, stageShape, viewParams } from "../../shaders/reference/stage.ts";
import { findTensor, stageLayout, wholeModel } from "../model/layout.ts";
import { ShoalError } from "../wire/errors.ts";
import type { ModelSpec } from "../wire/run.ts";
import { createSampler } from "./sampler.ts";

const spec: ModelSpec = {
  vocab_size: 11,
  block_size: 6,
  n_layer: 2,
  n_head: 4,
  n_kv_head: 2,
  n_embd: 16,
  n_inner: 10,
  tie_word_embeddings: false,
  rope_theta: 10000,
  norm_eps: 1e-5,
};
const options = { count: 20, temperature: 1, topK: 0, seed: 3 };

function randomParams(model: ModelSpec, scale = 0.7): Float32Array {
  const layout = stageLayout(model, wholeModel(model)), flat = new Float32Array(layout.size);
  layout.tensors.forEach((tensor, i) => flat.set(randomArray(i, tensor.size, scale), tensor.offset));
  return flat;
}

/** Logits [n, V] of the reference stage over n tokens. */
function reference(model: ModelSpec, params: Float32Array, tokens: number[]): Float64Array {
  const shape = { ...stageShape(model, wholeModel(model), 1), T: tokens.length };
  const views = viewParams(model, wholeModel(model), Float64Array.from(params));
  const targets = new Uint32Array(tokens.length);
  return stageForward(shape, views, { tokens: Uint32Array.from(tokens), targets }).saved.head!.logits;
}

const variants: [string, ModelSpec][] = [
  ["untied", spec],
  ["tied", { ...spec, tie_word_embeddings: true }],
  ["one token per window", { ...spec, block_size: 1 }],
  ["GPT-2", { ...spec, architecture: "gpt2", n_kv_head: 4 }],
  ["GPT-2, tied", { ...spec, architecture: "gpt2", n_kv_head: 4, tie_word_embeddings: true }],
];
for (const [name, model] of variants) {
  Deno.test(`logits equal the reference stage's at every position: ${name}`, () => {
    const params = randomParams(model), tokens = [3, 0, 10, 3, 7, 1].slice(0, model.block_size);
    const sampler = createSampler(model, params);
    const expected = reference(model, params, tokens);
    // Rows are f32, sums double: a few roundings of 6e-8 per layer.
    assert(relativeError(sampler.logits(tokens), expected) < 2e-6);
    assert(relativeError(sampler.logits(tokens), expected) < 2e-6, "a second pass starts afresh");
  });
}

/** Greedy text by the reference, with the documented window: full, then the newer half is read again. */
function referenceGreedy(model: ModelSpec, params: Float32Array, prompt: number[]): number[] {
  const { block_size: T, vocab_size: V } = model;
  const written: number[] = [];
  let window = prompt.slice(-T);
  while (written.length < options.count) {
    const row = reference(model, params, window).subarray((window.length - 1) * V);
    written.push(row.indexOf(Math.max(...row)));
    if (window.length === T) window = window.slice(T - Math.floor(T / 2));
    window.push(written.at(-1)!);
  }
  return written;
}

for (
  const shape of [{ block_size: 1 }, { block_size: 5 }, { block_size: 6 }, {
    ...{ block_size: 5, n_kv_head: 4, architecture: "gpt2" as const },
  }]
) {
  Deno.test(`greedy text equals the reference's far beyond the window of ${JSON.stringify(shape)}`, () => {
    const model = { ...spec, ...shape }, params = randomParams(model);
    const sampler = createSampler(model, params);
    for (const prompt of [[1], [4, 2, 9], [0, 1, 2, 3, 4, 5, 6, 7]]) {
      const text = sampler.generate(prompt, { ...options, temperature: 0 });
      assert.deepEqual(text, referenceGreedy(model, params, prompt));
      assert.equal(text.length, options.count);
    }
  });
}

Deno.test("a long prompt, read many tokens at a time, gives what the uncached forward gives", () => {
  const model = { ...spec, block_size: 50 }, params = randomParams(model);
  const sampler = createSampler(model, params);
  // 37 tokens are two whole portions and a rest; greedy text then depends on every cached row.
  const prompt = Array.from({ length: 37 }, (_, i) => (i * i + 3 * i) % 11);
  const written = sampler.generate(prompt, { ...options, temperature: 0 });
  assert.deepEqual(written, referenceGreedy(model, params, prompt));
  const whole = [...prompt, ...written.slice(0, 13)];
  assert(relativeError(sampler.logits(whole), reference(model, params, whole)) < 2e-6);
});

Deno.test("tokens come one by one, as many as are asked for and no more work", () => {
  const sampler = createSampler(spec, randomParams(spec));
  const text = sampler.generate([1, 2], options);
  const begun = sampler.write([1, 2], options);
  assert.deepEqual([begun.next().value, begun.next().value], text.slice(0, 2));
  begun.return();
  assert.deepEqual(
    sampler.generate([1, 2], options),
    text,
    "a text that was cut short left something behind",
  );
  const first = sampler.write([1, 2], options);
  first.next();
  sampler.write([3], options).next();
  assert.throws(() => first.next(), /another text was begun/);
});

Deno.test("a seed decides the text, whatever was written before", () => {
  const sampler = createSampler(spec, randomParams(spec));
  const text = sampler.generate([1, 2], options);
  assert.notDeepEqual(sampler.generate([1, 2], { ...options, seed: 4 }), text);
  assert.deepEqual(sampler.generate([1, 2], options), text);
  assert.deepEqual(createSampler(spec, randomParams(spec)).generate([1, 2], options), text);
});

Deno.test("topK 1 is greedy and topK 3 draws only the three likeliest", () => {
  const params = randomParams(spec), sampler = createSampler(spec, params);
  const greedy = sampler.generate([5], { ...options, temperature: 0 });
  assert.deepEqual(sampler.generate([5], { ...options, topK: 1 }), greedy);
  const row = [...sampler.logits([5])];
  const best = [...row.keys()].sort((a, b) => row[b]! - row[a]!).slice(0, 3);
  const drawn = new Set<number>();
  for (let seed = 0; seed < 200; seed++) {
    drawn.add(sampler.generate([5], { count: 1, temperature: 5, topK: 3, seed })[0]!);
  }
  assert.deepEqual([...drawn].sort(), best.sort());
});

Deno.test("draws follow the softmax at the given temperature", () => {
  const params = randomParams(spec), sampler = createSampler(spec, params), temperature = 2, draws = 4000;
  const weights = [...sampler.logits([8])].map((logit) => Math.exp(logit / temperature));
  const sum = weights.reduce((a, b) => a + b);
  const counts = new Array<number>(spec.vocab_size).fill(0);
  for (let seed = 0; seed < draws; seed++) {
    counts[sampler.generate([8], { count: 1, temperature, topK: 0, seed })[0]!]! += 1;
  }
  // Four standard deviations of a count; the seeds are fixed, so this passes always or never.
  counts.forEach((count, token) => {
    const p = weights[token]! / sum;
    assert(Math.abs(count - p * draws) < 4 * Math.sqrt(draws * p * (1 - p)) + 1, `token ${token}: ${count}`);
  });
});

Deno.test("diverged parameters still give tokens of the vocabulary", () => {
  const params = randomParams(spec);
  params[findTensor(stageLayout(spec, wholeModel(spec)), "model.norm.weight")!.offset] = NaN;
  const text = createSampler(spec, params).generate([1], options);
  assert(text.every((token) => Number.isInteger(token) && token >= 0 && token < spec.vocab_size));
});

Deno.test("misuse is refused with a code and the value", () => {
  const sampler = createSampler(spec, randomParams(spec));
  function code(work: () => unknown): string {
    try {
      work();
    } catch (error) {
      if (error instanceof ShoalError) return `${error.code}: ${error.message}`;
    }
    return "no ShoalError";
  }
  assert.match(code(() => createSampler(spec, new Float32Array(9))), /^bad-state: 9 parameters/);
  assert.match(code(() => sampler.generate([], options)), /^usage: the prompt has 0 tokens/);
  assert.match(code(() => sampler.generate([11], options)), /^usage: token 11/);
  assert.match(code(() => sampler.generate([1.5], options)), /^usage: token 1.5/);
  assert.match(code(() => sampler.logits([1, 1, 1, 1, 1, 1, 1])), /^usage: 7 tokens/);
  assert.match(code(() => sampler.generate([1], { ...options, count: -1 })), /^usage: .*count -1/);
  assert.match(
    code(() => sampler.generate([1], { ...options, temperature: NaN })),
    /^usage: .*temperature NaN/,
  );
  assert.match(code(() => sampler.generate([1], { ...options, topK: 0.5 })), /^usage: .*topK 0.5/);
  assert.match(code(() => sampler.write([1], { ...options, topP: 0 })), /^usage: .*topP 0/);
  assert.deepEqual(sampler.generate([1], { ...options, count: 0 }), []);
});
