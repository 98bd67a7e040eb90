// A GPT-2 as transformers' GPT2LMHeadModel stores it, told in tensors of ours: other names, q, k and v in one matrix, and matrices
// [in, out] (Conv1D) where ours are [out, in]. Names and shapes only; coordinator/import and coordinator/export move the values.
import type { ModelSpec } from "../wire/run.ts";
import {
  EMBEDDING_NAME,
  FINAL_BIAS_NAME,
  FINAL_NORM_NAME,
  HEAD_NAME,
  headDim,
  POSITIONS_NAME,
} from "./layout.ts";

/** One tensor of the file, with what lies in it. */
export interface HfTensor {
  name: string;
  shape: readonly number[];
  /** Our tensors that it holds, one below the other before it is turned. */
  ours: readonly string[];
  /** The file has columns where we have rows. */
  turned: boolean;
}

/** Before the names of all tensors but the head's; models that were stored without their head have none. */
export const HF_PREFIX = "transformer.";

/** All tensors in the file's order, with HF_PREFIX; a tied head is not stored. */
export function hfGpt2Tensors(spec: ModelSpec): HfTensor[] {
  const { vocab_size: V, block_size: T, n_embd: C, n_layer, tie_word_embeddings } = spec;
  const plain = (name: string, shape: number[], ours: string): HfTensor => ({
    ...{ name: HF_PREFIX + name, shape, ours: [ours], turned: false },
  });
  const layers = Array.from({ length: n_layer }, (_, layer) => layerTensors(spec, layer));
  return [
    plain("wte.weight", [V, C], EMBEDDING_NAME),
    plain("wpe.weight", [T, C], POSITIONS_NAME),
    ...layers.flat(),
    plain("ln_f.weight", [C], FINAL_NORM_NAME),
    plain("ln_f.bias", [C], FINAL_BIAS_NAME),
    ...(tie_word_embeddings ? [] : [{ name: HEAD_NAME, shape: [V, C], ours: [HEAD_NAME], turned: false }]),
  ];
}

function layerTensors({ n_embd: C, n_inner: I }: ModelSpec, layer: number): HfTensor[] {
  const at = `${HF_PREFIX}h.${layer}`, ours = `model.layers.${layer}`;
  const norm = (name: string, own: string): HfTensor[] =>
    ["weight", "bias"].map((kind) => ({
      ...{ name: `${at}.${name}.${kind}`, shape: [C], ours: [`${ours}.${own}.${kind}`], turned: false },
    }));
  const linear = (name: string, [into, out]: [number, number], own: readonly string[]): HfTensor[] => [
    {
      ...{ name: `${at}.${name}.weight`, shape: [into, out], turned: true },
      ours: own.map((part) => `${ours}.${part}.weight`),
    },
    {
      ...{ name: `${at}.${name}.bias`, shape: [out], turned: false },
      ours: own.map((part) => `${ours}.${part}.bias`),
    },
  ];
  const heads = ["q", "k", "v"].map((name) => `self_attn.${name}_proj`);
  return [
    ...norm("ln_1", "input_layernorm"),
    ...linear("attn.c_attn", [C, 3 * C], heads),
    ...linear("attn.c_proj", [C, C], ["self_attn.o_proj"]),
    ...norm("ln_2", "post_attention_layernorm"),
    ...linear("mlp.c_fc", [C, I], ["mlp.up_proj"]),
    ...linear("mlp.c_proj", [I, C], ["mlp.down_proj"]),
  ];
}

/** A [rows, columns] matrix with rows and columns exchanged. */
export function turn(values: Float32Array, rows: number, columns: number): Float32Array {
  const out = new Float32Array(values.length);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) out[c * rows + r] = values[r * columns + c]!;
  }
  return out;
}

/** Hugging Face's config.json for GPT2LMHeadModel. */
export function gpt2Config(spec: ModelSpec): Record<string, unknown> {
  return {
    architectures: ["GPT2LMHeadModel"],
    model_type: "gpt2",
    torch_dtype: "float32",
    vocab_size: spec.vocab_size,
    n_positions: spec.block_size,
    n_ctx: spec.block_size,
    n_embd: spec.n_embd,
    n_layer: spec.n_layer,
    n_head: spec.n_head,
    n_inner: spec.n_inner,
    // Said for readers that know other names, such as transformers.js.
    head_dim: headDim(spec),
    activation_function: "gelu_new",
    layer_norm_epsilon: spec.norm_eps,
    scale_attn_weights: true,
    scale_attn_by_inverse_layer_idx: false,
    reorder_and_upcast_attn: false,
    // Trained without, and trained on without.
    ...{ resid_pdrop: 0, embd_pdrop: 0, attn_pdrop: 0 },
    tie_word_embeddings: spec.tie_word_embeddings,
    // Said outright, because GPT-2's default is token 50256, which need not be the end of a text here.
    ...{ bos_token_id: null, eos_token_id: null, pad_token_id: null },
  };
}
