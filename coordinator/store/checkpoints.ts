// Checkpoints on disk: one folder per step with safetensors shards and a manifest, <runDir>/checkpoints/step-000000100.
// Not when to write one (the coordinator's core decides). A folder with its final name is complete and durable:
// everything is written and synced under a temporary name first, so a crash or a full disk leaves the previous one.
import { createHash } from "node:crypto";
import { basename, dirname, join } from "node:path";
import { isGpt2, paramCount, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { decodeSafetensors, type TensorMap } from "../../peer/model/safetensors.ts";
import { encodeWeights, llamaConfig, mergeStates, type StageState } from "../../peer/model/state_file.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec, StageSpec } from "../../peer/wire/run.ts";
import {
  CHECKPOINT_FORMAT,
  type CheckpointFile,
  type CheckpointManifest,
  isFileName,
  type ManifestInput,
  parseManifest,
} from "./checkpoint_manifest.ts";
import { exists } from "./exists.ts";

export type { CheckpointManifest, ManifestInput } from "./checkpoint_manifest.ts";

export const MANIFEST_NAME = "manifest.json";
/** Checkpoints kept by default; without a limit a long run fills the disk. */
const KEEP_DEFAULT = 3;
/** A longer manifest is not ours; the names of the largest vocabularies need about 5 MiB. */
const MANIFEST_BYTES_MAX = 16 << 20;
/** Names that Hugging Face's tools look for; the shards themselves are named by stageFileName. */
const LLAMA_CONFIG_NAME = "config.json";
const TOKENIZER_NAME = "tokenizer.json";
const SHARD_INDEX_NAME = "model.safetensors.index.json";

export interface NamedBytes {
  name: string;
  bytes: Uint8Array;
}

export interface CheckpointContent {
  step: number;
  /** One file of encodeState per stage, named by stageFileName. */
  files: NamedBytes[];
  manifest: ManifestInput;
}

export interface Checkpoint {
  path: string;
  manifest: CheckpointManifest;
  files: NamedBytes[];
}

export interface WriteOptions {
  /** Complete checkpoints that remain, the new one included; default 3. */
  keep?: number;
  /** Writes a file durably; tests inject a full disk. Default: write and sync. */
  writeFile?: (path: string, bytes: Uint8Array) => Promise<void>;
}

/** Folder of a run's checkpoints. */
export function checkpointsDir(runDir: string): string {
  return join(runDir, "checkpoints");
}

/** Where a run keeps its newest snapshot, in a checkpoint's form, for the case that the coordinator dies. */
export function recoveryDir(runDir: string): string {
  return join(runDir, "recovery");
}

/** Hugging Face's shard name, such as model-00001-of-00003.safetensors for index 0 of 3. */
export function stageFileName(index: number, count: number): string {
  const digits = (n: number) => String(n).padStart(5, "0");
  return `model-${digits(index + 1)}-of-${digits(count)}.safetensors`;
}

/**
 * Writes a checkpoint and removes the oldest beyond `keep`. To a Llama's it adds config.json and a shard index, with which
 * transformers' LlamaForCausalLM loads the folder. Returns the folder's path.
 * @throws {ShoalError} storage-full if the disk is full (earlier checkpoints stay); bad-checkpoint for unusable content.
 */
export async function writeCheckpoint(
  runDir: string,
  content: CheckpointContent,
  options: WriteOptions = {},
): Promise<string> {
  const parent = checkpointsDir(runDir);
  const path = join(parent, folderName(content.step));
  const files = [...content.files, ...describe(content, path)];
  const manifest = manifestOf(content, files.map(infoOf));
  await place(path, async (temporary) => {
    await writeAll(temporary, [...files, manifest], options.writeFile ?? writeDurably);
  });
  await removeOldest(parent, folderName(content.step), options.keep ?? KEEP_DEFAULT);
  return path;
}

/**
 * Writes a checkpoint whose files are made one after the other, so that no two of them are in memory at once. Other checkpoints of
 * the run stay. An error of `files` leaves nothing behind.
 * @throws {ShoalError} storage-full, bad-checkpoint, or what `files` throws.
 */
export async function writeCheckpointStream(
  runDir: string,
  content: Omit<CheckpointContent, "files"> & { files: AsyncIterable<NamedBytes> },
): Promise<string> {
  const path = join(checkpointsDir(runDir), folderName(content.step));
  const { spec } = content.manifest;
  await place(path, async (temporary) => {
    const infos: CheckpointFile[] = [];
    const places = new Map<string, string>();
    const write = async (file: NamedBytes) => {
      infos.push(infoOf(file));
      await writeDurably(join(temporary, file.name), file.bytes);
    };
    for await (const file of content.files) {
      for (const { tensors } of shardsOf([file], path)) {
        for (const name of tensors.tensors.keys()) if (!places.has(name)) places.set(name, file.name);
      }
      await write(file);
    }
    for (const file of descriptions(spec, (name) => places.get(name), path)) await write(file);
    await writeAll(temporary, [manifestOf(content, infos)], writeDurably);
  });
  return path;
}

/** Fills a folder under a temporary name and puts it in place once it is complete. */
async function place(path: string, fill: (temporary: string) => Promise<void>): Promise<void> {
  const temporary = join(dirname(path), `.writing-${basename(path)}`);
  try {
    await removeIfThere(temporary);
    await Deno.mkdir(temporary, { recursive: true });
    await fill(temporary);
    await replace(temporary, path);
  } catch (error) {
    // The first error is the one to report; whatever remains is removed before the next attempt.
    await removeIfThere(temporary).catch(() => {});
    throw storageError(error, path);
  }
}

/**
 * Reads a checkpoint's folder and verifies manifest, sizes and hashes.
 * @throws {ShoalError} bad-checkpoint naming what is wrong.
 */
export async function readCheckpoint(path: string): Promise<Checkpoint> {
  const manifest = await readManifest(path);
  const files: NamedBytes[] = [];
  for (const { name, bytes, sha256 } of manifest.files) {
    const content = await readBounded(path, name, bytes);
    if (content.length !== bytes) throw bad(path, `${name} has ${content.length} bytes instead of ${bytes}`);
    if (hashOf(content) !== sha256) throw bad(path, `${name} differs from its SHA-256`);
    files.push({ name, bytes: content });
  }
  return { path, manifest, files };
}

/** The manifest alone; what it says of the files is not verified. @throws {ShoalError} bad-checkpoint */
export async function readManifest(path: string): Promise<CheckpointManifest> {
  const text = await readBounded(path, MANIFEST_NAME, MANIFEST_BYTES_MAX);
  const manifest = parseManifest(new TextDecoder().decode(text));
  if (!manifest.ok) throw bad(path, manifest.reason);
  return manifest.value;
}

/** Adds the text of a tokenizer.json to what a checkpoint holds; without one it is a model of characters. */
export function withTokenizer(content: CheckpointContent, json: string | undefined): CheckpointContent {
  if (json === undefined) return content;
  const file = { name: TOKENIZER_NAME, bytes: new TextEncoder().encode(json) };
  const manifest = { ...content.manifest, tokenizer: file.name };
  return { ...content, files: [...content.files, file], manifest };
}

/** Text of the checkpoint's tokenizer file, verified; null for a model of characters. @throws {ShoalError} bad-checkpoint */
export async function readTokenizer(
  path: string,
  { tokenizer, files }: CheckpointManifest,
): Promise<string | null> {
  const file = files.find(({ name }) => name === tokenizer);
  if (file === undefined) return null;
  const content = await readBounded(path, file.name, file.bytes);
  if (hashOf(content) !== file.sha256) throw bad(path, `${file.name} differs from its SHA-256`);
  return new TextDecoder().decode(content);
}

/**
 * Path of the newest checkpoint that verifies, or null if the run has none. A damaged one is passed over.
 * @throws {ShoalError} bad-checkpoint if there are some but none verifies: starting afresh would lose the run silently.
 */
export async function newestCheckpoint(runDir: string): Promise<string | null> {
  const parent = checkpointsDir(runDir);
  let firstError: unknown = null;
  for (const name of (await folderNames(parent, /^(\.old-)?step-\d{9}$/)).reverse()) {
    try {
      return (await readCheckpoint(join(parent, name))).path;
    } catch (error) {
      if (!(error instanceof ShoalError)) throw error;
      firstError ??= error;
    }
  }
  if (firstError !== null) throw firstError;
  return null;
}

/** State of any stage, in whatever cut, out of a checkpoint; wholeModel(spec) gives all of it. */
export function stageStateOf(checkpoint: Checkpoint, stage: StageSpec): StageState {
  const { manifest: { spec }, path, files } = checkpoint;
  const state = mergeStates(
    spec,
    shardsOf(files, path).map(({ tensors }) => tensors),
    stage,
    "bad-checkpoint",
  );
  if (!state.ok) throw bad(checkpoint.path, state.reason);
  if (state.value.step !== checkpoint.manifest.step) {
    throw bad(
      checkpoint.path,
      `its files are of step ${state.value.step}, the manifest of ${checkpoint.manifest.step}`,
    );
  }
  return state.value;
}

/** model.safetensors: the weights alone in one file. */
export function weightsOf(checkpoint: Checkpoint): Uint8Array<ArrayBuffer> {
  const shards = shardsOf(checkpoint.files, checkpoint.path).map(({ tensors }) => tensors);
  const weights = encodeWeights(checkpoint.manifest.spec, shards);
  if (!weights.ok) throw bad(checkpoint.path, weights.reason);
  return weights.value;
}

interface Shard {
  name: string;
  tensors: TensorMap;
}

function shardsOf(files: readonly NamedBytes[], path: string): Shard[] {
  return files.filter(({ name }) => name.endsWith(".safetensors")).map(({ name, bytes }) => {
    const shard = decodeSafetensors(bytes, "bad-checkpoint");
    if (!shard.ok) throw bad(path, `${name}: ${shard.reason}`);
    return { name, tensors: shard.value };
  });
}

/** The two descriptions by which Hugging Face's tools find the weights in the shards. */
function describe(content: CheckpointContent, path: string): NamedBytes[] {
  const shards = shardsOf(content.files, path);
  const shardOf = (name: string) => shards.find((shard) => shard.tensors.tensors.has(name))?.name;
  return descriptions(content.manifest.spec, shardOf, path);
}

function descriptions(
  spec: ModelSpec,
  shardOf: (name: string) => string | undefined,
  path: string,
): NamedBytes[] {
  const weightMap = stageLayout(spec, wholeModel(spec)).tensors.map(({ name }) => {
    const shard = shardOf(name);
    if (shard === undefined) throw bad(path, `no file contains tensor ${name}`);
    return [name, shard];
  });
  // A GPT-2's shards have names and shapes of ours, which no other tool reads, and adapters are no model: both are exported
  // for them (docs/export.md).
  if (isGpt2(spec) || spec.lora !== undefined) return [];
  const index = {
    metadata: { total_size: 4 * paramCount(spec) },
    weight_map: Object.fromEntries(weightMap),
  };
  return [
    { name: LLAMA_CONFIG_NAME, bytes: jsonBytes(llamaConfig(spec)) },
    { name: SHARD_INDEX_NAME, bytes: jsonBytes(index) },
  ];
}

function infoOf({ name, bytes }: NamedBytes): CheckpointFile {
  return { name, bytes: bytes.length, sha256: hashOf(bytes) };
}

function manifestOf(
  content: Pick<CheckpointContent, "step" | "manifest">,
  files: readonly CheckpointFile[],
): NamedBytes {
  const wrong = files.find(({ name }) => !isFileName(name) || name === MANIFEST_NAME);
  if (wrong) {
    throw bad("the checkpoint to be written", `${JSON.stringify(wrong.name)} cannot be a file's name`);
  }
  const manifest: CheckpointManifest = {
    format: CHECKPOINT_FORMAT,
    step: content.step,
    ...content.manifest,
    files: [...files],
  };
  const bytes = jsonBytes(manifest);
  // What would not be accepted at resume must fail now, while the state still exists.
  const parsed = parseManifest(new TextDecoder().decode(bytes));
  if (!parsed.ok) throw bad("the checkpoint to be written", parsed.reason);
  return { name: MANIFEST_NAME, bytes };
}

function jsonBytes(value: unknown): Uint8Array {
  return new TextEncoder().encode(JSON.stringify(value, null, 1) + "\n");
}

function hashOf(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

type WriteFile = NonNullable<WriteOptions["writeFile"]>;

async function writeAll(dir: string, files: readonly NamedBytes[], writeFile: WriteFile): Promise<void> {
  for (const { name, bytes } of files) await writeFile(join(dir, name), bytes);
  await syncFolder(dir);
}

async function writeDurably(path: string, bytes: Uint8Array): Promise<void> {
  using file = await Deno.open(path, { write: true, createNew: true });
  let at = 0;
  while (at < bytes.length) at += await file.write(bytes.subarray(at));
  await file.sync();
}

/** Makes renames and new names durable; Windows cannot open folders and does without. */
async function syncFolder(path: string): Promise<void> {
  if (Deno.build.os === "windows") return;
  using folder = await Deno.open(path, { read: true });
  await folder.sync();
}

/** Puts the finished folder in place; a checkpoint of the same step (written before a resume) makes room first. */
async function replace(temporary: string, path: string): Promise<void> {
  const old = join(dirname(path), `.old-${basename(path)}`);
  await removeIfThere(old);
  if (await exists(path)) await Deno.rename(path, old);
  await Deno.rename(temporary, path);
  await syncFolder(dirname(path));
  await removeIfThere(old);
}

/** The one just written stays whatever its step: after a resume from an earlier step it is not the highest. */
async function removeOldest(parent: string, written: string, keep: number): Promise<void> {
  const others = (await folderNames(parent)).filter((name) => name !== written);
  const surplus = Math.max(0, others.length - Math.max(0, keep - 1));
  for (const name of others.slice(0, surplus)) await removeIfThere(join(parent, name));
}

/** Nine digits keep the names in the order of steps. */
function folderName(step: number): string {
  return `step-${String(step).padStart(9, "0")}`;
}

/** Folders of complete checkpoints, oldest first; of one step, the one being replaced comes before its successor. */
async function folderNames(parent: string, pattern = /^step-\d{9}$/): Promise<string[]> {
  if (!await exists(parent)) return [];
  const names: string[] = [];
  for await (const entry of Deno.readDir(parent)) {
    if (entry.isDirectory && pattern.test(entry.name)) names.push(entry.name);
  }
  const order = (name: string) => name.replace(/^(\.old-)?(.*)$/, (_, old, step) => step + (old ? "a" : "b"));
  return names.sort((a, b) => order(a) < order(b) ? -1 : 1);
}

async function readBounded(path: string, name: string, bytesMax: number): Promise<Uint8Array> {
  try {
    const file = join(path, name);
    const { size, isFile } = await Deno.stat(file);
    if (!isFile || size > bytesMax) {
      throw bad(path, `${name} has ${size} bytes, at most ${bytesMax} expected`);
    }
    return await Deno.readFile(file);
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) throw bad(path, `${name} is missing`, error);
    throw error;
  }
}

async function removeIfThere(path: string): Promise<void> {
  if (await exists(path)) await Deno.remove(path, { recursive: true });
}

function storageError(error: unknown, path: string): unknown {
  const code = (error as { code?: unknown } | null)?.code;
  if (code !== "ENOSPC" && code !== "EDQUOT") return error;
  return new ShoalError(
    "storage-full",
    `no space left for checkpoint ${path} (${messageOf(error)}); free space or lower the number of kept ` +
      "checkpoints; the previous checkpoint is intact",
    { cause: error },
  );
}

function bad(path: string, reason: string, cause?: unknown): ShoalError {
  const message = `checkpoint ${path}: ${reason}; use another checkpoint`;
  return new ShoalError("bad-checkpoint", message, cause === undefined ? {} : { cause });
}
