// The weights of a checkpoint for a format: what was trained, or adapters added to the base that they belong to, one tensor at a time.
// I/O by way of the checkpoint (source.ts) and the base's file. A base is verified whole before the first weight is given out.
import {
  addProduct,
  LORA_A,
  LORA_B,
  type LoraMatrix,
  loraOf,
  loraScale,
  loraTargets,
} from "../../peer/model/lora.ts";
import { baseSpec, wholeModel } from "../../peer/model/layout.ts";
import { assert, ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { BaseFile } from "../store/base.ts";
import { baseFolderOf } from "../store/base_place.ts";
import type { CheckpointManifest } from "../store/checkpoint_manifest.ts";
import { ADAPTER_FORMATS, type ExportFormat } from "./plan.ts";
import { type CheckpointSource, openCheckpoint } from "./source.ts";

/**
 * Opens and verifies a checkpoint's folder and what it needs. Its `spec` is that of the weights that `read` gives: of a run with
 * adapters those of the merged model, for formats of adapters these.
 * @throws {ShoalError} bad-checkpoint naming what is wrong; usage for a format of adapters where there are none.
 */
export async function openWeights(path: string, format: ExportFormat): Promise<CheckpointSource> {
  const source = await openCheckpoint(path);
  try {
    const { lora } = source.spec;
    if (ADAPTER_FORMATS.includes(format)) {
      if (lora !== undefined) return source;
      const reason = `has no adapters, which ${format} is for; export it as ${
        format === "peft" ? "hf" : "gguf"
      }`;
      throw new ShoalError("usage", `checkpoint ${path} ${reason}`);
    }
    return lora === undefined ? source : await MergedSource.open(source);
  } catch (error) {
    source[Symbol.dispose]();
    throw error;
  }
}

class MergedSource implements CheckpointSource {
  readonly spec: ModelSpec;
  readonly #adapters: CheckpointSource;
  readonly #base: BaseFile;
  readonly #matrices: ReadonlyMap<string, LoraMatrix>;

  private constructor(adapters: CheckpointSource, base: BaseFile) {
    const { spec } = adapters;
    this.spec = baseSpec(spec);
    this.#adapters = adapters;
    this.#base = base;
    this.#matrices = new Map(loraTargets(spec, wholeModel(spec)).map((matrix) => [matrix.name, matrix]));
  }

  static async open(adapters: CheckpointSource): Promise<MergedSource> {
    const base = await BaseFile.open(await baseFolderOf(adapters.path), adapters.spec);
    for (const tensor of base.list.tensors) await base.read(tensor, new Float32Array(sizeOf(tensor.shape)));
    return new MergedSource(adapters, base);
  }

  get path(): string {
    return this.#adapters.path;
  }

  get manifest(): CheckpointManifest {
    return this.#adapters.manifest;
  }

  async read(name: string): Promise<Float32Array> {
    const tensor = this.#base.list.tensors.find((it) => it.name === name);
    assert(tensor !== undefined, `the model has a tensor ${name}`);
    const values = new Float32Array(sizeOf(tensor.shape));
    await this.#base.read(tensor, values);
    const matrix = this.#matrices.get(name);
    if (matrix !== undefined) await this.#add(values, matrix);
    const wrong = values.find((value) => !Number.isFinite(value));
    if (wrong === undefined) return values;
    const reason = `tensor ${name} of the merged model contains ${wrong}; use another checkpoint`;
    throw new ShoalError("bad-checkpoint", `checkpoint ${this.path}: ${reason}`);
  }

  /** The same sums in the same order as mergeLora's. */
  async #add(values: Float32Array, matrix: LoraMatrix): Promise<void> {
    const { spec } = this.#adapters, module = matrix.name.slice(0, -".weight".length);
    const a = await this.#adapters.read(module + LORA_A), b = await this.#adapters.read(module + LORA_B);
    const both = new Float32Array(a.length + b.length);
    both.set(a);
    both.set(b, a.length);
    const place = { ...matrix, aOffset: 0, bOffset: a.length };
    addProduct(values, both, { ...place, rank: loraOf(spec).rank, scale: loraScale(spec) });
  }

  [Symbol.dispose](): void {
    this.#adapters[Symbol.dispose]();
  }
}

function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, length) => product * length, 1);
}
