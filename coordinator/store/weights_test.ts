// Weights alone are the weights of the whole state, in any cut; what is altered, cut short or impossible is refused by name
// before memory is taken for it.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { stageFileName } from "./checkpoints.ts";
import { readCheckpoint, stageStateOf } from "./checkpoints.ts";
import { readWeights } from "./weights.ts";
import { wholeModel } from "../../peer/model/layout.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder, writeTiny } from "../../test/support/checkpoint.ts";

for (const tie_word_embeddings of [false, true]) {
  Deno.test(`weights: equal those of the state, tied = ${tie_word_embeddings}`, () =>
    inTempFolder(async (folder) => {
      const path = await writeTiny(folder, { config: { tie_word_embeddings, n_layer: 3 } });
      const checkpoint = await readCheckpoint(path);
      const { params } = stageStateOf(checkpoint, wholeModel(checkpoint.manifest.spec));
      const weights = await readWeights(path);
      assert.deepEqual(weights.params, params);
      assert.deepEqual(weights.manifest, checkpoint.manifest);
    }));
}

Deno.test("weights: tensors longer than a piece of the file are put together", () =>
  inTempFolder(async (folder) => {
    // 264 x 1000 floats: the embedding alone crosses a piece of 1 MiB.
    const vocab = Array.from({ length: 1000 }, (_, i) => String.fromCodePoint(0x4e00 + i));
    const shape = { n_layer: 1, n_embd: 264, n_head: 4, n_inner: 8 };
    const path = await writeTiny(folder, { vocab, config: shape });
    const checkpoint = await readCheckpoint(path);
    const state = stageStateOf(checkpoint, wholeModel(checkpoint.manifest.spec));
    assert.deepEqual((await readWeights(path)).params, state.params);
  }));

async function refused(path: string, pattern: RegExp): Promise<void> {
  await assert.rejects(
    readWeights(path),
    (error) => error instanceof ShoalError && error.code === "bad-checkpoint" && pattern.test(error.message),
  );
}

Deno.test("weights: damage is named", () =>
  inTempFolder(async (folder) => {
    const path = await writeTiny(folder);
    const shard = join(path, stageFileName(1, 2));
    const good = await Deno.readFile(shard);
    const flipped = good.slice();
    flipped[flipped.length - 1]! ^= 1;
    await Deno.writeFile(shard, flipped);
    await refused(path, /model-00002-of-00002.safetensors: it differs from its SHA-256/);
    await Deno.writeFile(shard, good.subarray(0, good.length - 3));
    await refused(path, /model-00002-of-00002.safetensors: it has \d+ bytes instead of \d+/);
    await Deno.remove(shard);
    await refused(path, /model-00002-of-00002.safetensors is missing/);
  }));

Deno.test("weights: values that no training gives are refused although their file is as it was written", () =>
  inTempFolder(async (folder) => {
    const path = await writeTiny(folder);
    const name = stageFileName(1, 2), shard = await Deno.readFile(join(path, name));
    const header = JSON.parse(new TextDecoder().decode(shard.subarray(8, 8 + shard[0]! + 256 * shard[1]!)));
    const at = 8 + shard[0]! + 256 * shard[1]! + header["model.norm.weight"].data_offsets[0];
    new DataView(shard.buffer).setFloat32(at, NaN, true);
    await Deno.writeFile(join(path, name), shard);
    const manifest = JSON.parse(await Deno.readTextFile(join(path, "manifest.json")));
    const file = manifest.files.find((it: { name: string }) => it.name === name);
    file.sha256 = createHash("sha256").update(shard).digest("hex");
    await Deno.writeTextFile(join(path, "manifest.json"), JSON.stringify(manifest));
    await refused(path, /its weights contain NaN/);
  }));

Deno.test("weights: a manifest that promises more than the files hold takes no memory", () =>
  inTempFolder(async (folder) => {
    const path = await writeTiny(folder);
    const name = join(path, "manifest.json");
    const manifest = JSON.parse(await Deno.readTextFile(name));
    // Three thousand million parameters in a file of some kilobytes.
    for (const part of [manifest.config, manifest.spec]) {
      Object.assign(part, { n_embd: 16_384, n_inner: 65_536 });
    }
    Object.assign(manifest.config, { n_head: 256, n_kv_head: 256 });
    Object.assign(manifest.spec, { n_head: 256, n_kv_head: 256 });
    await Deno.writeTextFile(name, JSON.stringify(manifest));
    await refused(path, /its files have \d+ bytes, the weights alone need \d{11}/);
  }));
