// A small GPT-2 in Hugging Face's layout, drawn from a seed, and what it computes: the forward pass of transformers'
// GPT2LMHeadModel, written from its definition in double precision. Shares nothing with our kernels, references or layout.
import type { Weights } from "./llama.ts";
import { encodeFile } from "./safetensors_writer.ts";

/** config.json's names. */
export interface Gpt2Shape {
  vocab_size: number;
  n_positions: number;
  n_embd: number;
  n_layer: number;
  n_head: number;
  n_inner: number | null;
  layer_norm_epsilon: number;
  tie_word_embeddings: boolean;
}

/** Values that f32, f16 and bf16 all hold exactly: multiples of 1/64 up to 1.5. */
export function drawGpt2(shape: Gpt2Shape, seed: number): Weights {
  const weights: Weights = new Map();
  let state = seed >>> 0;
  const draw = (name: string, dims: number[], scale: number, middle = 0) => {
    const values = Float64Array.from({ length: dims.reduce((a, b) => a * b, 1) }, () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return middle + Math.round((state / 2 ** 32 * 2 - 1) * scale * 64) / 64;
    });
    weights.set(name, { shape: dims, values });
  };
  const { n_embd: C, vocab_size: V, n_positions: T } = shape, I = shape.n_inner ?? 4 * C;
  const norm = (name: string) => {
    draw(`${name}.weight`, [C], 0.5, 1);
    draw(`${name}.bias`, [C], 0.5);
  };
  /** A Conv1D: [in, out]. */
  const conv = (name: string, into: number, out: number) => {
    draw(`${name}.weight`, [into, out], 0.6);
    draw(`${name}.bias`, [out], 0.5);
  };
  draw("transformer.wte.weight", [V, C], 1);
  draw("transformer.wpe.weight", [T, C], 1);
  for (let layer = 0; layer < shape.n_layer; layer++) {
    const at = `transformer.h.${layer}`;
    norm(`${at}.ln_1`);
    conv(`${at}.attn.c_attn`, C, 3 * C);
    conv(`${at}.attn.c_proj`, C, C);
    norm(`${at}.ln_2`);
    conv(`${at}.mlp.c_fc`, C, I);
    conv(`${at}.mlp.c_proj`, I, C);
  }
  norm("transformer.ln_f");
  if (!shape.tie_word_embeddings) draw("lm_head.weight", [V, C], 1);
  return weights;
}

/** Rows of logits after each token. */
export function gpt2Logits(shape: Gpt2Shape, weights: Weights, tokens: readonly number[]): number[][] {
  const get = (name: string) => weights.get(name)!.values;
  const { n_embd: C, layer_norm_epsilon: eps } = shape;
  const norm = (name: string, row: number[]): number[] => {
    const mean = row.reduce((sum, value) => sum + value, 0) / C;
    const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / C;
    const gain = get(`${name}.weight`), bias = get(`${name}.bias`);
    return row.map((value, c) => (value - mean) / Math.sqrt(variance + eps) * gain[c]! + bias[c]!);
  };
  const conv = (name: string, row: number[]): number[] => {
    const weight = get(`${name}.weight`), out = [...get(`${name}.bias`)];
    row.forEach((value, i) => out.forEach((_, o) => out[o]! += value * weight[i * out.length + o]!));
    return out;
  };
  let hidden = tokens.map((token, t) =>
    Array.from({ length: C }, (_, c) => {
      return get("transformer.wte.weight")[token * C + c]! + get("transformer.wpe.weight")[t * C + c]!;
    })
  );
  for (let layer = 0; layer < shape.n_layer; layer++) {
    const at = `transformer.h.${layer}`;
    const packed = hidden.map((row) => conv(`${at}.attn.c_attn`, norm(`${at}.ln_1`, row)));
    const mixed = attention(shape, packed);
    hidden = hidden.map((row, t) => plus(row, conv(`${at}.attn.c_proj`, mixed[t]!)));
    hidden = hidden.map((row) => {
      const inner = conv(`${at}.mlp.c_fc`, norm(`${at}.ln_2`, row)).map(geluNew);
      return plus(row, conv(`${at}.mlp.c_proj`, inner));
    });
  }
  const head = get(shape.tie_word_embeddings ? "transformer.wte.weight" : "lm_head.weight");
  return hidden.map((row) => {
    const last = norm("transformer.ln_f", row);
    return Array.from(
      { length: shape.vocab_size },
      (_, v) => dot(last, [...head.subarray(v * C, (v + 1) * C)]),
    );
  });
}

