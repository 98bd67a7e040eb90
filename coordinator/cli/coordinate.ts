// `shoal coordinator` and `shoal resume`: one run, served until it is done or interrupted.
// Reads flags and files, starts the coordinator, prints its events; the run itself lives in coordinator/main.ts.
import { dirname, join, resolve } from "node:path";
import { readConfig } from "../../peer/model/config.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { type Coordinator, type CoordinatorOptions, startCoordinator } from "../main.ts";
import { processCorpusProgress } from "./corpus_progress.ts";
import { planResume, refuseUnfinished } from "./resume_plan.ts";
import { aborted, listenForInterrupts } from "./interrupts.ts";
import { folderName, integerFlag, positional, type VerbOptions } from "./options.ts";
import { processReporter, type Reporter } from "./report.ts";
import { repositoryRoot } from "./root.ts";
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
  const config = readConfig({ ...await fileConfig(options.flags.config), ...options.config });
  const run = runOptions(options, config);
  refuseUnfinished(run.outDir);
  return run;
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
  const changed = elsewhere || Object.keys(options.config).length > 0;
  const plan = await planResume(resolve(named), { changed, nowMs: Date.now() });
  const config = readConfig({ ...plan.config, ...options.config });
  const { folder, restore, resumeFrom, note } = plan;
  const from = resumeFrom === null ? {} : { resumeFrom };
  return { ...runOptions(options, config, folder), ...from, restore, note };
}

function runOptions({ flags, ...rest }: VerbOptions, config: RunConfig, folder?: string): RunOptions {
  const runName = flags.name ?? config.dataset;
  const outDir = resolve(
    flags.out_dir ?? folder ?? join("runs", `${folderName(runName)}-${timestamp(new Date())}`),
  );
  // Runs that lie side by side share their prepared texts; one that lies elsewhere may write nowhere else.
  const shared = dirname(outDir) === resolve("runs") ? { corporaDir: resolve("runs", "corpora") } : {};
  return {
    ...{ config, outDir, ...shared },
    host: flags.host ?? "127.0.0.1",
    port: integerFlag({ flags, ...rest }, "port", { absent: 0, min: 0, max: 65_535 }),
    operator: flags.operator ?? "someone who gave no name",
    runName,
    webRoot: join(repositoryRoot, "web", "dist"),
    ...(flags.public_url === undefined ? {} : { publicUrl: flags.public_url }),
    ...(flags.public_text === undefined ? {} : { publicText: true }),
  };
}

/** 20260130-0912: sorts by time and is a valid folder name everywhere. */
export function timestamp(date: Date): string {
  const digits = date.toISOString().replace(/[-:]/g, "");
  return `${digits.slice(0, 8)}-${digits.slice(9, 15)}`;
}

async function fileConfig(path: string | undefined): Promise<Record<string, unknown>> {
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
