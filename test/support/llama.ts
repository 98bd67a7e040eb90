// A small Llama in Hugging Face's layout, drawn from a seed, and what it computes: the forward pass of transformers'
// LlamaForCausalLM, written from its definition in double precision. Shares nothing with our kernels, references or layout.
import { encodeFile } from "./safetensors_writer.ts";

export interface LlamaShape {
  vocab_size: number;
  hidden_size: number;
  intermediate_size: number;
  num_hidden_layers: number;
  num_attention_heads: number;
  num_key_value_heads: number;
  max_position_embeddings: number;
  rms_norm_eps: number;
  rope_theta: number;
  tie_word_embeddings: boolean;
}

export type Weights = Map<string, { shape: number[]; values: Float64Array }>;

/** Values that f32, f16 and bf16 all hold exactly: multiples of 1/64 up to 1. */
export function drawLlama(shape: LlamaShape, seed: number): Weights {
  const weights: Weights = new Map();
  let state = seed >>> 0;
  const draw = (name: string, dims: number[], scale: number, middle = 0) => {
    const values = Float64Array.from({ length: dims.reduce((a, b) => a * b, 1) }, () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return middle + Math.round((state / 2 ** 32 * 2 - 1) * scale * 64) / 64;
    });
    weights.set(name, { shape: dims, values });
  };
  const { hidden_size: C, intermediate_size: I, vocab_size: V } = shape;
  const width = C / shape.num_attention_heads * shape.num_key_value_heads;
  draw("model.embed_tokens.weight", [V, C], 1);
  for (let layer = 0; layer < shape.num_hidden_layers; layer++) {
    const at = `model.layers.${layer}`;
    draw(`${at}.self_attn.q_proj.weight`, [C, C], 0.6);
    draw(`${at}.self_attn.k_proj.weight`, [width, C], 0.6);
    draw(`${at}.self_attn.v_proj.weight`, [width, C], 0.6);
    draw(`${at}.self_attn.o_proj.weight`, [C, C], 0.6);
    draw(`${at}.mlp.gate_proj.weight`, [I, C], 0.6);
    draw(`${at}.mlp.up_proj.weight`, [I, C], 0.6);
    draw(`${at}.mlp.down_proj.weight`, [C, I], 0.6);
    draw(`${at}.input_layernorm.weight`, [C], 0.5, 1);
    draw(`${at}.post_attention_layernorm.weight`, [C], 0.5, 1);
  }
  draw("model.norm.weight", [C], 0.5, 1);
  if (!shape.tie_word_embeddings) draw("lm_head.weight", [V, C], 1);
  return weights;
}