/** Mean cross-entropy in nats of each token after those before it. */
export function gpt2Loss(shape: Gpt2Shape, weights: Weights, tokens: readonly number[]): number {
  const rows = gpt2Logits(shape, weights, tokens.slice(0, -1));
  const losses = rows.map((row, t) => {
    const most = Math.max(...row);
    return most + Math.log(row.reduce((sum, value) => sum + Math.exp(value - most), 0)) -
      row[tokens[t + 1]!]!;
  });
  return losses.reduce((sum, loss) => sum + loss, 0) / losses.length;
}

function geluNew(x: number): number {
  return 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * Math.pow(x, 3))));
}

/** Rows of q, k and v side by side -> rows of attended values. */
function attention({ n_head: H, n_embd: C }: Gpt2Shape, packed: number[][]): number[][] {
  const D = C / H;
  const part = (row: number[], which: number, h: number) =>
    row.slice(which * C + h * D, which * C + (h + 1) * D);
  return packed.map((row, t) =>
    Array.from({ length: H }, (_, h) => {
      const seen = packed.slice(0, t + 1);
      const scores = seen.map((other) => dot(part(row, 0, h), part(other, 1, h)) / Math.sqrt(D));
      const most = Math.max(...scores), exps = scores.map((score) => Math.exp(score - most));
      const sum = exps.reduce((a, b) => a + b, 0);
      return Array.from({ length: D }, (_, d) => {
        return exps.reduce((total, weight, s) => total + weight / sum * part(seen[s]!, 2, h)[d]!, 0);
      });
    }).flat()
  );
}

function plus(a: number[], b: number[]): number[] {
  return a.map((value, i) => value + b[i]!);
}

function dot(a: number[], b: number[]): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

export interface Gpt2Files {
  shape: Gpt2Shape;
  weights: Weights;
  dtype: "F32" | "F16" | "BF16";
  /** As the first published files are: without the prefix of the names, with the causal masks. */
  bare?: boolean;
  /** Keys over those of config.json. */
  config?: Record<string, unknown>;
  tokenizer: Record<string, unknown>;
}

/** Writes a model's folder as save_pretrained would. */
export async function writeGpt2(folder: string, files: Gpt2Files): Promise<void> {
  const { shape, weights, dtype, bare = false, config = {}, tokenizer } = files;
  await Deno.mkdir(folder, { recursive: true });
  const about = { architectures: ["GPT2LMHeadModel"], model_type: "gpt2", ...shape, ...config };
  await Deno.writeTextFile(`${folder}/config.json`, JSON.stringify(about));
  await Deno.writeTextFile(`${folder}/tokenizer.json`, JSON.stringify(tokenizer));
  const stored = new Map(bare ? withMasks(shape, weights) : weights);
  await Deno.writeFile(`${folder}/model.safetensors`, encodeFile([...stored], dtype));
}

function withMasks({ n_layer, n_positions: T }: Gpt2Shape, weights: Weights): Weights {
  const named = [...weights].map(([name, tensor]) => [name.replace("transformer.", ""), tensor] as const);
  const mask = { shape: [1, 1, T, T], values: new Float64Array(T * T).fill(1) };
  const masks = Array.from({ length: n_layer }, (_, layer) => [`h.${layer}.attn.bias`, mask] as const);
  const hidden = { shape: [], values: Float64Array.of(-10_000) };
  return new Map([...named, ...masks, ["h.0.attn.masked_bias", hidden] as const]);
}
