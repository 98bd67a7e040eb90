// A checkpoint that writes: its pieces make the sampler's text, stop texts end it, and foreign characters are named.
import assert from "node:assert/strict";
import { createSampler } from "../../peer/engine/sampler.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { readWeights } from "../store/weights.ts";
import { inTempFolder, TINY_VOCAB, writeTiny } from "../../test/support/checkpoint.ts";
import type { TextEnd, TextRequest } from "../http/text_protocol.ts";
import { importModel } from "../import/import_model.ts";
import { byteLevelTokenizerJson, drawLlama, writeLlama } from "../../test/support/llama.ts";
import { TextModel } from "./text_model.ts";

const REQUEST: TextRequest = {
  ...{ prompt: "abc", count: 40, temperature: 1, topK: 0, topP: 1, seed: 5, stop: [] },
};

function written(model: TextModel, request: TextRequest): { pieces: string[]; end: TextEnd } {
  const pieces: string[] = [], writing = model.write(request);
  while (true) {
    const next = writing.next();
    if (next.done) return { pieces, end: next.value };
    pieces.push(next.value);
  }
}

Deno.test("text model: the pieces are the sampler's text, one per token", () =>
  inTempFolder(async (folder) => {
    const path = await writeTiny(folder), model = await TextModel.open(path);
    const { manifest: { spec }, params } = await readWeights(path);
    const prompt = [..."abc"].map((char) => TINY_VOCAB.indexOf(char));
    const tokens = createSampler(spec, params).generate(prompt, REQUEST);
    const { pieces, end } = written(model, REQUEST);
    assert.equal(pieces.join(""), tokens.map((token) => TINY_VOCAB[token]).join(""));
    assert.ok(new Set(tokens).size > 3, "a text that says nothing");
    assert.deepEqual(pieces.slice(0, -1), tokens.map((token) => TINY_VOCAB[token]));
    assert.deepEqual(end, { reason: "length", promptTokens: 3, tokens: 40 });
    assert.deepEqual(written(model, { ...REQUEST, prompt }).pieces, pieces, "tokens are a prompt, too");
  }));

Deno.test("text model: writing ends before a stop text", () =>
  inTempFolder(async (folder) => {
    const model = await TextModel.open(await writeTiny(folder));
    const text = written(model, REQUEST).pieces.join("");
    const stop = text.slice(17, 20), at = text.indexOf(stop);
    const { pieces, end } = written(model, { ...REQUEST, stop: ["none of it", stop] });
    assert.equal(pieces.join(""), text.slice(0, at));
    assert.deepEqual(end, { reason: "stop", promptTokens: 3, tokens: at + stop.length });
  }));

Deno.test("text model: with a tokenizer of its own a text ends at its special token, and pieces are whole characters", () =>
  inTempFolder(async (folder) => {
    const shape = {
      ...{
        vocab_size: 259,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 1,
        num_attention_heads: 2,
      },
      ...{ num_key_value_heads: 2, max_position_embeddings: 8, rms_norm_eps: 1e-6, rope_theta: 1e4 },
      tie_word_embeddings: false,
    };
    const tokenizer = byteLevelTokenizerJson(["t h", "th e"]);
    await writeLlama(`${folder}/model`, {
      shape,
      weights: drawLlama(shape, 1),
      dtype: "F32",
      shards: 1,
      tokenizer,
    });
    const { path } = await importModel({ from: `${folder}/model`, out: `${folder}/run`, config: {} });
    const model = await TextModel.open(path);
    const { pieces, end } = written(model, { ...REQUEST, prompt: "the cat", temperature: 20, count: 5000 });
    // Of 259 tokens one ends the text, so 5000 draws that never meet it would be a miracle.
    assert.equal(end.reason, "stop");
    assert.deepEqual([end.promptTokens, pieces.length], [5, end.tokens]);
    assert.ok(end.tokens < 5000 && !pieces.join("").includes("endoftext"));
    const count = end.tokens + 3, more = { ...REQUEST, prompt: "the cat", temperature: 20, count };
    const on = written(model, { ...more, ignoreEos: true });
    assert.deepEqual(on.end, { reason: "length", promptTokens: 5, tokens: count });
    assert.ok(on.pieces.join("").startsWith(pieces.join("").replace(/\ufffd+$/, "")));
  }));

Deno.test("text model: what is not of the vocabulary is refused before anything is computed", () =>
  inTempFolder(async (folder) => {
    const model = await TextModel.open(await writeTiny(folder));
    const refusal = (prompt: TextRequest["prompt"], code: string, pattern: RegExp) =>
      assert.throws(
        () => model.write({ ...REQUEST, prompt }),
        (error) => error instanceof ShoalError && error.code === code && pattern.test(error.message),
      );
    refusal("abcZ", "bad-corpus", /never seen the character "Z"; it knows "\\n abcdefg"/);
    refusal("", "usage", /prompt is empty/);
    refusal([], "usage", /prompt is empty/);
    refusal([9], "usage", /token 9 is not one of 0 to 8/);
  }));
