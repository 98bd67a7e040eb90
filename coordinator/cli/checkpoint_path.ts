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
  if (await exists(join(path, MANIFEST_NAME))) return path;
  const found = [await newestCheckpoint(path), await newestCheckpoint(recoveryDir(path))];
  // Folder names sort by step; of two at the same step the checkpoint proper comes first.
  const newest =
    found.filter((it) => it !== null).toSorted((a, b) => basename(b).localeCompare(basename(a)))[0];
  if (newest !== undefined) return newest;
  throw new ShoalError(
    "bad-checkpoint",
    `"${path}" holds no checkpoint; name a run's folder (such as runs/<name>) or a folder with ${MANIFEST_NAME}`,
  );
}

/** The run's folder that a checkpoint's folder lies in, so that a resumed run goes on beside it. */
export function runFolderOf(checkpoint: string): string {
  const parent = dirname(checkpoint);
  const run = basename(parent) === basename(checkpointsDir(".")) ? dirname(parent) : parent;
  return basename(run) === basename(recoveryDir(".")) ? dirname(run) : run;
}

async function exists(path: string): Promise<boolean> {
  try {
    await Deno.stat(path);
    return true;
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return false;
    throw error;
  }
}
