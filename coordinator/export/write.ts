// Writes an export to disk: whole under a temporary name beside its place, then renamed. I/O.
// Nothing half-written is ever seen under the final name, and nothing is overwritten unasked; even when asked, a folder is
// replaced only if all that it holds is an earlier export.
import { statfs } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { type ExportFile, readPieces } from "./pieces.ts";
import type { ExportPlan } from "./plan.ts";

/** Kept free beside the export itself, so that the last bytes of a disk are not ours. */
const SPARE_BYTES = 64 << 20;

/** Names that an export may have written, beside those of the one that replaces it. */
const EXPORTED_NAME =
  /^(README\.md|config\.json|generation_config\.json|tokenizer(_config)?\.json|adapter_config\.json|adapter_model\.safetensors|onnx|model(_fp16)?\.onnx(_data)?|model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json)$/;

export interface WriteOptions {
  /** Replace what an earlier export wrote; default false. */
  force?: boolean;
  /** Called after each piece with the bytes written so far. */
  onProgress?: (bytes: number) => void;
}

/** The name that is written to before it is renamed; permissions must cover both. */
export function temporaryPath(out: string): string {
  const path = resolve(out);
  return join(dirname(path), `.writing-${basename(path)}`);
}

/**
 * Writes the plan to `out`: a file, or a folder with all its files. Returns the absolute path.
 * @throws {ShoalError} usage if something is there already or the parent folder is missing; storage-full.
 */
export async function writeExport(
  plan: ExportPlan,
  out: string,
  options: WriteOptions = {},
): Promise<string> {
  const path = resolve(out), temporary = temporaryPath(out);
  await checkPlace(plan, path, options.force ?? false);
  try {
    await removeIfThere(temporary);
    let written = 0;
    const sink = {
      startIn: async (place: string) => checkSpace(plan, await freeBytes(place), dirname(path)),
      count: (bytes: number) => options.onProgress?.(written += bytes),
    };
    if (plan.kind === "file") await writeFile(temporary, plan.files[0]!, sink);
    else await writeFolder(temporary, plan.files, sink);
    // A rename replaces a file by itself, but no folder that has something in it.
    if (plan.kind === "folder") await removeIfThere(path);
    await Deno.rename(temporary, path);
  } catch (error) {
    // The first error is the one to report; whatever remains is removed before the next attempt.
    await removeIfThere(temporary).catch(() => {});
    throw writeError(error, path);
  }
  return path;
}

interface Sink {
  /** Called with the first thing that was made, before anything is written into it. */
  startIn(place: string): Promise<void>;
  count(bytes: number): void;
}

async function writeFolder(folder: string, files: readonly ExportFile[], sink: Sink): Promise<void> {
  await Deno.mkdir(folder);
  await sink.startIn(folder);
  for (const file of files) {
    const path = join(folder, file.name);
    await Deno.mkdir(dirname(path), { recursive: true });
    await writeFile(path, file, { ...sink, startIn: () => Promise.resolve() });
  }
}

async function writeFile(path: string, { pieces }: ExportFile, sink: Sink): Promise<void> {
  using file = await Deno.open(path, { write: true, createNew: true });
  await sink.startIn(path);
  for await (const bytes of readPieces(pieces)) {
    for (let at = 0; at < bytes.length;) at += await file.write(bytes.subarray(at));
    sink.count(bytes.length);
  }
  await file.sync();
}

async function checkPlace(plan: ExportPlan, path: string, force: boolean): Promise<void> {
  const there = await infoOf(path);
  if (there === null) return;
  if (!force) {
    throw new ShoalError("usage", `${path} exists; choose another --out, or replace it with --force`);
  }
  if (there.isDirectory !== (plan.kind === "folder")) {
    const [is, should] = there.isDirectory ? ["folder", "file"] : ["file", "folder"];
    throw new ShoalError("usage", `${path} is a ${is} and the export a ${should}; choose another --out`);
  }
  if (plan.kind === "folder") await checkFolder(path);
}

async function checkFolder(path: string): Promise<void> {
  for await (const { name } of Deno.readDir(path)) {
    if (EXPORTED_NAME.test(name)) continue;
    throw new ShoalError(
      "usage",
      `${path} holds ${
        JSON.stringify(name)
      }, which no export wrote; --force replaces exports only, choose another --out`,
    );
  }
}

/** Said before the first byte, since finding out at the last one wastes everybody's time. */
function checkSpace(plan: ExportPlan, free: number | null, folder: string): void {
  if (free === null || free >= plan.bytes + SPARE_BYTES) return;
  throw new ShoalError(
    "storage-full",
    `the export needs ${plan.bytes} bytes and ${folder} has ${free} free; free space or choose another --out`,
  );
}

/** On the disk of a file or folder; null where the system does not say. */
async function freeBytes(place: string): Promise<number | null> {
  try {
    const { bavail, bsize } = await statfs(place);
    return bavail * bsize;
  } catch {
    return null;
  }
}

async function infoOf(path: string): Promise<Deno.FileInfo | null> {
  try {
    return await Deno.stat(path);
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return null;
    throw error;
  }
}

async function removeIfThere(path: string): Promise<void> {
  try {
    await Deno.remove(path, { recursive: true });
  } catch (error) {
    if (!(error instanceof Deno.errors.NotFound)) throw error;
  }
}

function writeError(error: unknown, path: string): unknown {
  if (error instanceof Deno.errors.NotFound) {
    const remedy = "create it, or choose another --out";
    return new ShoalError("usage", `the folder ${dirname(path)} does not exist; ${remedy}`, { cause: error });
  }
  const code = (error as { code?: unknown } | null)?.code;
  if (code !== "ENOSPC" && code !== "EDQUOT") return error;
  const message = `no space left for ${path} (${messageOf(error)}); free space or choose another --out`;
  return new ShoalError("storage-full", message, { cause: error });
}
