// A new run that begins with another one's weights, trained whole or with adapters on either side: what becomes the base, what the first
// checkpoint holds, and that the other run stays as it was.
import assert from "node:assert/strict";
import { join } from "node:path";
import { initParams } from "../../peer/model/init.ts";
import { baseSpec, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { mergeLora } from "../../peer/model/lora.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder, writeTiny } from "../../test/support/checkpoint.ts";
import { charTokenizerJson, drawLlama, TINY_LLAMA, writeLlama } from "../../test/support/llama.ts";
import { importModel } from "../import/import_model.ts";
import { BASE_NAME, BaseFile, readBase } from "../store/base.ts";
import { SOURCE_NAME } from "../store/base_source.ts";
import { readCheckpoint, readManifest, stageStateOf } from "../store/checkpoints.ts";
import { exists } from "../store/exists.ts";
import { readWeights } from "../store/weights.ts";
import { takeWeights } from "./weights.ts";

const ADAPTERS = { lora_rank: 2, lora_alpha: 3, lora_targets: "q_proj,up_proj" };

/** A run's folder for each name. */
async function folders(root: string, ...names: string[]): Promise<string[]> {
  const paths = names.map((name) => join(root, name));
  for (const path of paths) await Deno.mkdir(path);
  return paths;
}

async function trained(path: string) {
  const checkpoint = await readCheckpoint(path);
  return {
    spec: checkpoint.manifest.spec,
    state: stageStateOf(checkpoint, wholeModel(checkpoint.manifest.spec)),
  };
}

/** A run of adapters on the weights of a whole one, whose adapters have moved since. */
async function adapted(root: string) {
  const [whole, run] = await folders(root, "whole", "run");
  const checkpoint = await writeTiny(whole!);
  const { config } = await readManifest(checkpoint);
  const taken = await takeWeights(checkpoint, run!, { ...config, ...ADAPTERS });
  const moved = await writeTiny(run!, { config: { ...taken.config } });
  return { whole: checkpoint, run: run!, taken, moved };
}

Deno.test("weights: what was imported and not trained since lies elsewhere as it did, also as a base", () =>
  inTempFolder(async (root) => {
    const [model, next, adapters] = await folders(root, "model", "next", "adapters");
    const shape = { ...TINY_LLAMA, vocab_size: 8 };
    const files = { weights: drawLlama(shape, 3), dtype: "BF16", shards: 1 } as const;
    await writeLlama(model!, { shape, ...files, tokenizer: charTokenizerJson([..."\nabcdefg"]) });
    const { path, config } = await importModel({ from: model!, out: join(root, "run"), config: {} });
    const source = await Deno.readTextFile(join(path, SOURCE_NAME));
    const { checkpoint } = await takeWeights(path, next!, { ...config, seed: 9 });
    assert.equal(await Deno.readTextFile(join(checkpoint, SOURCE_NAME)), source);
    const beside = await takeWeights(path, adapters!, { ...config, ...ADAPTERS });
    assert.ok(!await exists(join(beside.checkpoint, SOURCE_NAME)));
    const { spec } = await readManifest(beside.checkpoint);
    const base = (await BaseFile.open(adapters!, spec)).source!,
      { files: names, tensors } = JSON.parse(source);
    assert.deepEqual(base.files, names);
    const byName = (list: { name: string }[]) => list.toSorted((a, b) => a.name < b.name ? -1 : 1);
    assert.deepEqual(byName(base.tensors), byName(tensors));
  }));

Deno.test("weights: with adapters asked for, the other run's weights become the base, unchanged", () =>
  inTempFolder(async (root) => {
    const { whole, run, taken } = await adapted(root);
    const { spec, state } = await trained(taken.checkpoint);
    assert.equal(spec.lora!.base, taken.config.lora_base);
    assert.match(taken.config.lora_base, /^[0-9a-f]{64}$/);
    assert.deepEqual(await readBase(run, spec), (await readWeights(whole)).params);
    assert.equal(state.step, 0);
    assert.deepEqual(state.params, initParams(spec, wholeModel(spec), taken.config.seed));
  }));

Deno.test("weights: adapters go on beside a copy of their base", () =>
  inTempFolder(async (root) => {
    const { run, taken, moved } = await adapted(root);
    const [next] = await folders(root, "next");
    const again = await takeWeights(moved, next!, { ...taken.config, learning_rate: 0.5 });
    assert.deepEqual([again.config.learning_rate, again.config.lora_base], [0.5, taken.config.lora_base]);
    const [before, after] = [await trained(moved), await trained(again.checkpoint)];
    assert.deepEqual(after.state.params, before.state.params);
    assert.equal(after.state.step, 0);
    await Deno.remove(join(run, BASE_NAME));
    assert.equal(
      (await readBase(next!, after.spec)).length,
      stageLayout(baseSpec(after.spec), wholeModel(after.spec)).size,
    );
  }));

Deno.test("weights: other adapters begin beside what the first ones made, and without any it is trained whole", () =>
  inTempFolder(async (root) => {
    const { run, taken, moved } = await adapted(root);
    const { spec, state } = await trained(moved);
    const merged = mergeLora(spec, wholeModel(spec), {
      base: await readBase(run, spec),
      adapters: state.params,
    });
    const [wider, plain] = await folders(root, "wider", "plain");
    const other = await takeWeights(moved, wider!, { ...taken.config, lora_rank: 4 });
    assert.notEqual(other.config.lora_base, taken.config.lora_base);
    const { spec: widened } = await trained(other.checkpoint);
    assert.deepEqual(await readBase(wider!, widened), merged);
    const full = await takeWeights(moved, plain!, { ...taken.config, lora_rank: 0 });
    const result = await trained(full.checkpoint);
    assert.deepEqual([result.spec.lora, full.config.lora_base], [undefined, ""]);
    assert.deepEqual(result.state.params, merged);
    assert.equal(await exists(join(plain!, BASE_NAME)), false);
  }));

Deno.test("weights: a model of another shape is refused, and nothing is left in the new run's folder", () =>
  inTempFolder(async (root) => {
    const [whole, run] = await folders(root, "whole", "run");
    const checkpoint = await writeTiny(whole!);
    const { config } = await readManifest(checkpoint);
    await assert.rejects(
      takeWeights(checkpoint, run!, { ...config, ...ADAPTERS, n_inner: 32 }),
      (error) =>
        error instanceof ShoalError && error.code === "bad-config" && /another shape/.test(error.message),
    );
    assert.deepEqual([...Deno.readDirSync(run!)], []);
  }));
