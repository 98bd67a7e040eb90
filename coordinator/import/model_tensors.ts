// The tensors of a model from elsewhere, asked for by our names: Llama's are stored as ours are, GPT-2's under other names, with q,
// k and v in one matrix and matrices turned. At most one tensor of the file is in memory beside what the caller asks for.
import { HF_PREFIX, hfGpt2Tensors, type HfTensor, turn } from "../../peer/model/hf_gpt2.ts";
import {
  HEAD_NAME,
  isGpt2,
  POSITIONS_NAME,
  stageLayout,
  type TensorLayout,
  wholeModel,
} from "../../peer/model/layout.ts";
import { BASE_DTYPES } from "../../peer/wire/base.ts";
import { assert } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import type { SourcePlace } from "../store/base_source.ts";
import type { ModelSource } from "./model_source.ts";

export interface ModelTensors {
  /** Told from the headers: every tensor is there in shape, and none is left over. @throws {ShoalError} bad-model */
  check(): void;
  /**
   * Writes the values of one of our tensors into `into`, which has its size.
   * @returns the SHA-256 of the bytes at its place
   * @throws {ShoalError} bad-model
   */
  read(tensor: TensorLayout, into: Float32Array): Promise<string>;
  /** Where a file has our values, in our order or turned; null if it has none. */
  place(tensor: TensorLayout): SourcePlace | null;
}

export function modelTensors(
  source: ModelSource,
  { spec, positionsMax }: { spec: ModelSpec; positionsMax: number },
): ModelTensors {
  // Some writers store a tied head once more under its own name.
  const optional = new Set(spec.tie_word_embeddings ? [HEAD_NAME] : []);
  if (isGpt2(spec)) return new Gpt2Tensors(source, spec, { positionsMax, optional });
  const wanted = stageLayout(spec, wholeModel(spec)).tensors;
  return {
    check: () => source.check(wanted, { optional, derived: LLAMA_DERIVED }),
    read: async ({ name, shape }, into) => (await source.read(name, shape, { into }))[0]!,
    place: ({ name }) => source.place(name),
  };
}

/** Where transformers' older versions kept the rotary frequencies, which follow from the configuration. */
const LLAMA_DERIVED = /^model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq$/;
/** Where they kept the causal mask. */
const GPT2_DERIVED = /^(transformer\.)?h\.\d+\.attn\.(masked_)?bias$/;

interface Stored {
  stored: HfTensor;
  values: Float32Array;
  /** Of the whole of a turned one, of each of ours in another. */
  hashes: string[];
}

class Gpt2Tensors implements ModelTensors {
  readonly #source: ModelSource;
  readonly #stored: readonly HfTensor[];
  readonly #optional: ReadonlySet<string>;
  /** The tensor that was read last, rows as ours: q, k and v are asked for one after the other. */
  #last: Stored | null = null;

  constructor(
    source: ModelSource,
    spec: ModelSpec,
    { positionsMax, optional }: { positionsMax: number; optional: ReadonlySet<string> },
  ) {
    const prefixed = source.has(`${HF_PREFIX}wte.weight`);
    this.#source = source;
    this.#optional = optional;
    this.#stored = hfGpt2Tensors(spec).map((tensor) => ({
      ...tensor,
      name: prefixed ? tensor.name : tensor.name.replace(HF_PREFIX, ""),
      // A shorter window than the model's uses its first positions.
      shape: tensor.ours[0] === POSITIONS_NAME ? [positionsMax, spec.n_embd] : tensor.shape,
    }));
  }

  check(): void {
    this.#source.check(this.#stored, { optional: this.#optional, derived: GPT2_DERIVED });
  }

  /** One of three fused biases, and the first positions where a window was cut, are parts of what is stored. */
  place({ name, size }: TensorLayout): SourcePlace | null {
    const stored = this.#storedAs(name);
    const place = this.#source.place(stored.name);
    if (place === null) return null;
    if (stored.turned) {
      const [into, out] = stored.shape as [number, number];
      return { ...place, turned: { into, out, part: stored.ours.indexOf(name) } };
    }
    const bytes = size * BASE_DTYPES[place.dtype];
    const begin = place.begin + stored.ours.indexOf(name) * bytes;
    return { ...place, begin, end: begin + bytes };
  }

  async read({ name, size }: TensorLayout, into: Float32Array): Promise<string> {
    const stored = this.#storedAs(name);
    const { values, hashes } = this.#last?.stored === stored ? this.#last : await this.#load(stored, size);
    const index = stored.ours.indexOf(name), at = index * size;
    into.set(values.subarray(at, at + size));
    return hashes[stored.turned ? 0 : index]!;
  }

  #storedAs(name: string): HfTensor {
    const stored = this.#stored.find(({ ours }) => ours.includes(name));
    assert(stored, `tensor ${name} has a place in a GPT-2's file`);
    return stored;
  }

  async #load(stored: HfTensor, size: number): Promise<Stored> {
    const { name, shape, turned } = stored;
    this.#last = null;
    const values = new Float32Array(shape.reduce((product, n) => product * n, 1));
    const hashes = await this.#source.read(name, shape, { into: values, ...(turned ? {} : { part: size }) });
    this.#last = { stored, hashes, values: turned ? turn(values, shape[0]!, shape[1]!) : values };
    return this.#last;
  }
}
