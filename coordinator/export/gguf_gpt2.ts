// What llama.cpp's "gpt2" architecture calls the metadata and tensors of a GPT-2. Pure; the file itself is gguf.ts' business. Its
// matrices are [out, in] like ours, with q, k and v joined, so only names change.
import { HF_PREFIX, hfGpt2Tensors } from "../../peer/model/hf_gpt2.ts";
import { HEAD_NAME } from "../../peer/model/layout.ts";
import { assert } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import type { GgufValue } from "./gguf_writer.ts";
import type { WeightSource } from "./source.ts";
import { storedGpt2, type StoredTensor } from "./stored.ts";

/** Learned positions; llama.cpp's converter keeps them in f32, whatever the other matrices are. */
export const GGUF_POSITIONS = "position_embd.weight";

/** transformers' names after the prefix of model and layer -> llama.cpp's. */
const NAMES: Readonly<Record<string, string>> = {
  "wte": "token_embd",
  "wpe": "position_embd",
  "ln_f": "output_norm",
  "ln_1": "attn_norm",
  "attn.c_attn": "attn_qkv",
  "attn.c_proj": "attn_output",
  "ln_2": "ffn_norm",
  "mlp.c_fc": "ffn_up",
  "mlp.c_proj": "ffn_down",
};

export function gpt2Metadata(spec: ModelSpec): Record<string, GgufValue> {
  const u32 = (value: number): GgufValue => ({ type: "u32", value });
  return {
    "gpt2.vocab_size": u32(spec.vocab_size),
    "gpt2.context_length": u32(spec.block_size),
    "gpt2.embedding_length": u32(spec.n_embd),
    "gpt2.feed_forward_length": u32(spec.n_inner),
    "gpt2.block_count": u32(spec.n_layer),
    "gpt2.attention.head_count": u32(spec.n_head),
    "gpt2.attention.layer_norm_epsilon": { type: "f32", value: spec.norm_eps },
  };
}

/** All tensors under llama.cpp's names, [out, in]. A tied head is not written: the embedding is taken for it. */
export function gpt2Tensors(source: WeightSource): StoredTensor[] {
  return hfGpt2Tensors(source.spec).map((tensor) => {
    const shape = tensor.turned ? tensor.shape.toReversed() : tensor.shape;
    return storedGpt2(source, { ...tensor, name: gpt2GgufName(tensor.name), shape, turned: false });
  });
}

/** Its name of a tensor of transformers' GPT-2. */
export function gpt2GgufName(name: string): string {
  if (name === HEAD_NAME) return "output.weight";
  const match = /^(?:h\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(name.slice(HF_PREFIX.length));
  const inner = NAMES[match?.[2] ?? ""];
  assert(match && inner !== undefined, `tensor ${name} has a name in GGUF`);
  return `${match[1] === undefined ? "" : `blk.${match[1]}.`}${inner}.${match[3]}`;
}
