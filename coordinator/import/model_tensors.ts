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
import { assert } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import type { SourcePlace } from "../store/base.ts";
import type { ModelSource } from "./model_source.ts";

export interface ModelTensors {
  /** Told from the headers: every tensor is there in shape, and none is left over. @throws {ShoalError} bad-model */
  check(): void;
  /**
   * Writes the values of one of our tensors into `into`, which has its size.
   * @returns the SHA-256 of the stored tensor that they were read from
   * @throws {ShoalError} bad-model
   */
  read(tensor: TensorLayout, into: Float32Array): Promise<string>;
  /** Where a file has our values, in our order or turned; null if it has them in another way. */
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
    read: ({ name, shape }, into) => source.read(name, shape, into),
    place: ({ name }) => source.place(name),
  };
}

/** Where transformers' older versions kept the rotary frequencies, which follow from the configuration. */
const LLAMA_DERIVED = /^model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq$/;
/** Where they kept the causal mask. */
const GPT2_DERIVED = /^(transformer\.)?h\.\d+\.attn\.(masked_)?bias$/;

class Gpt2Tensors implements ModelTensors {
  readonly #source: ModelSource;
  readonly #stored: readonly HfTensor[];
  readonly #optional: ReadonlySet<string>;
  /** The tensor that was read last, rows as ours: q, k and v are asked for one after the other. */
  #last: { stored: HfTensor; values: Float32Array; sha256: string } | null = null;

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

  /** Fused biases and a window that was cut are parts of what is stored, which is little: the coordinator has them. */
  place({ name, shape }: TensorLayout): SourcePlace | null {
    const stored = this.#storedAs(name);
    const place = this.#source.place(stored.name);
    if (place === null) return null;
    if (stored.turned) {
      const [into, out] = stored.shape as [number, number];
      return { ...place, turned: { into, out, part: stored.ours.indexOf(name) } };
    }
    return String(stored.shape) === String(shape) ? place : null;
  }

  async read({ name, size }: TensorLayout, into: Float32Array): Promise<string> {
    const stored = this.#storedAs(name);
    const { values, sha256 } = this.#last?.stored === stored ? this.#last : await this.#load(stored);
    const at = stored.ours.indexOf(name) * size;
    into.set(values.subarray(at, at + size));
    return sha256;
  }

  #storedAs(name: string): HfTensor {
    const stored = this.#stored.find(({ ours }) => ours.includes(name));
    assert(stored, `tensor ${name} has a place in a GPT-2's file`);
    return stored;
  }

  async #load(stored: HfTensor): Promise<{ values: Float32Array; sha256: string }> {
    const { name, shape, turned } = stored;
    this.#last = null;
    const values = new Float32Array(shape.reduce((product, size) => product * size, 1));
    const sha256 = await this.#source.read(name, shape, values);
    this.#last = { stored, sha256, values: turned ? turn(values, shape[0]!, shape[1]!) : values };
    return this.#last;
  }
}
