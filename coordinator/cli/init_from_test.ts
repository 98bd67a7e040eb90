// A run that begins with another one's weights, and one of adapters that goes on elsewhere: what the command line makes of it before
// anything is served.
import assert from "node:assert/strict";
import { join } from "node:path";
import { readBase } from "../store/base.ts";
import { readCheckpoint, readManifest } from "../store/checkpoints.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder, writeTiny } from "../../test/support/checkpoint.ts";
import { newRunOptions, resumedRunOptions } from "./coordinate.ts";
import { parseVerb, verbNamed } from "./options.ts";

function start(...args: string[]) {
  return newRunOptions(parseVerb(verbNamed("coordinator"), args));
}

function resume(...args: string[]) {
  return resumedRunOptions(parseVerb(verbNamed("resume"), args));
}

function isUsage(wanted: RegExp) {
  return (error: unknown) =>
    error instanceof ShoalError && error.code === "usage" && wanted.test(error.message);
}

Deno.test("init_from: a run's newest weights under its own configuration, overlaid by the flags", () =>
  inTempFolder(async (folder) => {
    const [old, next] = [join(folder, "old"), join(folder, "new")];
    await writeTiny(old, { step: 4, config: { learning_rate: 0.5, max_iters: 40 } });
    const run = await start(`--init_from=${old}`, `--out_dir=${next}`, "--max_iters=9", "--lora_rank=2");
    assert.deepEqual([run.config.learning_rate, run.config.max_iters, run.config.n_embd], [0.5, 9, 16]);
    assert.equal(run.outDir, next);
    const { manifest } = await readCheckpoint(run.resumeFrom!);
    assert.deepEqual([manifest.step, manifest.config.max_iters], [0, 9]);
    assert.deepEqual([manifest.spec.lora!.rank, manifest.spec.lora!.base], [2, run.config.lora_base]);
    assert.ok((await readBase(next, manifest.spec)).length > 0);
    assert.match(run.note!, /beginning with the weights of .*step-000000004/);
  }));

Deno.test("init_from: a folder that holds a run is refused, and so is a model of another shape", () =>
  inTempFolder(async (folder) => {
    await writeTiny(folder);
    await assert.rejects(start(`--init_from=${folder}`, `--out_dir=${folder}`), isUsage(/name a new folder/));
    await assert.rejects(
      start(`--init_from=${folder}`, `--out_dir=${join(folder, "new")}`, "--n_embd=32"),
      /another shape/,
    );
  }));

Deno.test("resume: adapters that go on elsewhere, or from a copy, bring their base along", () =>
  inTempFolder(async (folder) => {
    const [old, run, far] = [join(folder, "old"), join(folder, "run"), join(folder, "far")];
    await writeTiny(old);
    const begun = await start(`--init_from=${old}`, `--out_dir=${run}`, "--lora_rank=2");
    const { spec } = await readManifest(begun.resumeFrom!);
    const again = await resume(run, `--out_dir=${far}`, "--warmup_iters=3");
    assert.deepEqual([again.outDir, again.resumeFrom], [far, begun.resumeFrom]);
    assert.deepEqual(await readBase(far, spec), await readBase(run, spec));
    const same = await resume(run, "--warmup_iters=3");
    assert.equal(same.outDir, run);
  }));
