// The frozen model that a run's adapters belong to: one safetensors file in the run's folder, f32, by our names, with the hash of each
// tensor in its header. Written once, then only read. Not what peers fetch of it (http/base.ts). What must stay true: a file with its
// final name is complete, and its header's hashes make the hash that the run's model names.
import { createHash } from "node:crypto";
import { join } from "node:path";
import { baseSpec, stageLayout, type TensorLayout, wholeModel } from "../../peer/model/layout.ts";
import { BASE_NAME, baseTensors, baseText, checkBase } from "../../peer/model/lora_base.ts";
import { decodeHeader, headerLength } from "../../peer/model/safetensors.ts";
import { type BaseList, readBaseList, type SourceTensor } from "../../peer/wire/base.ts";
import { assert, messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { type BaseSource, readSource, type SourcePlace } from "./base_source.ts";

export { BASE_NAME } from "../../peer/model/lora_base.ts";

const LENGTH_BYTES = 8;
/** Stands for a hash until the tensor is written. */
const NO_HASH = "0".repeat(64);
/** The data begins at a multiple of this, as the reference writer pads. */
const ALIGNMENT = 8;
/** Read at once. */
const PIECE_BYTES = 4 << 20;

export interface BaseInput {
  spec: ModelSpec;
  /** Fills in one tensor; gives the SHA-256 of the bytes at its place, if it has one. */
  read(tensor: TensorLayout, into: Float32Array): Promise<string | null>;
  /** Names of the imported files, and where in them a tensor lies. */
  source?: { files: string[]; place(tensor: TensorLayout): SourcePlace | null };
  onProgress?(done: number, of: number): void;
}

interface Written {
  hashes: string[];
  source: BaseSource | null;
}

/**
 * Writes `base.safetensors` into a run's folder, which must be there. One tensor is in memory at a time.
 * @returns the base's hash
 * @throws {ShoalError} storage-full, or what `read` throws; then there is no file
 */
export async function writeBase(runDir: string, input: BaseInput): Promise<string> {
  const path = join(runDir, BASE_NAME), temporary = join(runDir, `.writing-${BASE_NAME}`);
  try {
    const hash = await fill(temporary, input);
    await Deno.rename(temporary, path);
    return hash;
  } catch (error) {
    await Deno.remove(temporary).catch(() => {});
    throw storageError(error, path);
  }
}

async function fill(path: string, input: BaseInput): Promise<string> {
  const tensors = baseTensors(input.spec);
  const written = emptyWritten(tensors, input.source);
  const room = headerOf(tensors, written);
  using file = await Deno.open(path, { write: true, create: true, truncate: true });
  await writeAll(file, new Uint8Array(room.length));
  for (const [i, tensor] of tensors.entries()) {
    const values = new Float32Array(tensor.size);
    const original = await input.read(tensor, values);
    const bytes = new Uint8Array(values.buffer);
    written.hashes[i] = createHash("sha256").update(bytes).digest("hex");
    const place = written.source?.tensors.find(({ name }) => name === tensor.name);
    if (place !== undefined && original !== null) place.sha256 = original;
    await writeAll(file, bytes);
    input.onProgress?.(i + 1, tensors.length);
  }
  const header = headerOf(tensors, written);
  assert(header.length === room.length, "a header whose hashes changed its length");
  await file.seek(0, Deno.SeekMode.Start);
  await writeAll(file, header);
  await file.sync();
  return hashOf(tensors, written.hashes);
}

function emptyWritten(tensors: readonly TensorLayout[], source: BaseInput["source"]): Written {
  const hashes = tensors.map(() => NO_HASH);
  if (source === undefined) return { hashes, source: null };
  const placed = tensors.flatMap((tensor): SourceTensor[] => {
    const place = source.place(tensor);
    return place === null ? [] : [{ name: tensor.name, ...place, sha256: NO_HASH }];
  });
  return { hashes, source: { files: source.files, tensors: placed } };
}

function hashOf(tensors: readonly TensorLayout[], hashes: readonly string[]): string {
  const named = tensors.map(({ name, shape }, i) => ({ name, shape, sha256: hashes[i]! }));
  return createHash("sha256").update(baseText(named)).digest("hex");
}

/** Length field and JSON of the file's header. */
function headerOf(tensors: readonly TensorLayout[], { hashes, source }: Written): Uint8Array<ArrayBuffer> {
  const metadata = {
    ...{ format: "pt", sha256: hashes.join(" ") },
    ...(source === null ? {} : { source: JSON.stringify(source) }),
  };
  const header: Record<string, unknown> = { __metadata__: metadata };
  let at = 0;
  for (const { name, shape, size } of tensors) {
    header[name] = { dtype: "F32", shape, data_offsets: [at, at + 4 * size] };
    at += 4 * size;
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil(text.length / ALIGNMENT) * ALIGNMENT;
  const out = new Uint8Array(LENGTH_BYTES + length).fill(0x20);
  new DataView(out.buffer).setBigUint64(0, BigInt(length), true);
  out.set(text, LENGTH_BYTES);
  return out;
}

/** An open base. What its header says is checked against the model; values are checked by whoever reads them. */
export class BaseFile {
  /** Without a `source`, which begins with an address. */
  readonly list: BaseList;
  /** Where the imported files have the same values; null if it was not written from files. */
  readonly source: BaseSource | null;
  readonly #path: string;

  private constructor(path: string, list: BaseList, source: BaseFile["source"]) {
    [this.#path, this.list, this.source] = [path, list, source];
  }

  /** @throws {ShoalError} bad-checkpoint if there is none, or it is another model's */
  static async open(runDir: string, spec: ModelSpec): Promise<BaseFile> {
    const path = join(runDir, BASE_NAME);
    using file = await openFile(path);
    const { size } = await file.stat();
    const length = headerLength(await readExactly(file, Math.min(LENGTH_BYTES, size)), size);
    if (!length.ok) throw bad(path, length.reason);
    const dataAt = LENGTH_BYTES + length.value;
    const header = decodeHeader(await readExactly(file, length.value), size - dataAt);
    if (!header.ok) throw bad(path, header.reason);
    const { tensors: entries, metadata } = header.value;
    const hashes = (metadata.sha256 ?? "").split(" ");
    const tensors = [...entries].map(([name, { shape, begin, end }], i) => (
      { name, shape, begin: dataAt + begin, end: dataAt + end, sha256: hashes[i] ?? "" }
    ));
    const hash = createHash("sha256").update(baseText(tensors)).digest("hex");
    const list = readBaseList({ hash, bytes: size, tensors });
    if (!list.ok) throw bad(path, list.reason);
    const checked = checkBase(spec, list.value);
    if (!checked.ok) throw bad(path, checked.reason);
    return new BaseFile(path, checked.value, sourceOf(path, metadata.source));
  }

  /** Bytes [begin, end) of the file, in pieces. */
  async *pieces(begin: number, end: number): AsyncGenerator<Uint8Array<ArrayBuffer>> {
    using file = await openFile(this.#path);
    await file.seek(begin, Deno.SeekMode.Start);
    for (let at = begin; at < end; at += PIECE_BYTES) {
      yield await readExactly(file, Math.min(PIECE_BYTES, end - at));
    }
  }

  /** One tensor's values. @throws {ShoalError} bad-checkpoint if they do not have their hash */
  async read({ name, begin, end, sha256 }: BaseList["tensors"][number], into: Float32Array): Promise<void> {
    const hash = createHash("sha256");
    const bytes = new Uint8Array(into.buffer, into.byteOffset, into.byteLength);
    let at = 0;
    for await (const piece of this.pieces(begin, end)) {
      hash.update(piece);
      bytes.set(piece, at);
      at += piece.length;
    }
    if (hash.digest("hex") !== sha256) throw bad(this.#path, `tensor ${name} differs from its SHA-256`);
  }
}

/**
 * All weights of the base that a run's adapters belong to, verified: flat f32 in the layout of wholeModel(baseSpec(spec)).
 * @throws {ShoalError} bad-checkpoint if there is none, it is another model's, or damaged
 */
export async function readBase(runDir: string, spec: ModelSpec): Promise<Float32Array> {
  const file = await BaseFile.open(runDir, spec);
  const layout = stageLayout(baseSpec(spec), wholeModel(spec));
  const params = new Float32Array(layout.size);
  for (const [i, { offset, size }] of layout.tensors.entries()) {
    await file.read(file.list.tensors[i]!, params.subarray(offset, offset + size));
  }
  return params;
}

/** What adapters belong to goes with them into another run's folder. @throws {ShoalError} bad-checkpoint, storage-full */
export async function copyBase(fromRun: string, toRun: string): Promise<void> {
  const path = join(fromRun, BASE_NAME), to = join(toRun, BASE_NAME);
  try {
    await Deno.mkdir(toRun, { recursive: true });
    await Deno.copyFile(path, to);
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) throw bad(path, "there is no such file", error);
    throw storageError(error, to);
  }
}

function sourceOf(path: string, text: string | undefined): BaseSource | null {
  if (text === undefined) return null;
  const source = readSource(text);
  if (source.ok) return source.value;
  throw bad(path, source.reason);
}

async function openFile(path: string): Promise<Deno.FsFile> {
  try {
    return await Deno.open(path);
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) throw bad(path, "there is no such file", error);
    throw error;
  }
}

async function readExactly(file: Deno.FsFile, length: number): Promise<Uint8Array<ArrayBuffer>> {
  const out = new Uint8Array(length);
  for (let at = 0; at < length;) {
    const read = await file.read(out.subarray(at));
    if (read === null) throw new ShoalError("bad-checkpoint", `a base ends ${length - at} bytes too early`);
    at += read;
  }
  return out;
}

async function writeAll(file: Deno.FsFile, bytes: Uint8Array): Promise<void> {
  for (let at = 0; at < bytes.length;) at += await file.write(bytes.subarray(at));
}

function storageError(error: unknown, path: string): unknown {
  const code = (error as { code?: unknown } | null)?.code;
  if (code !== "ENOSPC" && code !== "EDQUOT") return error;
  const message = `no space left for the base ${path} (${messageOf(error)}); free space and try again`;
  return new ShoalError("storage-full", message, { cause: error });
}

function bad(path: string, reason: string, cause?: unknown): ShoalError {
  const message =
    `base ${path}: ${reason}; adapters need the ${BASE_NAME} that their run began with, beside its checkpoints`;
  return new ShoalError("bad-checkpoint", message, cause === undefined ? {} : { cause });
}
