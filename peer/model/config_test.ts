// Every refusal names the key, the value and the remedy; the defaults themselves pass.
import assert from "node:assert/strict";
import { ShoalError } from "../wire/errors.ts";
import { checkCorpus, CONFIG_KEYS, DEFAULT_CONFIG, parseConfigValue, readConfig } from "./config.ts";

function refusal(input: Record<string, unknown>): string {
  try {
    readConfig(input);
  } catch (error) {
    assert.ok(error instanceof ShoalError && error.code === "bad-config");
    return error.message;
  }
  assert.fail(`${JSON.stringify(input)} was accepted`);
}

Deno.test("config: the defaults are valid and complete", () => {
  assert.deepEqual(readConfig({}), DEFAULT_CONFIG);
  assert.deepEqual(readConfig({ ...DEFAULT_CONFIG }), DEFAULT_CONFIG);
  assert.deepEqual(Object.keys(readConfig({})).sort(), [...CONFIG_KEYS].sort());
});

Deno.test("config: the result shares nothing with input or defaults", () => {
  const iceServers = [{ urls: ["stun:example.org"] }];
  const config = readConfig({ iceServers });
  iceServers[0]!.urls.push("changed");
  assert.deepEqual(config.iceServers, [{ urls: ["stun:example.org"] }]);
  readConfig({}).iceServers.push({ urls: "stun:a" });
  assert.deepEqual(DEFAULT_CONFIG.iceServers, []);
});

Deno.test("config: a GPT-2 has its own shape of a layer where none is given, and no shared keys", () => {
  const { n_kv_head, n_inner, tie_word_embeddings } = readConfig({
    architecture: "gpt2",
    n_embd: 96,
    n_head: 6,
  });
  assert.deepEqual({ n_kv_head, n_inner, tie_word_embeddings }, {
    ...{ n_kv_head: 6, n_inner: 384, tie_word_embeddings: true },
  });
  assert.equal(readConfig({ architecture: "gpt2", tie_word_embeddings: false }).tie_word_embeddings, false);
  assert.match(refusal({ architecture: "gpt2", n_kv_head: 2 }), /n_kv_head is 2; .* use n_head 4/);
  assert.match(refusal({ architecture: "gpt3" }), /architecture is "gpt3"; use one of llama, gpt2/);
});

Deno.test("config: an unknown key names the nearest known one", () => {
  assert.match(refusal({ n_layers: 3 }), /"n_layers".*n_layer$/);
  assert.match(refusal({ learningrate: 3 }), /learning_rate$/);
  assert.match(refusal({ iceservers: [] }), /iceServers$/);
  assert.match(refusal({ constructor: 1 }), /unknown key "constructor"/);
});

Deno.test("config: wrong types and values out of range are named", () => {
  const cases: [Record<string, unknown>, RegExp][] = [
    [{ n_layer: "4" }, /n_layer is "4"; use an integer from 1 to 256/],
    [{ n_layer: 2.5 }, /n_layer is 2.5/],
    [{ n_layer: 0 }, /n_layer is 0/],
    [{ learning_rate: NaN }, /learning_rate is null; use a number/],
    [{ learning_rate: -1 }, /learning_rate is -1/],
    [{ beta2: 1 }, /beta2 is 1/],
    [
      { gradient_accumulation_steps: 257 },
      /gradient_accumulation_steps is 257; use an integer from 1 to 256/,
    ],
    [{ tie_word_embeddings: 1 }, /tie_word_embeddings is 1; use true or false/],
    [{ schedule: "zigzag" }, /schedule is "zigzag"; use one of dynamic, gpipe, 1f1b, interleaved/],
    [{ codec_forward: null }, /codec_forward is null; use one of raw32/],
    [{ reduce: "int4" }, /reduce is "int4"; use one of int8, raw32/],
    [{ reduce: 8 }, /reduce is 8; use one of int8, raw32/],
    [{ dtype: "bf16" }, /dtype is "bf16"; use one of f32, f16/],
    [{ dataset: "" }, /dataset is ""/],
    [{ dataset: undefined }, /dataset is undefined/],
    [{ iceServers: [{ urls: "http://x" }] }, /iceServers is/],
    [{ iceServers: [{ urls: [] }] }, /iceServers is/],
    [{ iceServers: [{ urls: "turn:x", password: "y" }] }, /iceServers is/],
    [{ seed: 2 ** 32 }, /seed is 4294967296/],
  ];
  for (const [input, message] of cases) assert.match(refusal(input), message);
});

