// A checkpoint as a source of weights that are read one tensor at a time. I/O; never the whole model in memory.
// All files are verified against the manifest before the first weight is given out, and stay open, so a checkpoint that the
// run removes meanwhile can still be read to its end.
import { createHash } from "node:crypto";
import { join } from "node:path";
import { isTied, stageLayout, type TensorLayout, wholeModel } from "../../peer/model/layout.ts";
import { decodeHeader, headerLength, type SafetensorsHeader } from "../../peer/model/safetensors.ts";
import { STATE_FORMAT_VERSION } from "../../peer/model/state_file.ts";
import { assert, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import type { CheckpointFile, CheckpointManifest } from "../store/checkpoint_manifest.ts";
import { readManifest } from "../store/checkpoints.ts";

/** Weights by Hugging Face's names, in the shapes of layout.ts. */
export interface WeightSource {
  readonly spec: ModelSpec;
  /** A fresh copy. @throws {ShoalError} bad-checkpoint at a value that is not finite. */
  read(name: string): Promise<Float32Array>;
}

export interface CheckpointSource extends WeightSource, Disposable {
  readonly path: string;
  readonly manifest: CheckpointManifest;
}

/** Hashing and comparing read this much at once. */
const CHUNK_BYTES = 1 << 20;
const LENGTH_BYTES = 8;

interface Shard {
  name: string;
  file: Deno.FsFile;
  header: SafetensorsHeader;
  /** Where its tensors begin in the file. */
  dataAt: number;
}

interface Place {
  shard: Shard;
  at: number;
  bytes: number;
}

/**
 * Opens and verifies a checkpoint's folder: manifest, sizes, hashes, and that every weight is there once, in shape.
 * @throws {ShoalError} bad-checkpoint naming what is wrong.
 */
export async function openCheckpoint(path: string): Promise<CheckpointSource> {
  const manifest = await readManifest(path);
  const shards: Shard[] = [];
  try {
    for (const entry of manifest.files) {
      const file = await openVerified(path, entry);
      if (!entry.name.endsWith(".safetensors")) file.close();
      else shards.push(await readShard(path, { name: entry.name, file, bytes: entry.bytes }));
    }
    for (const shard of shards) checkStep(path, shard, manifest.step);
    const places = new Map<string, Place>();
    const layout = stageLayout(manifest.spec, wholeModel(manifest.spec));
    for (const tensor of layout.tensors) {
      places.set(tensor.name, await placeOf(path, shards, { tensor, spec: manifest.spec }));
    }
    return new OpenCheckpoint(path, manifest, { shards, places });
  } catch (error) {
    for (const { file } of shards) file.close();
    throw error;
  }
}

class OpenCheckpoint implements CheckpointSource {
  readonly path: string;
  readonly manifest: CheckpointManifest;
  readonly #shards: readonly Shard[];
  readonly #places: ReadonlyMap<string, Place>;
  #last: Promise<unknown> = Promise.resolve();
  #closed = false;

  constructor(
    path: string,
    manifest: CheckpointManifest,
    content: { shards: readonly Shard[]; places: ReadonlyMap<string, Place> },
  ) {
    this.path = path;
    this.manifest = manifest;
    this.#shards = content.shards;
    this.#places = content.places;
  }

  get spec(): ModelSpec {
    return this.manifest.spec;
  }

  /** One at a time: a file has one position, and two tensors at once would double the memory. */
  read(name: string): Promise<Float32Array> {
    const reading = this.#last.then(() => this.#readNow(name));
    this.#last = reading.catch(() => {});
    return reading;
  }

  async #readNow(name: string): Promise<Float32Array> {
    const place = this.#places.get(name);
    assert(place !== undefined, `the model has a tensor ${name}`);
    const values = new Float32Array(place.bytes / 4);
    await readAt(this.path, place.shard, { at: place.at, into: new Uint8Array(values.buffer) });
    const wrong = values.find((value) => !Number.isFinite(value));
    if (wrong !== undefined) throw bad(this.path, `tensor ${name} contains ${wrong}`);
    return values;
  }

  [Symbol.dispose](): void {
    if (this.#closed) return;
    this.#closed = true;
    for (const { file } of this.#shards) file.close();
  }
}

async function openVerified(path: string, { name, bytes, sha256 }: CheckpointFile): Promise<Deno.FsFile> {
  const file = await openFile(path, name);
  try {
    const { size, isFile } = await file.stat();
    if (!isFile || size !== bytes) throw bad(path, `${name} has ${size} bytes instead of ${bytes}`);
    const hash = createHash("sha256");
    const chunk = new Uint8Array(CHUNK_BYTES);
    for (let got = await file.read(chunk); got !== null; got = await file.read(chunk)) {
      hash.update(chunk.subarray(0, got));
    }
    if (hash.digest("hex") !== sha256) throw bad(path, `${name} differs from its SHA-256`);
    return file;
  } catch (error) {
    file.close();
    throw error;
  }
}

async function openFile(path: string, name: string): Promise<Deno.FsFile> {
  try {
    return await Deno.open(join(path, name), { read: true });
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) throw bad(path, `${name} is missing`, error);
    throw error;
  }
}

/** Takes the file over: it is closed if its header is refused. */
async function readShard(
  path: string,
  at: { name: string; file: Deno.FsFile; bytes: number },
): Promise<Shard> {
  const { name, file } = at;
  try {
    const first = new Uint8Array(Math.min(LENGTH_BYTES, at.bytes));
    await readAt(path, at, { at: 0, into: first });
    const length = headerLength(first, at.bytes, "bad-checkpoint");
    if (!length.ok) throw bad(path, `${name}: ${length.reason}`);
    const text = new Uint8Array(length.value);
    await readAt(path, at, { at: LENGTH_BYTES, into: text });
    const dataAt = LENGTH_BYTES + length.value;
    const header = decodeHeader(text, at.bytes - dataAt, "bad-checkpoint");
    if (!header.ok) throw bad(path, `${name}: ${header.reason}`);
    return { name, file, header: header.value, dataAt };
  } catch (error) {
    file.close();
    throw error;
  }
}

function checkStep(path: string, { name, header: { metadata } }: Shard, step: number): void {
  const { format_version: version, step: written } = metadata;
  if (version !== STATE_FORMAT_VERSION) {
    throw bad(path, `${name}: state format version ${version ?? "(absent)"} is not ${STATE_FORMAT_VERSION}`);
  }
  if (written !== String(step)) throw bad(path, `${name} is of step ${written}, the manifest of ${step}`);
}

interface Wanted {
  tensor: TensorLayout;
  spec: ModelSpec;
}

/** Where a weight lies. Only a tied embedding may occur twice, and then its copies must agree bit for bit. */
async function placeOf(path: string, shards: readonly Shard[], { tensor, spec }: Wanted): Promise<Place> {
  const { name, shape } = tensor;
  const all: Place[] = [];
  for (const shard of shards) {
    const entry = shard.header.tensors.get(name);
    if (entry === undefined) continue;
    if (entry.dtype !== "F32" || String(entry.shape) !== String(shape)) {
      throw bad(path, `tensor ${name} is ${entry.dtype} [${entry.shape}], expected F32 [${shape}]`);
    }
    all.push({ shard, at: shard.dataAt + entry.begin, bytes: entry.end - entry.begin });
  }
  const first = all[0];
  if (first === undefined) throw bad(path, `tensor ${name} is missing`);
  if (all.length > (isTied(spec, name) ? 2 : 1)) throw bad(path, `tensor ${name} occurs ${all.length} times`);
  for (const other of all.slice(1)) {
    if (!await sameBytes(path, first, other)) throw bad(path, `the two copies of tensor ${name} differ`);
  }
  return first;
}

async function sameBytes(path: string, a: Place, b: Place): Promise<boolean> {
  for (let at = 0; at < a.bytes; at += CHUNK_BYTES) {
    const size = Math.min(CHUNK_BYTES, a.bytes - at);
    const [x, y] = [new Uint8Array(size), new Uint8Array(size)];
    await readAt(path, a.shard, { at: a.at + at, into: x });
    await readAt(path, b.shard, { at: b.at + at, into: y });
    if (x.some((byte, i) => byte !== y[i])) return false;
  }
  return true;
}

async function readAt(
  path: string,
  { name, file }: { name: string; file: Deno.FsFile },
  { at, into }: { at: number; into: Uint8Array },
): Promise<void> {
  await file.seek(at, Deno.SeekMode.Start);
  for (let got = 0; got < into.length;) {
    const more = await file.read(into.subarray(got));
    if (more === null) throw bad(path, `${name} ended while it was read`);
    got += more;
  }
}

function bad(path: string, reason: string, cause?: unknown): ShoalError {
  const message = `checkpoint ${path}: ${reason}; use another checkpoint`;
  return new ShoalError("bad-checkpoint", message, cause === undefined ? {} : { cause });
}
