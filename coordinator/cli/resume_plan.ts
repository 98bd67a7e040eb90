// What `shoal resume` goes on from: the run's log while its peers may still be waiting, else the newest checkpoint, else the
// seed. Reads files and changes none. What must stay true: going on from the log never changes the configuration, because the
// peers that come back hold the old one.
import type { RunConfig } from "../../peer/wire/run.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { RunRecord } from "../core/run_record.ts";
import { readCheckpoint } from "../store/checkpoints.ts";
import { type LogLook, lookAtRunLog } from "../store/run_log.ts";
import { findCheckpoint, isCheckpoint, newestOf, runFolderOf } from "./checkpoint_path.ts";

/** Peers wait 60 s for their coordinator, and its mark of life may be 10 s old; the rest is for a slow start. */
export const PEERS_WAIT_MS = 120_000;

export interface ResumePlan {
  folder: string;
  config: RunConfig;
  /** Go on from the log, with the peers that come back. */
  restore: boolean;
  /** Checkpoint to start from, or to fall back to; null: the run has none yet. */
  resumeFrom: string | null;
  note: string;
}

/**
 * @param path a run's folder, or a checkpoint's, which is a deliberate step back
 * @param how.changed configuration flags were given
 * @throws {ShoalError} bad-log for a damaged log, bad-checkpoint if there is nothing to go on from.
 */
export async function planResume(
  path: string,
  how: { changed: boolean; nowMs: number },
): Promise<ResumePlan> {
  const look = await isCheckpoint(path) ? null : lookAtRunLog(path);
  if (look !== null && !how.changed && mayReturn(look, how.nowMs)) return await fromLog(path, look.run);
  const unfinished = look === null || look.run.ended !== null ? null : look.run;
  if (unfinished !== null && await newestOf(path) === null) return fromSeed(path, unfinished);
  const checkpoint = await findCheckpoint(path);
  const { manifest } = await readCheckpoint(checkpoint);
  const note = `going on from the checkpoint of step ${manifest.step}`;
  const folder = runFolderOf(checkpoint);
  return { folder, config: manifest.config, restore: false, resumeFrom: checkpoint, note };
}

/** A new run in the folder of an unfinished one would bury it. @throws {ShoalError} usage with the command to go on */
export function refuseUnfinished(folder: string): void {
  const run = lookAtRunLog(folder)?.run;
  if (run === undefined || run.ended !== null || (run.view === null && run.committed === 0)) return;
  throw new ShoalError(
    "usage",
    `"${folder}" holds an unfinished run at step ${run.committed}; "shoal resume ${folder}" goes on with it, another ` +
      "--out_dir starts a new one",
  );
}

function mayReturn({ run, aliveMs }: LogLook, nowMs: number): boolean {
  return run.ended === null && run.view !== null && nowMs - aliveMs < PEERS_WAIT_MS;
}

async function fromLog(folder: string, run: RunRecord): Promise<ResumePlan> {
  const note = `going on at step ${run.committed} from the run's log; its peers have a minute to come back`;
  let resumeFrom: string | null = null;
  try {
    resumeFrom = await newestOf(folder);
  } catch (error) {
    // Checkpoints that do not verify are no reason to send the peers away, who hold the newest state.
    if (!(error instanceof ShoalError)) throw error;
  }
  return { folder, config: run.config, restore: true, resumeFrom, note };
}

function fromSeed(folder: string, run: RunRecord): ResumePlan {
  const lost = run.committed === 0 ? "" : `; ${run.committed} steps are done again`;
  const note = `the run has no checkpoint yet and its peers are gone: it starts again from its seed${lost}`;
  return { folder, config: run.config, restore: false, resumeFrom: null, note };
}