Deno.test("config: combinations that cannot train are named", () => {
  const cases: [Record<string, unknown>, RegExp][] = [
    [{ n_embd: 65 }, /n_embd 65 is not a multiple of n_head 4/],
    [{ n_kv_head: 3 }, /n_head 4 is not a multiple of n_kv_head 3/],
    [{ n_embd: 12 }, /n_embd \/ n_head is 3; heads need an even size/],
    [{ n_embd: 1024 }, /n_embd \/ n_head is 256/],
    [{ n_stage: 5 }, /n_stage 5 exceeds n_layer 4/],
    [
      { dtype: "f16", n_embd: 16 },
      /n_embd \/ n_head is 4; with dtype f16 it divides by 8: change it, or use dtype f32/,
    ],
    [{ dtype: "f16", schedule: "2bw" }, /schedule 2bw has no loss scale; use dtype f32/],
    [{ dtype: "f16", n_inner: 190 }, /n_inner is 190; with dtype f16 it divides by 4/],
    [
      { dtype: "f16", batch_size: 3, block_size: 5 },
      /batch_size x block_size is 15; with dtype f16 it divides by 4/,
    ],
    [{ dropout: 0.1 }, /dropout is 0.1; the kernels have no dropout yet, use 0/],
    [{ warmup_iters: 301 }, /warmup_iters 301 exceeds max_iters 300/],
    [{ lr_decay_iters: 10, warmup_iters: 20 }, /lr_decay_iters 10 lies before warmup_iters 20/],
    [{ min_lr: 1 }, /min_lr 1 exceeds learning_rate/],
  ];
  for (const [input, message] of cases) assert.match(refusal(input), message);
});

Deno.test("config: f16 is allowed for the default model, and f32 for shapes that halves cannot have", () => {
  assert.equal(readConfig({ dtype: "f16" }).dtype, "f16");
  const odd = { n_embd: 12, n_head: 2, n_kv_head: 1, n_inner: 7, batch_size: 1, block_size: 5 };
  assert.equal(readConfig(odd).dtype, "f32");
});

Deno.test("config: one key is enough to shorten a run", () => {
  const config = readConfig({ max_iters: 5, learning_rate: 1e-4 });
  assert.deepEqual([config.warmup_iters, config.lr_decay_iters, config.min_lr], [5, 5, 1e-4]);
  assert.equal(readConfig({ lr_decay_iters: 7 }).warmup_iters, 7);
});

Deno.test("config: flags' texts become values of the key's type", () => {
  assert.equal(parseConfigValue("n_layer", "6"), 6);
  assert.equal(parseConfigValue("learning_rate", "3e-4"), 3e-4);
  assert.equal(parseConfigValue("tie_word_embeddings", "true"), true);
  assert.equal(parseConfigValue("dataset", "12"), "12");
  assert.equal(parseConfigValue("schedule", "1f1b"), "1f1b");
  assert.equal(readConfig({ reduce: parseConfigValue("reduce", "raw32") }).reduce, "raw32");
  assert.match(refusal({ n_layer: parseConfigValue("n_layer", "six") }), /n_layer is "six"/);
});

Deno.test("config: a corpus too short for one sequence is refused", () => {
  checkCorpus(readConfig({ block_size: 9 }), 100);
  assert.throws(
    () => checkCorpus(readConfig({ block_size: 10 }), 100),
    (error) => error instanceof ShoalError && error.code === "bad-corpus" && /val split/.test(error.message),
  );
  checkCorpus(readConfig({ block_size: 10 }), 110);
});
