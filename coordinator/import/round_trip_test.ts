// Out and in again: what the export writes is imported to the same weights and the same tokens, for characters and for a tokenizer that
// a model brought with it.
import assert from "node:assert/strict";
import { factsOf } from "../export/facts.ts";
import { planExport } from "../export/plan.ts";
import { openCheckpoint } from "../export/source.ts";
import { writeExport } from "../export/write.ts";
import { readTokenizer } from "../store/checkpoints.ts";
import { readWeights } from "../store/weights.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder, writeTiny } from "../../test/support/checkpoint.ts";
import { byteLevelTokenizerJson, drawLlama, writeLlama } from "../../test/support/llama.ts";
import { importModel } from "./import_model.ts";

async function exported(path: string, out: string): Promise<void> {
  using source = await openCheckpoint(path);
  const { manifest } = source;
  const tokenizer = await readTokenizer(path, manifest);
  const about = { name: "m", facts: factsOf(manifest, null), vocab: manifest.vocab, tokenizer };
  await writeExport(planExport(source, { format: "hf", dtype: "f32", shardBytes: 4000, ...about }), out, {
    force: false,
  });
}

const ARCHITECTURES = [{ tie_word_embeddings: true }, { architecture: "gpt2" as const, n_kv_head: 2 }];

for (const config of ARCHITECTURES) {
  Deno.test(`round trip: a model of characters comes back as it was, ${JSON.stringify(config)}`, () =>
    inTempFolder(async (folder) => {
      const path = await writeTiny(`${folder}/run`, { config });
      await exported(path, `${folder}/hf`);
      const again = await importModel({ from: `${folder}/hf`, out: `${folder}/again`, config: {} });
      const [before, after] = [await readWeights(path), await readWeights(again.path)];
      assert.deepEqual(after.params, before.params);
      assert.deepEqual(after.manifest.spec, before.manifest.spec);
      assert.deepEqual([after.manifest.vocab, after.tokenizer], [before.manifest.vocab, null]);
    }));
}

const SHAPE = {
  ...{ vocab_size: 260, hidden_size: 8, intermediate_size: 12, num_hidden_layers: 2, num_attention_heads: 2 },
  ...{ num_key_value_heads: 2, max_position_embeddings: 8, rms_norm_eps: 1e-6, rope_theta: 1e4 },
  tie_word_embeddings: false,
};
const TOKENIZER = byteLevelTokenizerJson(["t h", "th e"]);

async function imported(folder: string) {
  const weights = drawLlama(SHAPE, 1);
  await writeLlama(`${folder}/model`, {
    shape: SHAPE,
    weights,
    dtype: "F16",
    shards: 1,
    tokenizer: TOKENIZER,
  });
  return await importModel({ from: `${folder}/model`, out: `${folder}/run`, config: {} });
}

Deno.test("a checkpoint's tokenizer that was altered, or is not there, is refused by name", () =>
  inTempFolder(async (folder) => {
    const { path } = await imported(folder);
    const refused = (pattern: RegExp) =>
      assert.rejects(
        readWeights(path),
        (error) =>
          error instanceof ShoalError && error.code === "bad-checkpoint" && pattern.test(error.message),
      );
    const name = `${path}/tokenizer.json`, text = await Deno.readTextFile(name);
    await Deno.writeTextFile(name, text.replace("the", "teh"));
    await refused(/tokenizer.json differs from its SHA-256/);
    await Deno.remove(name);
    await refused(/tokenizer.json is missing/);
    const manifest = JSON.parse(await Deno.readTextFile(`${path}/manifest.json`));
    for (
      const [change, pattern] of [
        [{ tokenizer: "other.json" }, /tokenizer other.json is not among the files/],
        [{ tokenizer: "../tokenizer.json" }, /not a plain file name/],
        [{ vocab: ["a", "a"] }, /two alike/],
      ] as const
    ) {
      await Deno.writeTextFile(`${path}/manifest.json`, JSON.stringify({ ...manifest, ...change }));
      await refused(pattern);
    }
  }));

Deno.test("round trip: a tokenizer of the model's own is handed on, byte for byte", () =>
  inTempFolder(async (folder) => {
    const first = await imported(folder);
    assert.equal(first.tokenizer, "tokenizer.json");
    await exported(first.path, `${folder}/hf`);
    assert.equal(await Deno.readTextFile(`${folder}/hf/tokenizer.json`), JSON.stringify(TOKENIZER));
    const card = await Deno.readTextFile(`${folder}/hf/README.md`);
    assert.doesNotMatch(card, /character/);
    const again = await importModel({ from: `${folder}/hf`, out: `${folder}/again`, config: {} });
    const [before, after] = [await readWeights(first.path), await readWeights(again.path)];
    assert.deepEqual([after.params, after.tokenizer], [before.params, before.tokenizer]);
    assert.deepEqual(after.manifest.vocab.slice(-3), ["the", "<|endoftext|>", "<unused 259>"]);
  }));
