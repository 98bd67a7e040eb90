// Hugging Face's config.json of a GPT-2 -> the keys of our configuration that are the model's shape. Pure; model_config.ts has
// seen to the architecture. What our kernels do not compute is refused by name, as in llama_config.ts.
import { refuse, type Result } from "../../peer/wire/errors.ts";
import { positive, shown, whole } from "./json.ts";
import type { ModelConfig } from "./model_config.ts";

/** Names of the one GELU that our kernels have; the exact one, "gelu", is another. */
const ACTIVATIONS: readonly unknown[] = ["gelu_new", "gelu_pytorch_tanh"];
/** Width of the inner layer over the model's, where it is not said. */
const WIDENING = 4;

/** Keys of other attentions, and what ours has. */
const ATTENTION = {
  scale_attn_weights: true,
  scale_attn_by_inverse_layer_idx: false,
  add_cross_attention: false,
};

/** With the defaults of transformers' GPT2Config for what is left out. */
export function readGpt2Config(json: Record<string, unknown>): Result<ModelConfig> {
  const act = json.activation_function ?? "gelu_new";
  if (!ACTIVATIONS.includes(act)) {
    return refuse("bad-model", `config.json: activation_function is ${shown(act)}; our layers have gelu_new`);
  }
  for (const [name, ours] of Object.entries(ATTENTION)) {
    const value = json[name] ?? ours;
    if (value === ours) continue;
    return refuse("bad-model", `config.json: ${name} is ${shown(value)}; in our layers it is ${ours}`);
  }
  const n_embd = whole(json, "n_embd"), n_head = whole(json, "n_head");
  const sizes = {
    ...{ n_embd, n_head, n_layer: whole(json, "n_layer"), vocab_size: whole(json, "vocab_size") },
    n_inner: whole(json, "n_inner", n_embd === null ? null : WIDENING * n_embd),
    n_positions: whole(json, "n_positions", 1024),
    layer_norm_epsilon: positive(json.layer_norm_epsilon ?? 1e-5),
  };
  const missing = Object.entries(sizes).find(([, value]) => value === null);
  if (missing) return refuse("bad-model", `config.json: ${missing[0]} is missing or no number above 0`);
  const { n_positions: positionsMax, vocab_size: vocabSize, layer_norm_epsilon: norm_eps, ...rest } =
    sizes as Record<keyof typeof sizes, number>;
  const shape = {
    ...{ ...rest, norm_eps, architecture: "gpt2" as const, n_kv_head: rest.n_head },
    tie_word_embeddings: json.tie_word_embeddings !== false,
  };
  return { ok: true, value: { shape, vocabSize, positionsMax } };
}
