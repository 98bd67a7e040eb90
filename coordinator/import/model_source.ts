// A model in Hugging Face's layout on disk: config.json, tokenizer.json, and its tensors in one safetensors file or in shards with
// an index. It says where each tensor lies and reads what is asked for; nothing is loaded whole. Files may come from anywhere.
import { basename, dirname, join } from "node:path";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import type { SourcePlace } from "../store/base.ts";
import { exists } from "../store/exists.ts";
import { TensorFile } from "./tensor_file.ts";

const INDEX_NAME = "model.safetensors.index.json";
const SINGLE_NAME = "model.safetensors";
/** config.json is a page; anything else is no configuration. */
const CONFIG_BYTES_MAX = 1 << 20;
/** Lists some hundred bytes per tensor. */
const INDEX_BYTES_MAX = 16 << 20;
/** The largest tokenizers have a quarter of a million entries. */
const TOKENIZER_BYTES_MAX = 64 << 20;
/** A model of more files would keep more of them open than a process may. */
const SHARDS_MAX = 256;

export class ModelSource {
  readonly #folder: string;
  readonly #files: TensorFile[];
  /** The file that holds each tensor. */
  readonly #places: ReadonlyMap<string, TensorFile>;

  private constructor(folder: string, files: TensorFile[], places: ReadonlyMap<string, TensorFile>) {
    this.#folder = folder;
    this.#files = files;
    this.#places = places;
  }

  /** @param path A model's folder, or its single safetensors file. @throws {ShoalError} bad-model */
  static async open(path: string): Promise<ModelSource> {
    const single = path.endsWith(".safetensors");
    const folder = single ? dirname(path) : path;
    const names = single ? [basename(path)] : await shardNames(folder);
    const files: TensorFile[] = [];
    try {
      for (const name of names) files.push(await TensorFile.open(join(folder, name)));
      return new ModelSource(folder, files, placesOf(folder, files));
    } catch (error) {
      for (const file of files) file.close();
      throw error;
    }
  }

  config(): Promise<unknown> {
    return readJson(join(this.#folder, "config.json"), CONFIG_BYTES_MAX);
  }

  /** The text of tokenizer.json. */
  tokenizer(): Promise<string> {
    return readBounded(join(this.#folder, "tokenizer.json"), TOKENIZER_BYTES_MAX);
  }

  /**
   * Every wanted tensor must be there in shape, and every tensor of the files be one of them, be `optional`, or follow from the
   * configuration. Told from the headers, so that no memory is taken for a model that is not there.
   * @throws {ShoalError} bad-model naming the first that is missing, does not fit, or would be left out.
   */
  check(
    wanted: readonly { name: string; shape: readonly number[] }[],
    { optional, derived }: { optional: ReadonlySet<string>; derived: RegExp },
  ): void {
    for (const { name, shape } of wanted) this.#fileOf(name).check(name, shape);
    const known = new Set(wanted.map(({ name }) => name));
    const foreign = [...this.#places.keys()].find((name) =>
      !known.has(name) && !optional.has(name) && !derived.test(name)
    );
    if (foreign === undefined) return;
    const shown = JSON.stringify(foreign).slice(0, 100);
    throw bad(
      this.#folder,
      `tensor ${shown} has no place in our model, which would not be the same without it`,
    );
  }

  has(name: string): boolean {
    return this.#places.has(name);
  }

  #fileOf(name: string): TensorFile {
    const file = this.#places.get(name);
    if (file === undefined) throw bad(this.#folder, `tensor ${name} is missing`);
    return file;
  }

  /** Names of the safetensors files. */
  get files(): string[] {
    return this.#files.map((file) => file.name);
  }

  /** Where a tensor's values are; null if there are none that could be read. */
  place(name: string): SourcePlace | null {
    const file = this.#places.get(name);
    const place = file?.place(name) ?? null;
    return place === null ? null : { file: this.#files.indexOf(file!), ...place };
  }

  /** Values of one tensor; gives the SHA-256 of its bytes. @throws {ShoalError} bad-model */
  async read(name: string, shape: readonly number[], into: Float32Array): Promise<string> {
    return await this.#fileOf(name).read(name, shape, { into });
  }

  close(): void {
    for (const file of this.#files) file.close();
  }
}

/** Names of the safetensors files in a folder: the shards of the index if there is one, else the single file. */
async function shardNames(folder: string): Promise<string[]> {
  const index = join(folder, INDEX_NAME);
  if (!await exists(index)) {
    if (await exists(join(folder, SINGLE_NAME))) return [SINGLE_NAME];
    throw bad(folder, `there is neither ${SINGLE_NAME} nor ${INDEX_NAME}; name a model's folder or file`);
  }
  const json = await readJson(index, INDEX_BYTES_MAX);
  const map = typeof json === "object" && json !== null && "weight_map" in json ? json.weight_map : null;
  if (typeof map !== "object" || map === null || Array.isArray(map)) throw bad(index, "it has no weight_map");
  const names = [...new Set(Object.values(map))];
  const wrong = names.find((name) =>
    typeof name !== "string" || !/^[A-Za-z0-9][\w.-]{0,150}\.safetensors$/.test(name)
  );
  // A name must not lead out of the folder.
  if (wrong !== undefined) {
    throw bad(index, `${(JSON.stringify(wrong) ?? "").slice(0, 60)} is no shard's name`);
  }
  if (names.length < 1 || names.length > SHARDS_MAX) {
    throw bad(index, `it names ${names.length} shards; 1 to ${SHARDS_MAX} are possible`);
  }
  return (names as string[]).sort();
}

function placesOf(folder: string, files: readonly TensorFile[]): Map<string, TensorFile> {
  const places = new Map<string, TensorFile>();
  for (const file of files) {
    for (const name of file.tensors.keys()) {
      if (places.has(name)) throw bad(folder, `tensor ${JSON.stringify(name).slice(0, 100)} is in two files`);
      places.set(name, file);
    }
  }
  return places;
}

async function readJson(path: string, bytesMax: number): Promise<unknown> {
  const text = await readBounded(path, bytesMax);
  try {
    return JSON.parse(text);
  } catch (error) {
    throw bad(path, `it is not JSON: ${messageOf(error).slice(0, 200)}`);
  }
}

async function readBounded(path: string, bytesMax: number): Promise<string> {
  try {
    const { size, isFile } = await Deno.stat(path);
    if (!isFile || size > bytesMax) throw bad(path, `it has ${size} bytes, at most ${bytesMax} are expected`);
    return new TextDecoder("utf-8", { fatal: true }).decode(await Deno.readFile(path));
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) throw bad(path, "there is no such file");
    if (error instanceof TypeError) throw bad(path, "it is not UTF-8");
    throw error;
  }
}

function bad(path: string, reason: string): ShoalError {
  return new ShoalError("bad-model", `${path}: ${reason}`);
}
