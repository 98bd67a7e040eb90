// What a resume goes on from, over real folders: logs written by the run's log, checkpoints written by the store.
import assert from "node:assert/strict";
import { join } from "node:path";
import { readConfig } from "../../peer/model/config.ts";
import { specOf, wholeModel } from "../../peer/model/layout.ts";
import { encodeState, initialState } from "../../peer/model/state_file.ts";
import type { ShoalError } from "../../peer/wire/errors.ts";
import type { View } from "../../peer/wire/run.ts";
import { checkpointsDir, recoveryDir, stageFileName, writeCheckpoint } from "../store/checkpoints.ts";
import { RUN_LOG_NAME, RunLog } from "../store/run_log.ts";
import { newRunOptions, resumedRunOptions } from "./coordinate.ts";
import { parseVerb, verbNamed } from "./options.ts";
import { PEERS_WAIT_MS, planResume, refuseUnfinished } from "./resume_plan.ts";

const SHAPE = { n_layer: 1, n_head: 1, n_kv_head: 1, n_embd: 4, n_inner: 4, block_size: 4 };
/** The checkpoint's and the log's configurations differ, so that a test sees which one was taken. */
const CONFIG = readConfig({ ...SHAPE, max_iters: 50 });
const LOGGED = readConfig({ ...SHAPE, max_iters: 60 });
const VOCAB = ["a", "b", "c"];
const SPEC = specOf(CONFIG, VOCAB.length);
const DIED = new Date(1_700_000_000_000);
const VIEW: View = {
  ...{
    gen: 1,
    cut: 1,
    baseStep: 0,
    stages: [],
    schedule: "dynamic",
    codecForward: "raw32",
    codecBackward: "raw32",
  },
};

