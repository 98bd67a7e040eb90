// A trained model as llama.cpp reads it: metadata and tensors of its "llama" architecture, or of "gpt2" (gguf_gpt2.ts), in one GGUF
// file. Pure. llama.cpp rotates neighbouring elements of a head where we and Hugging Face pair element i with i + D/2, so the rows of
// the query and key projections are put in its order; everything else keeps its values.
import { EMBEDDING_NAME, FINAL_NORM_NAME, HEAD_NAME, headDim, isGpt2 } from "../../peer/model/layout.ts";
import { assert } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { dtypeBytes, encodeValues, type ExportDtype, Q8_BLOCK } from "./dtypes.ts";
import { GGUF_POSITIONS, gpt2Metadata, gpt2Tensors } from "./gguf_gpt2.ts";
import { tokenizerMetadata } from "./gguf_tokenizer.ts";
import { ggufPieces, type GgufTensor, type GgufValue } from "./gguf_writer.ts";
import type { LazyBytes, Piece } from "./pieces.ts";
import type { WeightSource } from "./source.ts";
import { type StoredTensor, storedTensors } from "./stored.ts";

export interface GgufAbout {
  name: string;
  description: string;
  license: string | null;
  /** Names by token number. */
  vocab: readonly string[];
  /** Text of the tokenizer.json that the model has instead of characters; null: it has none. */
  tokenizer: string | null;
}

/** llama.cpp's numbers for what most tensors of a file are. */
export const FILE_TYPE: Readonly<Record<ExportDtype, number>> = { f32: 0, f16: 1, q8_0: 7, bf16: 32 };
/** Version of the quantised types' layout. */
const QUANTIZATION_VERSION = 2;

/** Our name of a layer's tensor -> llama.cpp's. */
const LAYER_NAMES: Readonly<Record<string, string>> = {
  "input_layernorm.weight": "attn_norm.weight",
  "self_attn.q_proj.weight": "attn_q.weight",
  "self_attn.k_proj.weight": "attn_k.weight",
  "self_attn.v_proj.weight": "attn_v.weight",
  "self_attn.o_proj.weight": "attn_output.weight",
  "post_attention_layernorm.weight": "ffn_norm.weight",
  "mlp.gate_proj.weight": "ffn_gate.weight",
  "mlp.up_proj.weight": "ffn_up.weight",
  "mlp.down_proj.weight": "ffn_down.weight",
};
const END_NAMES: Readonly<Record<string, string>> = {
  [EMBEDDING_NAME]: "token_embd.weight",
  [FINAL_NORM_NAME]: "output_norm.weight",
  [HEAD_NAME]: "output.weight",
};

/** The file's pieces. A tied head is not written: llama.cpp takes the embedding where output.weight is missing. */
export function ggufFile(source: WeightSource, dtype: ExportDtype, about: GgufAbout): Piece[] {
  const tensors = isGpt2(source.spec) ? gpt2Tensors(source) : llamaTensors(source);
  return ggufPieces(
    metadataOf(source.spec, dtype, about),
    tensors.map((tensor) => ggufTensor(tensor, dtype)),
  );
}

function metadataOf(spec: ModelSpec, dtype: ExportDtype, about: GgufAbout): Record<string, GgufValue> {
  const u32 = (value: number): GgufValue => ({ type: "u32", value });
  const text = (value: string): GgufValue => ({ type: "string", value });
  return {
    "general.architecture": text(isGpt2(spec) ? "gpt2" : "llama"),
    "general.type": text("model"),
    "general.name": text(about.name),
    "general.description": text(about.description),
    ...(about.license === null ? {} : { "general.license": text(about.license) }),
    "general.file_type": u32(FILE_TYPE[dtype]),
    "general.quantization_version": u32(QUANTIZATION_VERSION),
    ...(isGpt2(spec) ? gpt2Metadata(spec) : llamaMetadata(spec)),
    ...tokenizerMetadata(about.vocab, about.tokenizer),
  };
}

function llamaMetadata(spec: ModelSpec): Record<string, GgufValue> {
  const u32 = (value: number): GgufValue => ({ type: "u32", value });
  const D = headDim(spec);
  return {
    "llama.vocab_size": u32(spec.vocab_size),
    "llama.context_length": u32(spec.block_size),
    "llama.embedding_length": u32(spec.n_embd),
    "llama.block_count": u32(spec.n_layer),
    "llama.feed_forward_length": u32(spec.n_inner),
    "llama.attention.head_count": u32(spec.n_head),
    "llama.attention.head_count_kv": u32(spec.n_kv_head),
    "llama.attention.key_length": u32(D),
    "llama.attention.value_length": u32(D),
    "llama.attention.layer_norm_rms_epsilon": { type: "f32", value: spec.norm_eps },
    "llama.rope.dimension_count": u32(D),
    "llama.rope.freq_base": { type: "f32", value: spec.rope_theta },
  };
}

/** All tensors under llama.cpp's names, with the rows of q and k in its order. */
function llamaTensors(source: WeightSource): StoredTensor[] {
  return storedTensors(source).map((tensor) => {
    const heads = rotatedHeads(source.spec, tensor.name);
    const name = ggufName(tensor.name);
    if (heads === 0) return { ...tensor, name };
    const read = async () => interleaveRows(await tensor.read(), heads, tensor.shape[1]!);
    return { ...tensor, name, read };
  });
}

function ggufTensor({ name, shape, size, read }: StoredTensor, wanted: ExportDtype): GgufTensor {
  const dtype = name === GGUF_POSITIONS ? "f32" : tensorDtype(shape, wanted);
  const data: LazyBytes = {
    bytes: dtypeBytes(dtype, size),
    read: async () => encodeValues(dtype, await read(), name),
  };
  return { name, shape, dtype, data };
}

/** As llama.cpp's converter: vectors stay f32, and a row that is no whole number of blocks cannot be quantised. */
function tensorDtype(shape: readonly number[], wanted: ExportDtype): ExportDtype {
  if (shape.length < 2) return "f32";
  return wanted === "q8_0" && shape[1]! % Q8_BLOCK !== 0 ? "f16" : wanted;
}

/** llama.cpp's name of a Llama's tensor. */
export function ggufName(name: string): string {
  const end = END_NAMES[name];
  if (end !== undefined) return end;
  const match = /^model\.layers\.(\d+)\.(.+)$/.exec(name);
  const inner = LAYER_NAMES[match?.[2] ?? ""];
  assert(match && inner !== undefined, `tensor ${name} has a name in GGUF`);
  return `blk.${match[1]}.${inner}`;
}

/** Heads whose rows the file has in another order; 0 for tensors that rotary embeddings do not touch. */
export function rotatedHeads(spec: ModelSpec, name: string): number {
  if (name.endsWith(".q_proj.weight")) return spec.n_head;
  return name.endsWith(".k_proj.weight") ? spec.n_kv_head : 0;
}

/** Rows i and i + D/2 of each head become rows 2i and 2i + 1. `values` is [heads * D, width]. */
export function interleaveRows(values: Float32Array, heads: number, width: number): Float32Array {
  const D = values.length / width / heads, half = D / 2;
  const out = new Float32Array(values.length);
  for (let head = 0; head < heads; head++) {
    for (let i = 0; i < D; i++) {
      const from = (head * D + (i % 2) * half + (i >> 1)) * width;
      out.set(values.subarray(from, from + width), (head * D + i) * width);
    }
  }
  return out;
}
