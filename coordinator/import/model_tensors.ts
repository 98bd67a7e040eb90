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
import type { ModelSource } from "./model_source.ts";

export interface ModelTensors {
  /** Told from the headers: every tensor is there in shape, and none is left over. @throws {ShoalError} bad-model */
  check(): void;
  /** Writes the values of one of our tensors into `into`, which has its size. @throws {ShoalError} bad-model */
  read(tensor: TensorLayout, into: Float32Array): Promise<void>;
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

  async read({ name, size }: TensorLayout, into: Float32Array): Promise<void> {
    const stored = this.#stored.find(({ ours }) => ours.includes(name));
    assert(stored, `tensor ${name} has a place in a GPT-2's file`);
    const { values } = this.#last?.stored === stored ? this.#last : await this.#load(stored);
    const at = stored.ours.indexOf(name) * size;
    into.set(values.subarray(at, at + size));
  }

  async #load(stored: HfTensor): Promise<{ values: Float32Array }> {
    const { name, shape, turned } = stored;
    this.#last = null;
    const values = new Float32Array(shape.reduce((product, size) => product * size, 1));
    await this.#source.read(name, shape, values);
    this.#last = { stored, values: turned ? turn(values, shape[0]!, shape[1]!) : values };
    return this.#last;
  }
}
