// A real book in GPT-2's tokens, from the text to a trained checkpoint and on to what it writes: the tokenizer must be the same all the
// way. A model this small only learns which tokens are frequent, which is enough to see that it learns.
import assert from "node:assert/strict";
import { join } from "node:path";
import { stageFileName, withTokenizer, writeCheckpoint } from "../store/checkpoints.ts";
import { loadCorpus } from "../store/corpus.ts";
import { readWeights } from "../store/weights.ts";
import { TextModel } from "../cli/text_model.ts";
import { readConfig } from "../../peer/model/config.ts";
import { specOf, wholeModel } from "../../peer/model/layout.ts";
import { encodeState } from "../../peer/model/state_file.ts";
import { runOneProcess } from "../../test/support/one_process.ts";

Deno.test("run: Moby Dick in GPT-2's tokens is learned, kept with its tokenizer, and written on", async () => {
  const folder = await Deno.makeTempDir({ prefix: "shoal-gpt2-" });
  try {
    const config = readConfig({
      ...{
        tokenizer: "gpt2",
        vocab_multiple: 64,
        n_layer: 1,
        n_head: 1,
        n_kv_head: 1,
        n_embd: 4,
        n_inner: 8,
      },
      ...{ block_size: 8, batch_size: 2, gradient_accumulation_steps: 1, tie_word_embeddings: true },
      ...{ max_iters: 4, warmup_iters: 0, learning_rate: 0.4 },
    });
    const options = { tokenizer: config.tokenizer, multiple: config.vocab_multiple };
    const corpus = await loadCorpus("moby-dick", undefined, null, options);
    assert.deepEqual([corpus.tokens.length, corpus.vocab.length, corpus.bytesPerToken], [287_236, 50_304, 2]);
    const spec = specOf(config, corpus.vocab.length);
    const { state, losses } = await runOneProcess(config, spec, corpus.tokens);
    assert.ok(Math.abs(losses[0]! - Math.log(50_304)) < 0.5, `begins at ${losses[0]}`);
    assert.ok(losses.at(-1)! < losses[0]! - 0.2, `it learns: ${losses}`);
    const [stage] = [wholeModel(spec)];
    const manifest = {
      ...{ config, spec, vocab: corpus.vocab, stages: [stage], valLoss: null },
      ...{ dataCursor: state.step, seed: config.seed },
    };
    const files = [{ name: stageFileName(0, 1), bytes: encodeState(state) }];
    const content = withTokenizer({ step: state.step, files, manifest }, corpus.tokenizer);
    const weights = await readWeights(await writeCheckpoint(join(folder, "run"), content));
    assert.equal(weights.tokenizer, corpus.tokenizer);
    const request = {
      prompt: "Call me Ishmael",
      count: 5,
      temperature: 0.8,
      topK: 0,
      topP: 1,
      seed: 3,
      stop: [],
    };
    const written = [...new TextModel(weights).write(request)].join("");
    assert.ok(written.length > 0 && written.isWellFormed(), JSON.stringify(written));
    // The checkpoint's tokenizer gives a text the same tokens again.
    const again = await loadCorpus("moby-dick", weights.manifest.vocab, weights.tokenizer);
    assert.equal(again.hash, corpus.hash);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});
