// Hugging Face's config.json of a Llama -> the keys of our configuration that are the model's shape. Pure; model_config.ts has seen
// to the architecture. What our kernels do not compute is refused by name: a model that is nearly the same would train and write
// nonsense without a word.
import { refuse, type Result } from "../../peer/wire/errors.ts";
import { isRecord, positive, shown, whole } from "./json.ts";
import type { ModelConfig } from "./model_config.ts";

/**
 * With the defaults of transformers' LlamaConfig for what is left out. Refuses with bad-model: biases, scaled rotary positions,
 * another activation, heads of another width.
 */
export function readLlamaConfig(json: Record<string, unknown>): Result<ModelConfig> {
  const foreign = foreignFeature(json);
  if (foreign !== null) return refuse("bad-model", `config.json: ${foreign}`);
  const heads = whole(json, "num_attention_heads");
  const sizes = {
    ...{ n_layer: whole(json, "num_hidden_layers"), n_head: heads, n_embd: whole(json, "hidden_size") },
    ...{ n_inner: whole(json, "intermediate_size"), vocabSize: whole(json, "vocab_size") },
    n_kv_head: whole(json, "num_key_value_heads", heads),
    positionsMax: whole(json, "max_position_embeddings", 2048),
  };
  const numbers = { norm_eps: positive(json.rms_norm_eps ?? 1e-6), rope_theta: positive(thetaOf(json)) };
  for (const [name, value] of Object.entries({ ...sizes, ...numbers })) {
    if (value === null) {
      return refuse("bad-model", `config.json: ${HF_NAMES[name]} is missing or no number above 0`);
    }
  }
  const { vocabSize, positionsMax, ...rest } = sizes as Record<keyof typeof sizes, number>;
  const width = json.head_dim ?? null;
  if (width !== null && width !== rest.n_embd / rest.n_head) {
    const needed = "heads must be hidden_size / num_attention_heads wide";
    return refuse("bad-model", `config.json: head_dim is ${shown(width)}; ${needed}`);
  }
  const tie_word_embeddings = json.tie_word_embeddings === true;
  const own = { tie_word_embeddings, architecture: "llama" as const };
  const shape = { ...rest, ...numbers as Record<keyof typeof numbers, number>, ...own };
  return { ok: true, value: { shape, vocabSize, positionsMax } };
}

const HF_NAMES: Readonly<Record<string, string>> = {
  ...{ n_layer: "num_hidden_layers", n_head: "num_attention_heads", n_kv_head: "num_key_value_heads" },
  ...{ n_embd: "hidden_size", n_inner: "intermediate_size", vocabSize: "vocab_size" },
  ...{ positionsMax: "max_position_embeddings", norm_eps: "rms_norm_eps", rope_theta: "rope_theta" },
};

/** What this model has that ours has not, in words; null if nothing. */
function foreignFeature(json: Record<string, unknown>): string | null {
  for (const name of ["attention_bias", "mlp_bias"]) {
    if (json[name] === true) return `${name} is true; our layers have no biases`;
  }
  const act = json.hidden_act ?? "silu";
  if (act !== "silu" && act !== "swish") return `hidden_act is ${shown(act)}; our layers have silu`;
  const rotary = json.partial_rotary_factor ?? 1;
  if (rotary !== 1) return `partial_rotary_factor is ${shown(rotary)}; ours turns whole heads`;
  return scaledRotary(json);
}

/** transformers 4 has rope_scaling, 5 has rope_parameters; the kind was once called type. */
function scaledRotary(json: Record<string, unknown>): string | null {
  for (const name of ["rope_scaling", "rope_parameters"]) {
    const rope = json[name];
    if (rope === undefined || rope === null) continue;
    const kind = isRecord(rope) ? rope.rope_type ?? rope.type ?? "default" : rope;
    if (kind !== "default") return `${name} is of kind ${shown(kind)}; our rotary positions are not scaled`;
  }
  return null;
}

function thetaOf({ rope_theta, rope_parameters: rope }: Record<string, unknown>): unknown {
  return rope_theta ?? (isRecord(rope) ? rope.rope_theta : undefined) ?? 10_000;
}
