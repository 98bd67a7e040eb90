// Finds the checkpoint that a person names: its own folder, or a run's folder, whose newest checkpoint
// or saved snapshot is meant.
// Does not judge the contents beyond what newestCheckpoint verifies; readCheckpoint does.
import { basename, dirname, join } from "node:path";
import { ShoalError } from "../../peer/wire/errors.ts";
import { checkpointsDir, MANIFEST_NAME, newestCheckpoint, recoveryDir } from "../store/checkpoints.ts";

/**
 * @returns the checkpoint's folder
 * @throws {ShoalError} bad-checkpoint if there is none, or none that verifies.
 */
export async function findCheckpoint(path: string): Promise<string> {
  if (await isCheckpoint(path)) return path;
  const newest = await newestOf(path);
  if (newest !== null) return newest;
  throw new ShoalError(
    "bad-checkpoint",
    `"${path}" holds no checkpoint; name a run's folder (such as runs/<name>) or a folder with ${MANIFEST_NAME}`,
  );
}

/**
 * The newest checkpoint or saved snapshot of a run's folder; null if it has none.
 * @throws {ShoalError} bad-checkpoint if there are some but none verifies.
 */
export async function newestOf(runDir: string): Promise<string | null> {
  const found = [await newestCheckpoint(runDir), await newestCheckpoint(recoveryDir(runDir))];
  // Folder names sort by step; of two at the same step the checkpoint proper comes first.
  return found.filter((it) => it !== null).toSorted((a, b) => basename(b).localeCompare(basename(a)))[0] ??
    null;
}

/** The run's folder that a checkpoint's folder lies in, so that a resumed run goes on beside it. */
export function runFolderOf(checkpoint: string): string {
  const parent = dirname(checkpoint);
  const run = basename(parent) === basename(checkpointsDir(".")) ? dirname(parent) : parent;
  return basename(run) === basename(recoveryDir(".")) ? dirname(run) : run;
}

/** Whether a folder is a checkpoint itself rather than a run's. */
export async function isCheckpoint(path: string): Promise<boolean> {
  try {
    await Deno.stat(join(path, MANIFEST_NAME));
    return true;
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return false;
    throw error;
  }
}
