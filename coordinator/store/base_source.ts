// Where the tensors of an imported model lie in the files that they came from, as a run's folder keeps it: in the header of its base, or
// beside the first checkpoint. Names, ranges and hashes; not the addresses (http/base.ts). Whatever is read of it is checked.
import { readSourceTensors, type SourceTensor } from "../../peer/wire/base.ts";
import { messageOf, refuse, type Result } from "../../peer/wire/errors.ts";

/** File of a checkpoint of step 0 whose weights were imported. */
export const SOURCE_NAME = "source.json";
/** Longest name of an imported file. */
const NAME_CHARS_MAX = 300;

/** Where a tensor's values lie in a file that was imported. */
export type SourcePlace = Omit<SourceTensor, "name" | "sha256">;

export interface BaseSource {
  /** Names, without folders. */
  files: string[];
  tensors: SourceTensor[];
}

/** Refuses with bad-checkpoint. */
export function readSource(text: string): Result<BaseSource> {
  try {
    const { files, tensors } = JSON.parse(text) as Record<string, unknown>;
    const read = readSourceTensors(tensors);
    if (!read.ok) throw new Error(read.reason);
    if (!Array.isArray(files) || !files.every(isName)) throw new Error("files: not a list of names");
    const lost = read.value.find(({ file }) => file >= files.length);
    if (lost !== undefined) throw new Error(`${lost.name} is in none of the files`);
    return { ok: true, value: { files, tensors: read.value } };
  } catch (error) {
    return refuse("bad-checkpoint", `its source cannot be read: ${messageOf(error).slice(0, 200)}`);
  }
}

function isName(name: unknown): name is string {
  return typeof name === "string" && name !== "" && name.length <= NAME_CHARS_MAX && !/[\\/]/.test(name);
}