async function inFolder(body: (folder: string) => void | Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir({ prefix: "shoal-plan-" });
  try {
    await body(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

function writeLog(folder: string, how: { view?: boolean; commits?: number; ended?: boolean }): void {
  const log = RunLog.create(folder, { config: LOGGED, spec: SPEC, corpusHash: "ab", committed: 0 });
  if (how.view ?? true) log.appendView(VIEW, []);
  for (let step = 0; step < (how.commits ?? 7); step++) {
    log.appendCommit({ step, gen: 1, cut: 1, hashes: [], gradNormSq: 1 });
  }
  if (how.ended) log.appendEnd({ step: 7, checkpoint: "c" });
  log.markAlive(DIED);
  log.close();
}

async function writeState(folder: string, step: number): Promise<string> {
  const stage = wholeModel(SPEC);
  const bytes = encodeState({ ...initialState(SPEC, stage, CONFIG.seed), step });
  const about = {
    config: CONFIG,
    spec: SPEC,
    vocab: VOCAB,
    valLoss: null,
    dataCursor: step,
    seed: CONFIG.seed,
  };
  const files = [{ name: stageFileName(0, 1), bytes }];
  return await writeCheckpoint(folder, { step, files, manifest: { ...about, stages: [stage] } });
}

const SOON = { changed: false, nowMs: DIED.getTime() + PEERS_WAIT_MS - 1 };
const LATE = { changed: false, nowMs: DIED.getTime() + PEERS_WAIT_MS };

Deno.test("resume: while its peers may be waiting a run goes on from its log, with a checkpoint to fall back to", () =>
  inFolder(async (folder) => {
    writeLog(folder, {});
    const bare = await planResume(folder, SOON);
    assert.deepEqual([bare.restore, bare.resumeFrom, bare.config, bare.folder], [true, null, LOGGED, folder]);
    assert.match(bare.note, /at step 7 from the run's log/);
    const saved = await writeState(recoveryDir(folder), 4);
    assert.deepEqual(await planResume(folder, SOON), { ...bare, resumeFrom: saved });
  }));

Deno.test("resume: too late, with other flags, or by a checkpoint's name it starts from a checkpoint", () =>
  inFolder(async (folder) => {
    writeLog(folder, {});
    const first = await writeState(folder, 3);
    const newest = await writeState(folder, 5);
    for (const how of [LATE, { ...SOON, changed: true }]) {
      const plan = await planResume(folder, how);
      assert.deepEqual([plan.restore, plan.resumeFrom, plan.config, plan.folder], [
        false,
        newest,
        CONFIG,
        folder,
      ]);
      assert.match(plan.note, /checkpoint of step 5/);
    }
    const named = await planResume(first, SOON);
    assert.deepEqual([named.restore, named.resumeFrom, named.folder], [false, first, folder]);
  }));

Deno.test("resume: a run that had no view yet, or that is finished, has no peers to wait for", () =>
  inFolder(async (folder) => {
    const checkpoint = await writeState(folder, 5);
    for (const how of [{ view: false }, { ended: true }]) {
      writeLog(folder, how);
      const plan = await planResume(folder, SOON);
      assert.deepEqual([plan.restore, plan.resumeFrom], [false, checkpoint]);
    }
  }));

Deno.test("resume: killed before its first checkpoint and too late for its peers, it starts again and says so", () =>
  inFolder(async (folder) => {
    writeLog(folder, {});
    const plan = await planResume(folder, LATE);
    assert.deepEqual([plan.restore, plan.resumeFrom, plan.config], [false, null, LOGGED]);
    assert.match(plan.note, /from its seed; 7 steps are done again/);
    writeLog(folder, { ended: true });
    await assert.rejects(planResume(folder, LATE), { code: "bad-checkpoint" });
    await assert.rejects(planResume(join(folder, "nowhere"), LATE), { code: "bad-checkpoint" });
  }));

Deno.test("resume: damaged checkpoints do not send waiting peers away, and are never passed over in silence", () =>
  inFolder(async (folder) => {
    writeLog(folder, {});
    await writeState(folder, 5);
    await Deno.writeTextFile(join(checkpointsDir(folder), "step-000000005", "manifest.json"), "{");
    const plan = await planResume(folder, SOON);
    assert.deepEqual([plan.restore, plan.resumeFrom], [true, null]);
    await assert.rejects(planResume(folder, LATE), { code: "bad-checkpoint" });
  }));

Deno.test("resume: a damaged log is named with its remedy, and the remedy works", () =>
  inFolder(async (folder) => {
    writeLog(folder, {});
    const checkpoint = await writeState(folder, 5);
    const path = join(folder, RUN_LOG_NAME);
    const bytes = await Deno.readFile(path);
    bytes[100]! ^= 1;
    await Deno.writeFile(path, bytes);
    await assert.rejects(planResume(folder, SOON), { code: "bad-log", message: /folder of a checkpoint/ });
    assert.equal((await planResume(checkpoint, SOON)).resumeFrom, checkpoint);
  }));

Deno.test("coordinator: a new run in the folder of an unfinished one is refused with the command that goes on", () =>
  inFolder((folder) => {
    refuseUnfinished(folder);
    for (const how of [{ commits: 0, view: false }, { ended: true }]) {
      writeLog(folder, how);
      refuseUnfinished(folder);
    }
    for (const how of [{}, { commits: 0 }, { view: false }]) {
      writeLog(folder, how);
      assert.throws(() => refuseUnfinished(folder), (error: ShoalError) => {
        assert.equal(error.code, "usage");
        assert.ok(error.message.includes(`"shoal resume ${folder}"`));
        return true;
      });
    }
  }));

Deno.test("resume: a service that starts again goes on with its folder's run, and begins one where there is none", async () => {
  await inFolder(async (folder) => {
    const verb = verbNamed("coordinator");
    const start = (...args: string[]) => newRunOptions(parseVerb(verb, [...args, `--out_dir=${folder}`]));
    const fresh = await start("--or_resume", "--max_iters=9");
    assert.deepEqual([fresh.config.max_iters, fresh.restore], [9, undefined]);
    writeLog(folder, {});
    await assert.rejects(() => start("--max_iters=9"), /holds an unfinished run at step 7/);
    const again = await start("--or_resume", "--max_iters=9");
    assert.equal(again.config.max_iters, LOGGED.max_iters, "what began the run is in its log");
    assert.equal(again.outDir, folder);
    assert.match(again.note ?? "", /starts again from its seed; 7 steps are done again/);
    await writeState(folder, 5);
    const later = await start("--or_resume");
    assert.match(later.note ?? "", /going on from the checkpoint of step 5/);
  });
});

Deno.test("resume: a key that says again what the run's log says changes nothing, another value does", () =>
  inFolder(async (folder) => {
    writeLog(folder, {});
    const now = new Date();
    Deno.utimeSync(join(folder, RUN_LOG_NAME), now, now);
    const resumed = (...args: string[]) =>
      resumedRunOptions(parseVerb(verbNamed("resume"), [folder, ...args]));
    assert.equal((await resumed(`--dataset=${LOGGED.dataset}`, "max_iters=60")).restore, true);
    await writeState(folder, 4);
    assert.equal((await resumed("max_iters=61")).restore, false);
  }));
