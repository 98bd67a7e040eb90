// Which checkpoints a run's folder holds, and a checkpoint's states as a run goes on from them. Reads only; checkpoints.ts
// writes, verifies and prunes.
import { basename, join } from "node:path";
import { decodeState, stateHash } from "../../peer/model/state_file.ts";
import type { StateFile } from "../../peer/wire/control.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { CheckpointInfo } from "../../peer/wire/status.ts";
import { type Checkpoint, checkpointsDir, MANIFEST_NAME, readManifest } from "./checkpoints.ts";

/** Those whose manifest can be read, oldest first; their content is not verified. */
export async function listCheckpoints(runDir: string): Promise<CheckpointInfo[]> {
  const found: CheckpointInfo[] = [];
  for (const name of await names(checkpointsDir(runDir))) {
    try {
      const { step, valLoss, files } = await readManifest(join(checkpointsDir(runDir), name));
      const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
      const all = [...files.map((file) => file.name), MANIFEST_NAME].sort();
      found.push({ ...{ step, name, bytes, valLoss }, files: all });
    } catch (error) {
      // Half of one, or not ours: nothing to offer.
      if (!(error instanceof ShoalError)) throw error;
    }
  }
  return found;
}

async function names(dir: string): Promise<string[]> {
  const found: string[] = [];
  try {
    for await (const entry of Deno.readDir(dir)) {
      if (entry.isDirectory && /^step-\d{9}$/.test(entry.name)) found.push(entry.name);
    }
  } catch (error) {
    if (!(error instanceof Deno.errors.NotFound)) throw error;
  }
  return found.sort();
}

/**
 * The state of each stage of a verified checkpoint, in the cut it was written with.
 * @throws {ShoalError} bad-checkpoint
 */
export function checkpointStates({ path, manifest, files }: Checkpoint): {
  info: StateFile;
  bytes: Uint8Array;
}[] {
  const shards = files.filter((file) => file.name.endsWith(".safetensors"));
  return manifest.stages.map((stage, i) => {
    const bytes = shards[i]?.bytes;
    const decoded = bytes && decodeState(manifest.spec, stage, bytes);
    if (!decoded?.ok) {
      const reason = decoded?.reason ?? "no file";
      throw new ShoalError("bad-checkpoint", `${basename(path)}: stage ${i} cannot be read: ${reason}`);
    }
    const { index, ...range } = stage;
    const hash = stateHash(decoded.value);
    return { info: { stage: index, ...range, bytes: bytes!.length, hash }, bytes: bytes! };
  });
}
