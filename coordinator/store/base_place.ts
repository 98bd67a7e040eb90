// Where the base of a checkpoint's adapters lies: in its run's folder, or with it where somebody copied both. Only looks for the file;
// whoever opens it checks that it is the one (base.ts).
import { basename, dirname, join, resolve } from "node:path";
import { BASE_NAME } from "../../peer/model/lora_base.ts";
import { checkpointsDir } from "./checkpoints.ts";

/** <run>/recovery/checkpoints/<step> is the deepest place of a checkpoint in its run. */
const FOLDERS_MAX = 4;

/** The folder with the base of this checkpoint; the one where it belongs if there is none. @param checkpoint Its folder. */
export async function baseFolderOf(checkpoint: string): Promise<string> {
  let folder = resolve(checkpoint);
  for (let i = 0; i < FOLDERS_MAX; i++, folder = dirname(folder)) {
    if (await isThere(join(folder, BASE_NAME))) return folder;
  }
  const parent = dirname(resolve(checkpoint));
  return basename(parent) === basename(checkpointsDir(".")) ? dirname(parent) : resolve(checkpoint);
}

/** What this program may not look at is as good as not there. */
async function isThere(path: string): Promise<boolean> {
  try {
    return (await Deno.stat(path)).isFile;
  } catch (error) {
    const absent = error instanceof Deno.errors.NotFound || error instanceof Deno.errors.NotCapable;
    if (absent || error instanceof Deno.errors.PermissionDenied) return false;
    throw error;
  }
}