/** Rows of logits after each token. */
export function llamaLogits(shape: LlamaShape, weights: Weights, tokens: number[]): number[][] {
  const get = (name: string) => weights.get(name)!.values;
  const C = shape.hidden_size;
  let hidden = tokens.map((
    token,
  ) => [...get("model.embed_tokens.weight").subarray(token * C, (token + 1) * C)]);
  for (let layer = 0; layer < shape.num_hidden_layers; layer++) {
    const at = `model.layers.${layer}`;
    const normed = hidden.map((row) => rmsNorm(row, get(`${at}.input_layernorm.weight`), shape.rms_norm_eps));
    const attended = attention(shape, (name) => get(`${at}.self_attn.${name}.weight`), normed);
    hidden = hidden.map((row, i) => row.map((value, c) => value + attended[i]![c]!));
    hidden = hidden.map((row) => {
      const x = rmsNorm(row, get(`${at}.post_attention_layernorm.weight`), shape.rms_norm_eps);
      const gate = linear(get(`${at}.mlp.gate_proj.weight`), x),
        up = linear(get(`${at}.mlp.up_proj.weight`), x);
      const act = gate.map((value, i) => value / (1 + Math.exp(-value)) * up[i]!);
      const down = linear(get(`${at}.mlp.down_proj.weight`), act);
      return row.map((value, c) => value + down[c]!);
    });
  }
  const head = get(shape.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  return hidden.map((row) => linear(head, rmsNorm(row, get("model.norm.weight"), shape.rms_norm_eps)));
}

function linear(weight: Float64Array, x: number[]): number[] {
  const rows = weight.length / x.length;
  return Array.from(
    { length: rows },
    (_, n) => x.reduce((sum, value, k) => sum + weight[n * x.length + k]! * value, 0),
  );
}

function rmsNorm(x: number[], weight: Float64Array, eps: number): number[] {
  const variance = x.reduce((sum, value) => sum + value * value, 0) / x.length;
  return x.map((value, c) => weight[c]! * (value / Math.sqrt(variance + eps)));
}

/** x cos + rotate_half(x) sin, where rotate_half([a, b]) = [-b, a]. */
function rotary(x: number[], position: number, theta: number): number[] {
  const half = x.length / 2;
  return x.map((value, i) => {
    const angle = position / theta ** ((2 * (i % half)) / x.length);
    const turned = i < half ? -x[i + half]! : x[i - half]!;
    return value * Math.cos(angle) + turned * Math.sin(angle);
  });
}

function attention(shape: LlamaShape, get: (name: string) => Float64Array, rows: number[][]): number[][] {
  const heads = shape.num_attention_heads, D = shape.hidden_size / heads;
  const group = heads / shape.num_key_value_heads;
  const split = (row: number[]) =>
    Array.from({ length: row.length / D }, (_, h) => row.slice(h * D, (h + 1) * D));
  const turn = (row: number[], position: number) =>
    split(row).map((head) => rotary(head, position, shape.rope_theta));
  const queries = rows.map((row, i) => turn(linear(get("q_proj"), row), i));
  const keys = rows.map((row, i) => turn(linear(get("k_proj"), row), i));
  const values = rows.map((row) => split(linear(get("v_proj"), row)));
  return rows.map((_, i) => {
    const out = queries[i]!.flatMap((query, h) => {
      const shared = Math.floor(h / group);
      const scores = keys.slice(0, i + 1).map((key) => dot(query, key[shared]!) / Math.sqrt(D));
      const most = Math.max(...scores), exps = scores.map((score) => Math.exp(score - most));
      const sum = exps.reduce((a, b) => a + b, 0);
      return Array.from(
        { length: D },
        (_, d) => exps.reduce((total, weight, s) => total + weight / sum * values[s]![shared]![d]!, 0),
      );
    });
    return linear(get("o_proj"), out);
  });
}

function dot(a: number[], b: number[]): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

export interface LlamaFiles {
  shape: LlamaShape;
  weights: Weights;
  dtype: "F32" | "F16" | "BF16";
  /** Files that the tensors are dealt out to; 1 = model.safetensors. */
  shards: number;
  /** Keys over those of config.json. */
  config?: Record<string, unknown>;
  tokenizer: Record<string, unknown> | null;
}

/** Writes a model's folder as save_pretrained would. */
export async function writeLlama(folder: string, files: LlamaFiles): Promise<void> {
  const { shape, weights, dtype, shards, config = {}, tokenizer } = files;
  await Deno.mkdir(folder, { recursive: true });
  const about = {
    architectures: ["LlamaForCausalLM"],
    model_type: "llama",
    hidden_act: "silu",
    ...shape,
    ...config,
  };
  await Deno.writeTextFile(`${folder}/config.json`, JSON.stringify(about));
  if (tokenizer !== null) await Deno.writeTextFile(`${folder}/tokenizer.json`, JSON.stringify(tokenizer));
  const parts: [string, { shape: number[]; values: Float64Array }][][] = Array.from(
    { length: shards },
    () => [],
  );
  [...weights].forEach((entry, i) => parts[i % shards]!.push(entry));
  const map: Record<string, string> = {};
  for (const [i, part] of parts.entries()) {
    const name = shards === 1 ? "model.safetensors" : `model-0000${i + 1}-of-0000${shards}.safetensors`;
    await Deno.writeFile(`${folder}/${name}`, encodeFile(part, dtype));
    for (const [tensor] of part) map[tensor] = name;
  }
  if (shards === 1) return;
  await Deno.writeTextFile(`${folder}/model.safetensors.index.json`, JSON.stringify({ weight_map: map }));
}

/** tokenizer.json of a character vocabulary. */
export function charTokenizerJson(vocab: readonly string[]): Record<string, unknown> {
  const model = { type: "BPE", vocab: Object.fromEntries(vocab.map((char, id) => [char, id])), merges: [] };
  return {
    version: "1.0",
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: null,
    post_processor: null,
    model,
  };
}

/** tokenizer.json of a byte-level BPE such as GPT-2's: 256 bytes, the merges given, and one token that ends a text. */
export function byteLevelTokenizerJson(merges: readonly string[]): Record<string, unknown> {
  const names = [...byteNames(), ...merges.map((merge) => merge.replace(" ", ""))];
  const byteLevel = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };
  const end = { id: names.length, content: "<|endoftext|>", special: true };
  const added = { ...end, single_word: false, lstrip: false, rstrip: false, normalized: false };
  return {
    ...{ version: "1.0", added_tokens: [added], normalizer: null, post_processor: null },
    ...{ pre_tokenizer: byteLevel, decoder: byteLevel },
    model: { type: "BPE", vocab: Object.fromEntries(names.map((name, id) => [name, id])), merges },
  };
}

/** GPT-2's names of the 256 bytes: themselves where they print, else characters from U+0100 on. */
function byteNames(): string[] {
  let next = 256;
  const prints = (byte: number) => byte >= 33 && byte <= 126 || byte >= 161 && byte <= 172 || byte >= 174;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(prints(byte) ? byte : next++));
}

/** A model of bytes whose training takes seconds, in the words of Hugging Face. */
export const TINY_LLAMA = {
  ...{
    vocab_size: 264,
    hidden_size: 16,
    intermediate_size: 24,
    num_hidden_layers: 2,
    num_attention_heads: 2,
  },
  ...{ num_key_value_heads: 1, max_position_embeddings: 32, rms_norm_eps: 1e-5, rope_theta: 10000 },
  tie_word_embeddings: true,
};
