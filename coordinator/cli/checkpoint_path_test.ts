// Tests of how a named folder becomes a checkpoint: its own, the newest of a run, or the snapshot saved since.
import assert from "node:assert/strict";
import { join } from "node:path";
import { readConfig } from "../../peer/model/config.ts";
import { specOf, wholeModel } from "../../peer/model/layout.ts";
import { encodeState, initialState } from "../../peer/model/state_file.ts";
import { recoveryDir, stageFileName, writeCheckpoint } from "../store/checkpoints.ts";
import { findCheckpoint, runFolderOf } from "./checkpoint_path.ts";

const config = readConfig({ n_layer: 1, n_head: 1, n_kv_head: 1, n_embd: 4, n_inner: 4, block_size: 4 });
const vocab = ["a", "b", "c"];
const spec = specOf(config, vocab.length);

async function write(folder: string, step: number): Promise<string> {
  const stage = wholeModel(spec);
  const state = initialState(spec, stage, config.seed);
  state.step = step;
  const files = [{ name: stageFileName(0, 1), bytes: encodeState(state) }];
  const manifest = {
    config,
    spec,
    vocab,
    stages: [stage],
    valLoss: null,
    dataCursor: step,
    seed: config.seed,
  };
  return await writeCheckpoint(folder, { step, files, manifest });
}

Deno.test("a run's folder means its newest checkpoint, or a snapshot saved after it", async () => {
  const run = await Deno.makeTempDir();
  try {
    await assert.rejects(findCheckpoint(run), { code: "bad-checkpoint" });
    const first = await write(run, 10);
    assert.equal(await findCheckpoint(run), first);
    const saved = await write(recoveryDir(run), 14);
    assert.equal(await findCheckpoint(run), saved);
    const second = await write(run, 20);
    assert.equal(await findCheckpoint(run), second);
    assert.equal(await findCheckpoint(first), first);
    for (const path of [first, saved, second]) assert.equal(runFolderOf(path), run);
    assert.equal(runFolderOf(join(run, "elsewhere")), run);
  } finally {
    await Deno.remove(run, { recursive: true });
  }
});
