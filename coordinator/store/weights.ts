// The weights of a checkpoint, without the optimizer's moments: what generating and evaluating need. Files are streamed once,
// through their hash, so memory is the weights and one piece of a file. Not the whole state (checkpoints.ts). Adapters are added to
// the base that they belong to, so that whoever computes with a model need not know of them.
import { createHash } from "node:crypto";
import { join } from "node:path";
import { baseSpec, paramCount, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { mergeLora } from "../../peer/model/lora.ts";
import { decodeHeader, headerLength, type SafetensorsHeader } from "../../peer/model/safetensors.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { readBase } from "./base.ts";
import { baseFolderOf } from "./base_place.ts";
import { type CheckpointFile, type CheckpointManifest } from "./checkpoint_manifest.ts";
import { checkpointsDir, readManifest, readTokenizer } from "./checkpoints.ts";

/** Read at once; larger ones save no time. */
const PIECE_BYTES = 1 << 20;
const LENGTH_BYTES = 8;

export interface Weights {
  manifest: CheckpointManifest;
  /** What is computed with: the manifest's model, without adapters. */
  spec: ModelSpec;
  /** Flat f32, layout of `wholeModel(spec)`. */
  params: Float32Array;
  /** Text of the manifest's tokenizer file; null for a model of characters. */
  tokenizer: string | null;
}

/**
 * Weights of the checkpoint in folder `path`, whatever cut its files were written with.
 * @throws {ShoalError} bad-checkpoint naming the file that is missing, altered or incomplete, or that adapters have no base.
 */
export async function readWeights(path: string): Promise<Weights> {
  const manifest = await readManifest(path);
  const tokenizer = await readTokenizer(path, manifest), { spec } = manifest;
  const trained = await readTrained(path, manifest);
  if (spec.lora === undefined) return { manifest, spec, params: trained, tokenizer };
  const base = await readBase(await baseFolderOf(path), spec);
  const params = mergeLora(spec, wholeModel(spec), { base, adapters: trained, out: base });
  return { manifest, spec: baseSpec(spec), params, tokenizer };
}

/** What was trained: the weights, or the adapters in their place; flat f32 in the layout of `wholeModel(manifest.spec)`. */
async function readTrained(path: string, manifest: CheckpointManifest): Promise<Float32Array> {
  const layout = stageLayout(manifest.spec, wholeModel(manifest.spec));
  const files = manifest.files.filter(({ name }) => name.endsWith(".safetensors"));
  await checkRoom(path, files, 4 * paramCount(manifest.spec));
  const params = new Float32Array(layout.size);
  const wanted = new Map(layout.tensors.map((tensor) => [tensor.name, tensor]));
  const found = new Set<string>();
  for (const file of files) {
    try {
      for (const name of await readFile(join(path, file.name), file, { wanted, params })) found.add(name);
    } catch (error) {
      throw named(path, file.name, error);
    }
  }
  const missing = layout.tensors.find(({ name }) => !found.has(name));
  if (missing) throw bad(`checkpoint ${path}: tensor ${missing.name} is missing`);
  const wrong = params.findIndex((value) => !Number.isFinite(value));
  if (wrong >= 0) throw bad(`checkpoint ${path}: its weights contain ${params[wrong]}`);
  return params;
}

/** A manifest may promise any shape: memory is taken only for weights that the files are long enough to hold. */
async function checkRoom(path: string, files: readonly CheckpointFile[], needed: number): Promise<void> {
  let there = 0;
  for (const { name } of files) {
    try {
      there += (await Deno.stat(join(path, name))).size;
    } catch (error) {
      throw named(path, name, error);
    }
  }
  if (there < needed) {
    throw bad(`checkpoint ${path}: its files have ${there} bytes, the weights alone need ${needed}`);
  }
}

/**
 * Folder of the checkpoint with the highest step, unread: whoever reads it verifies it. null if the run has none.
 */
export async function latestCheckpoint(runDir: string): Promise<string | null> {
  const parent = checkpointsDir(runDir);
  let latest = "";
  try {
    for await (const { name, isDirectory } of Deno.readDir(parent)) {
      if (isDirectory && /^step-\d{9}$/.test(name) && name > latest) latest = name;
    }
  } catch (error) {
    if (!(error instanceof Deno.errors.NotFound)) throw error;
  }
  return latest === "" ? null : join(parent, latest);
}

interface Target {
  wanted: ReadonlyMap<string, { shape: number[]; offset: number }>;
  params: Float32Array;
}

/** Copies the wanted tensors of one file into place; returns their names. */
async function readFile(path: string, { bytes, sha256 }: CheckpointFile, target: Target): Promise<string[]> {
  using file = await Deno.open(path);
  const { size } = await file.stat();
  if (size !== bytes) throw bad(`it has ${size} bytes instead of ${bytes}`);
  const hash = createHash("sha256");
  const take = async (length: number) => {
    const piece = await readExactly(file, length);
    hash.update(piece);
    return piece;
  };
  const length = headerLength(await take(Math.min(LENGTH_BYTES, size)), size, "bad-checkpoint");
  if (!length.ok) throw bad(length.reason);
  const dataBytes = size - LENGTH_BYTES - length.value;
  const header = decodeHeader(await take(length.value), dataBytes, "bad-checkpoint");
  if (!header.ok) throw bad(header.reason);
  const parts = partsOf(header.value, target);
  const flat = new Uint8Array(target.params.buffer, target.params.byteOffset, target.params.byteLength);
  for (let at = 0; at < dataBytes; at += PIECE_BYTES) {
    const piece = await take(Math.min(PIECE_BYTES, dataBytes - at));
    for (const part of parts) copyOverlap(piece, at, { ...part, flat });
  }
  if (hash.digest("hex") !== sha256) throw bad("it differs from its SHA-256");
  return parts.map((part) => part.name);
}

interface Part {
  name: string;
  /** In bytes of the file's data. */
  begin: number;
  end: number;
  /** First byte among the parameters. */
  to: number;
}

function partsOf({ tensors }: SafetensorsHeader, { wanted }: Target): Part[] {
  const parts: Part[] = [];
  for (const [name, { dtype, shape, begin, end }] of tensors) {
    const tensor = wanted.get(name);
    if (tensor === undefined) continue;
    if (dtype !== "F32" || String(shape) !== String(tensor.shape)) {
      throw bad(`tensor ${name} is ${dtype} [${shape}], expected F32 [${tensor.shape}]`);
    }
    parts.push({ name, begin, end, to: tensor.offset * 4 });
  }
  return parts;
}

function copyOverlap(piece: Uint8Array, at: number, part: Part & { flat: Uint8Array }): void {
  const from = Math.max(at, part.begin), end = Math.min(at + piece.length, part.end);
  if (from < end) part.flat.set(piece.subarray(from - at, end - at), part.to + from - part.begin);
}

/** The next `length` bytes of a file. @throws {ShoalError} bad-checkpoint if it ends before. */
async function readExactly(file: Deno.FsFile, length: number): Promise<Uint8Array> {
  const out = new Uint8Array(length);
  let at = 0;
  while (at < length) {
    const read = await file.read(out.subarray(at));
    if (read === null) throw bad(`it ends ${length - at} bytes too early`);
    at += read;
  }
  return out;
}

function named(path: string, name: string, error: unknown): unknown {
  if (error instanceof Deno.errors.NotFound) return bad(`checkpoint ${path}: ${name} is missing`, error);
  if (!(error instanceof ShoalError)) return error;
  return bad(`checkpoint ${path}: ${name}: ${error.message}`, error);
}

function bad(reason: string, cause?: unknown): ShoalError {
  return new ShoalError("bad-checkpoint", reason, cause === undefined ? {} : { cause });
}
