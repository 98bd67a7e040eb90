// `shoal coordinator` and `shoal resume`: one run, served until it is done or interrupted.
// Reads flags and files, starts the coordinator, prints its events; the run itself lives in coordinator/main.ts.
import { dirname, join, resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { readConfig } from "../../peer/model/config.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { type Coordinator, type CoordinatorOptions, startCoordinator } from "../main.ts";
import { corpusIdOf } from "../corpora/types.ts";
import { processCorpusProgress } from "./corpus_progress.ts";
import { findCheckpoint, newestOf } from "./checkpoint_path.ts";
import { planResume, refuseUnfinished } from "./resume_plan.ts";
import { aborted, listenForInterrupts } from "./interrupts.ts";
import { folderName, integerFlag, positional, type VerbOptions } from "./options.ts";
import { processReporter, type Reporter } from "./report.ts";
import { repositoryRoot } from "./root.ts";
import { isLora } from "../../peer/wire/view.ts";
import { takeWeights } from "../hub/weights.ts";
import { copyBase } from "../store/base.ts";
import { baseFolderOf } from "../store/base_place.ts";
import { readCheckpoint } from "../store/checkpoints.ts";
import { lookAtRunLog } from "../store/run_log.ts";

export interface RunOptions extends Omit<CoordinatorOptions, "onEvent"> {
  /** One line for the operator before the run begins. */
  note?: string;
}

/** Options of a new run out of flags, the configuration file and the configuration flags (which win). */
export async function newRunOptions(options: VerbOptions): Promise<RunOptions> {
  positional(options, 0);
  const { or_resume, out_dir } = options.flags;
  if (or_resume !== undefined && out_dir !== undefined && lookAtRunLog(resolve(out_dir)) !== null) {
    // What began the run is in its log; configuration flags are for the first start.
    return await resumedRunOptions({ ...options, config: {}, positionals: [out_dir] });
  }
  const given = { ...await fileConfig(options.flags.config), ...options.config };
  const { init_from } = options.flags;
  if (init_from !== undefined) {
    if (/^https?:/i.test(init_from)) {
      throw new ShoalError(
        "usage",
        `--init_from takes a run of this computer; bring the model in with "shoal import ${init_from} --out DIR"`,
      );
    }
    return await runFromWeights(options, await findCheckpoint(resolve(init_from)), given);
  }
  const run = runOptions(options, readConfig(given));
  refuseUnfinished(run.outDir);
  return run;
}

/** A new run that begins with the weights of another one, under that one's configuration overlaid by what is given. */
async function runFromWeights(
  options: VerbOptions,
  checkpoint: string,
  given: Readonly<Record<string, unknown>>,
): Promise<RunOptions> {
  const { manifest } = await readCheckpoint(checkpoint);
  const { warmup_iters, lr_decay_iters, min_lr, ...rest } = manifest.config;
  // Another length or rate brings its own course of rates, as in a run that is begun with nothing.
  const course = "max_iters" in given || "learning_rate" in given
    ? {}
    : { warmup_iters, lr_decay_iters, min_lr };
  const asked = readConfig({ ...rest, ...course, ...given });
  const run = runOptions(options, asked);
  refuseUnfinished(run.outDir);
  if (await newestOf(run.outDir) !== null) {
    throw new ShoalError(
      "usage",
      `"${run.outDir}" holds a run's checkpoints already; name a new folder with --out_dir`,
    );
  }
  await Deno.mkdir(run.outDir, { recursive: true });
  const { checkpoint: resumeFrom, config } = await takeWeights(checkpoint, run.outDir, asked);
  return { ...run, config, resumeFrom, note: `beginning with the weights of ${checkpoint}` };
}

/** Options of a run that goes on: from its log, or from a checkpoint with its configuration, overlaid by the flags. */
export async function resumedRunOptions(options: VerbOptions): Promise<RunOptions> {
  const named = positional(options, 1);
  if (named === undefined) {
    throw new ShoalError(
      "usage",
      "the folder to resume from is missing; give a run's folder or a checkpoint's",
    );
  }
  const { out_dir } = options.flags;
  const elsewhere = out_dir !== undefined && resolve(out_dir) !== resolve(named);
  const kept: Record<string, unknown> = { ...lookAtRunLog(resolve(named))?.run.config };
  // A key that only says again what is so changes nothing: a text outside the run's folder is named to be readable.
  const changed = elsewhere ||
    Object.entries(options.config).some(([key, value]) => !isDeepStrictEqual(value, kept[key]));
  const plan = await planResume(resolve(named), { changed, nowMs: Date.now() });
  const config = readConfig({ ...plan.config, ...options.config });
  const { folder, restore, resumeFrom, note } = plan;
  const run = { ...runOptions(options, config, folder), restore, note };
  if (resumeFrom === null) return run;
  if (isLora(config)) await bringBase(resumeFrom, run.outDir);
  return { ...run, resumeFrom };
}

/** Adapters that go on elsewhere take what they belong to with them. */
async function bringBase(checkpoint: string, outDir: string): Promise<void> {
  const folder = await baseFolderOf(checkpoint);
  if (folder !== outDir) await copyBase(folder, outDir);
}

function runOptions({ flags, ...rest }: VerbOptions, config: RunConfig, folder?: string): RunOptions {
  const runName = flags.name ?? config.dataset;
  const outDir = resolve(
    flags.out_dir ?? folder ?? join("runs", `${folderName(runName)}-${timestamp(new Date())}`),
  );
  const texts = textsFor(outDir, config.dataset);
  const shared = texts === null ? {} : { corporaDir: texts };
  return {
    ...{ config, outDir, ...shared },
    host: flags.host ?? "127.0.0.1",
    port: integerFlag({ flags, ...rest }, "port", { absent: 0, min: 0, max: 65_535 }),
    operator: flags.operator ?? "someone who gave no name",
    runName,
    webRoot: join(repositoryRoot, "web", "dist"),
    ...(flags.public_url === undefined ? {} : { publicUrl: flags.public_url }),
    ...(flags.base_url === undefined ? {} : { baseUrl: flags.base_url }),
    ...(flags.public_text === undefined ? {} : { publicText: true }),
  };
}

/**
 * Where prepared texts are: runs that lie side by side in runs/ share them; one that lies elsewhere may write nowhere else, but reads what
 * was prepared there, or beside it. Null: in its own folder.
 */
function textsFor(outDir: string, dataset: string): string | null {
  const shared = resolve("runs", "corpora");
  if (dirname(outDir) === resolve("runs")) return shared;
  const id = corpusIdOf(dataset);
  const places = [join(outDir, "corpora"), join(dirname(outDir), "corpora"), shared];
  return id === null ? null : places.find((place) => isThere(join(place, id))) ?? null;
}

function isThere(path: string): boolean {
  try {
    return Deno.statSync(path).isDirectory;
  } catch {
    // Not there, or not to be read, which is the same here.
    return false;
  }
}

/** 20260130-0912: sorts by time and is a valid folder name everywhere. */
export function timestamp(date: Date): string {
  const digits = date.toISOString().replace(/[-:]/g, "");
  return `${digits.slice(0, 8)}-${digits.slice(9, 15)}`;
}

/** Keys out of the file of `--config`; none without one. @throws {ShoalError} bad-config */
export async function fileConfig(path: string | undefined): Promise<Record<string, unknown>> {
  if (path === undefined) return {};
  try {
    const value: unknown = JSON.parse(await Deno.readTextFile(path));
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return { ...value };
    throw new Error("it is not an object of configuration keys");
  } catch (error) {
    throw new ShoalError("bad-config", `the file "${path}" cannot be used: ${messageOf(error)}`, {
      cause: error,
    });
  }
}

/** After an interrupt: one step, one evaluation and one checkpoint; peers that hang must not hold the end up for ever. */
const LAST_CHECKPOINT_MS = 60_000;

/** Ends a run whose operator wants to go, or says how it goes on if the checkpoint does not come. */
export async function endWithCheckpoint(coordinator: Coordinator, reporter: Reporter): Promise<void> {
  reporter.note("finishing the step and writing a checkpoint; press Ctrl-C again to end at once");
  coordinator.shell.feed({ type: "admin", action: "stop" });
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise((resolve) => timer = setTimeout(resolve, LAST_CHECKPOINT_MS));
  await Promise.race([coordinator.done, late]);
  clearTimeout(timer);
  const { status } = coordinator.shell.core.state;
  // Whoever relies on the exit code must be able to rely on the checkpoint.
  if (status === "finished" || status === "failed") return;
  const waited = `${LAST_CHECKPOINT_MS / 1000} s`;
  reporter.note(`the last checkpoint was not complete after ${waited}; "shoal resume" goes on from the log`);
}

/** Serves the run; resolves to the exit code: 1 if it failed, or was interrupted and could not write its last checkpoint. */
export async function coordinate(run: RunOptions, flags: VerbOptions["flags"]): Promise<number> {
  const reporter = processReporter({ json: flags.json !== undefined, maxIters: run.config.max_iters });
  const interrupts = listenForInterrupts();
  try {
    const { note, ...options } = run;
    if (note !== undefined) reporter.note(note);
    const progress = processCorpusProgress(flags.json !== undefined);
    const onCorpus = progress.show;
    const coordinator = await startCoordinator({
      ...options,
      onCorpus,
      onEvent: (line) => reporter.event(line),
    })
      .finally(progress.end);
    await Promise.race([coordinator.done, aborted(interrupts.signal)]);
    if (interrupts.signal.aborted) await endWithCheckpoint(coordinator, reporter);
    const { status } = coordinator.shell.core.state;
    await coordinator.stop(interrupts.signal.aborted ? "stopped by its operator" : "the run is finished");
    return status === "finished" ? 0 : 1;
  } finally {
    interrupts.close();
  }
}
