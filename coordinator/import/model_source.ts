// A model in Hugging Face's layout, on disk or at an address: config.json, tokenizer.json, and its tensors in one safetensors file or in
// shards with an index. It says where each tensor lies and reads what is asked for; nothing is loaded whole. Files may come from anywhere.
import { basename, dirname } from "node:path";
import { messageOf } from "../../peer/wire/errors.ts";
import type { SourcePlace } from "../store/base_source.ts";
import { badModel, FolderPlace, type ModelPlace } from "./model_place.ts";
import { isAddress, type UrlOptions, UrlPlace } from "./model_url.ts";
import { type ReadInto, TensorFile } from "./tensor_file.ts";

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
  readonly #place: ModelPlace;
  readonly #files: TensorFile[];
  /** The file that holds each tensor. */
  readonly #places: ReadonlyMap<string, TensorFile>;

  private constructor(place: ModelPlace, files: TensorFile[], places: ReadonlyMap<string, TensorFile>) {
    this.#place = place;
    this.#files = files;
    this.#places = places;
  }

  /** @param path A model's folder, or its single safetensors file; of either the path or the address. @throws {ShoalError} bad-model, usage */
  static async open(path: string, options: UrlOptions = {}): Promise<ModelSource> {
    const single = path.endsWith(".safetensors");
    const folder = single ? dirname(path) : path;
    const place = isAddress(path) ? new UrlPlace(folder, options) : new FolderPlace(folder);
    const names = single ? [basename(path)] : await shardNames(place);
    const files: TensorFile[] = [];
    try {
      for (const name of names) files.push(await TensorFile.open(await place.open(name)));
      return new ModelSource(place, files, placesOf(place.said(), files));
    } catch (error) {
      for (const file of files) file.close();
      throw error;
    }
  }

  config(): Promise<unknown> {
    return readJson(this.#place, "config.json", CONFIG_BYTES_MAX);
  }

  /** The text of tokenizer.json. */
  tokenizer(): Promise<string> {
    return readText(this.#place, "tokenizer.json", TOKENIZER_BYTES_MAX);
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
    throw badModel(
      this.#place.said(),
      `tensor ${shown} has no place in our model, which would not be the same without it`,
    );
  }

  has(name: string): boolean {
    return this.#places.has(name);
  }

  #fileOf(name: string): TensorFile {
    const file = this.#places.get(name);
    if (file === undefined) throw badModel(this.#place.said(), `tensor ${name} is missing`);
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

  /** As TensorFile.read. @throws {ShoalError} bad-model */
  async read(name: string, shape: readonly number[], target: ReadInto): Promise<string[]> {
    return await this.#fileOf(name).read(name, shape, target);
  }

  close(): void {
    for (const file of this.#files) file.close();
  }
}

/** Names of the safetensors files of a place: the shards of the index if there is one, else the single file. */
async function shardNames(place: ModelPlace): Promise<string[]> {
  const index = await place.text(INDEX_NAME, INDEX_BYTES_MAX);
  if (index === null) {
    if (await place.has(SINGLE_NAME)) return [SINGLE_NAME];
    throw badModel(
      place.said(),
      `there is neither ${SINGLE_NAME} nor ${INDEX_NAME}; name a model's folder or file`,
    );
  }
  const said = place.said(INDEX_NAME);
  const json = jsonOf(said, index);
  const map = typeof json === "object" && json !== null && "weight_map" in json ? json.weight_map : null;
  if (typeof map !== "object" || map === null || Array.isArray(map)) {
    throw badModel(said, "it has no weight_map");
  }
  const names = [...new Set(Object.values(map))];
  const wrong = names.find((name) =>
    typeof name !== "string" || !/^[A-Za-z0-9][\w.-]{0,150}\.safetensors$/.test(name)
  );
  // A name must not lead out of the folder.
  if (wrong !== undefined) {
    throw badModel(said, `${(JSON.stringify(wrong) ?? "").slice(0, 60)} is no shard's name`);
  }
  if (names.length < 1 || names.length > SHARDS_MAX) {
    throw badModel(said, `it names ${names.length} shards; 1 to ${SHARDS_MAX} are possible`);
  }
  return (names as string[]).sort();
}

function placesOf(said: string, files: readonly TensorFile[]): Map<string, TensorFile> {
  const places = new Map<string, TensorFile>();
  for (const file of files) {
    for (const name of file.tensors.keys()) {
      if (places.has(name)) {
        throw badModel(said, `tensor ${JSON.stringify(name).slice(0, 100)} is in two files`);
      }
      places.set(name, file);
    }
  }
  return places;
}

async function readJson(place: ModelPlace, name: string, bytesMax: number): Promise<unknown> {
  return jsonOf(place.said(name), await readText(place, name, bytesMax));
}

async function readText(place: ModelPlace, name: string, bytesMax: number): Promise<string> {
  const text = await place.text(name, bytesMax);
  if (text === null) throw badModel(place.said(name), "there is no such file");
  return text;
}

function jsonOf(said: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw badModel(said, `it is not JSON: ${messageOf(error).slice(0, 200)}`);
  }
}
