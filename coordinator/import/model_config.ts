// Hugging Face's config.json -> whose architecture it is and the keys of our configuration that are the model's shape. Pure. The
// two architectures have a file each; what they share is the result.
import { refuse, type Result } from "../../peer/wire/errors.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { readGpt2Config } from "./gpt2_config.ts";
import { isRecord, shown } from "./json.ts";
import { readLlamaConfig } from "./llama_config.ts";

/** Keys that the model decides; of a GPT-2, which rotates nothing, not the base of the rotation. */
export type ModelShape =
  & Pick<
    RunConfig,
    "architecture" | "n_layer" | "n_head" | "n_kv_head" | "n_embd" | "n_inner" | "tie_word_embeddings"
  >
  & Pick<RunConfig, "norm_eps">
  & Partial<Pick<RunConfig, "rope_theta">>;

export interface ModelConfig {
  shape: ModelShape;
  vocabSize: number;
  /** Positions that the model was trained for. */
  positionsMax: number;
}

const READERS: Readonly<Record<string, (json: Record<string, unknown>) => Result<ModelConfig>>> = {
  LlamaForCausalLM: readLlamaConfig,
  GPT2LMHeadModel: readGpt2Config,
};
/** What a configuration without architectures is called. */
const MODEL_TYPES: Readonly<Record<string, string>> = { llama: "LlamaForCausalLM", gpt2: "GPT2LMHeadModel" };

/** Refuses with bad-model another architecture, and what our kernels do not compute of these two. */
export function readModelConfig(json: unknown): Result<ModelConfig> {
  if (!isRecord(json)) return refuse("bad-model", "config.json is not an object");
  const { architectures, model_type } = json;
  const type = typeof model_type === "string" && Object.hasOwn(MODEL_TYPES, model_type)
    ? MODEL_TYPES[model_type]
    : model_type;
  const named: unknown = Array.isArray(architectures) ? architectures[0] : type;
  if (typeof named !== "string" || !Object.hasOwn(READERS, named)) {
    const known = Object.keys(READERS).join(" and ");
    return refuse(
      "bad-model",
      `config.json: the architecture is ${shown(named)}; only ${known} can be imported`,
    );
  }
  if (json.quantization_config != null) {
    const remedy = "import the model's f32, f16 or bf16 weights";
    return refuse(
      "bad-model",
      `config.json: the weights are quantised (quantization_config); ${remedy}`,
    );
  }
  return READERS[named]!(json);
}
