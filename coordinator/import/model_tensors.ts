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
import type { OnBytes } from "./tensor_file.ts";

export interface ModelTensors {
  /** Told from the headers: every tensor is there in shape, and none is left over. @throws {ShoalError} bad-model */
  check(): void;
  /**
   * Writes the values of one of our tensors into `into`, which has its size. `onBytes` sees the bytes of the whole stored tensor.
   * @throws {ShoalError} bad-model
   */
  read(tensor: TensorLayout, into: Float32Array, onBytes?: OnBytes): Promise<void>;
  /** Where a file has exactly our values in our order; null if it has them in another one. */
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
    read: ({ name, shape }, into, onBytes) => source.read(name, shape, { into, onBytes }),
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
  #last: { stored: HfTensor; values: Float32Array } | null = null;

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

  /** Turned matrices, fused ones and a window that was cut are others than ours. */
  place({ name, shape }: TensorLayout): SourcePlace | null {
    const stored = this.#storedAs(name);
    if (stored.turned || stored.ours.length > 1 || String(stored.shape) !== String(shape)) return null;
    return this.#source.place(stored.name);
  }

  async read({ name, size }: TensorLayout, into: Float32Array, onBytes?: OnBytes): Promise<void> {
    const stored = this.#storedAs(name);
    const { values } = this.#last?.stored === stored ? this.#last : await this.#load(stored, onBytes);
    const at = stored.ours.indexOf(name) * size;
    into.set(values.subarray(at, at + size));
  }

  #storedAs(name: string): HfTensor {
    const stored = this.#stored.find(({ ours }) => ours.includes(name));
    assert(stored, `tensor ${name} has a place in a GPT-2's file`);
    return stored;
  }

  async #load(stored: HfTensor, onBytes?: OnBytes): Promise<{ values: Float32Array }> {
    const { name, shape, turned } = stored;
    this.#last = null;
    const values = new Float32Array(shape.reduce((product, size) => product * size, 1));
    await this.#source.read(name, shape, { into: values, onBytes });
    this.#last = { stored, values: turned ? turn(values, shape[0]!, shape[1]!) : values };
    return this.#last;
  }
}
