// A second reading of Hugging Face's Llama: the safetensors format by its specification, and the forward pass in double
// precision as modeling_llama.py defines it. Written apart from Shoal's own readers and kernels, of which it uses nothing.
// Legend: T tokens, C width, H heads, K heads of keys, D width of a head.

export interface LoadedTensor {
  shape: number[];
  values: Float64Array;
}

/** All tensors of a folder that transformers' save_pretrained could have written, by way of its index if it has one. */
export async function readFolder(folder: string): Promise<Map<string, LoadedTensor>> {
  const index = await Deno.readTextFile(`${folder}/model.safetensors.index.json`).catch(() => null);
  const map: Record<string, string> = index === null ? {} : JSON.parse(index).weight_map;
  const files = index === null ? ["model.safetensors"] : [...new Set(Object.values(map))];
  const tensors = new Map<string, LoadedTensor>();
  for (const file of files) {
    for (const [name, tensor] of readSafetensors(await Deno.readFile(`${folder}/${file}`))) {
      if (index !== null && map[name] !== file) {
        throw new Error(`${name} lies in ${file}, not in ${map[name]}`);
      }
      tensors.set(name, tensor);
    }
  }
  const missing = Object.keys(map).find((name) => !tensors.has(name));
  if (missing !== undefined) throw new Error(`the index names ${missing}, which no shard has`);
  return tensors;
}

export function readSafetensors(file: Uint8Array): Map<string, LoadedTensor> {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = Number(view.getBigUint64(0, true));
  if (length % 8 !== 0) throw new Error("the header's length is no multiple of 8");
  const header = JSON.parse(new TextDecoder().decode(file.subarray(8, 8 + length)));
  if (header.__metadata__?.format !== "pt") throw new Error("transformers wants metadata format pt");
  delete header.__metadata__;
  const tensors = new Map<string, LoadedTensor>();
  let end = 0;
  for (const [name, entry] of Object.entries(header) as [string, Entry][]) {
    const [from, to] = entry.data_offsets;
    if (from !== end) throw new Error(`${name} begins at ${from} instead of ${end}`);
    end = to;
    const data = new DataView(file.buffer, file.byteOffset + 8 + length + from, to - from);
    tensors.set(name, { shape: entry.shape, values: decode(entry.dtype, data) });
  }
  if (8 + length + end !== file.length) throw new Error("bytes lie behind the last tensor");
  return tensors;
}

interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

function decode(dtype: string, data: DataView): Float64Array {
  const size = dtype === "F32" ? 4 : 2;
  return Float64Array.from({ length: data.byteLength / size }, (_, i) => {
    if (dtype === "F32") return data.getFloat32(4 * i, true);
    if (dtype === "F16") return data.getFloat16(2 * i, true);
    if (dtype !== "BF16") throw new Error(`type ${dtype}`);
    const wide = new DataView(new ArrayBuffer(4));
    wide.setUint16(2, data.getUint16(2 * i, true), true);
    return wide.getFloat32(0, true);
  });
}

/** What config.json says, under its own names. */
export interface LlamaConfig {
  hidden_size: number;
  num_hidden_layers: number;
  num_attention_heads: number;
  num_key_value_heads: number;
  head_dim: number;
  rms_norm_eps: number;
  rope_theta: number;
  tie_word_embeddings: boolean;
}

type Matrix = Float64Array[];

/** LlamaForCausalLM's logits [T][V] of one sequence. */
export function llamaLogits(
  config: LlamaConfig,
  weights: ReadonlyMap<string, LoadedTensor>,
  tokens: readonly number[],
): number[][] {
  const get = (name: string): LoadedTensor => {
    const tensor = weights.get(name);
    if (tensor === undefined) throw new Error(`no tensor ${name}`);
    return tensor;
  };
  const embed = get("model.embed_tokens.weight"), C = config.hidden_size;
  let x: Matrix = tokens.map((token) => embed.values.slice(token * C, (token + 1) * C));
  for (let i = 0; i < config.num_hidden_layers; i++) {
    const at = `model.layers.${i}`;
    const norm = (name: string, rows: Matrix) =>
      rows.map((row) => rmsNorm(row, get(`${at}.${name}.weight`).values, config.rms_norm_eps));
    const linear = (name: string, rows: Matrix) =>
      rows.map((row) => matvec(get(`${at}.${name}.weight`), row));
    x = plus(x, linear("self_attn.o_proj", attention(config, linear, norm("input_layernorm", x))));
    const normed = norm("post_attention_layernorm", x);
    const gate = linear("mlp.gate_proj", normed), up = linear("mlp.up_proj", normed);
    const act = gate.map((row, t) => row.map((value, j) => value / (1 + Math.exp(-value)) * up[t]![j]!));
    x = plus(x, linear("mlp.down_proj", act));
  }
  const head = config.tie_word_embeddings ? embed : get("lm_head.weight");
  const last = get("model.norm.weight").values;
  return x.map((row) => [...matvec(head, rmsNorm(row, last, config.rms_norm_eps))]);
}

function attention(
  { num_attention_heads: H, num_key_value_heads: K, head_dim: D, rope_theta }: LlamaConfig,
  linear: (name: string, rows: Matrix) => Matrix,
  x: Matrix,
): Matrix {
  const head = (rows: Matrix, h: number) => rows.map((row) => row.slice(h * D, (h + 1) * D));
  const q = linear("self_attn.q_proj", x),
    k = linear("self_attn.k_proj", x),
    v = linear("self_attn.v_proj", x);
  const out: Matrix = x.map(() => new Float64Array(H * D));
  for (let h = 0; h < H; h++) {
    const shared = Math.floor(h / (H / K));
    const queries = head(q, h).map((row, t) => rotate(row, t, rope_theta));
    const keys = head(k, shared).map((row, t) => rotate(row, t, rope_theta));
    const values = head(v, shared);
    queries.forEach((query, t) => {
      const scores = keys.slice(0, t + 1).map((key) => dot(query, key) / Math.sqrt(D));
      const most = Math.max(...scores);
      const weights = scores.map((score) => Math.exp(score - most));
      const sum = weights.reduce((a, b) => a + b);
      weights.forEach((weight, s) => {
        for (let d = 0; d < D; d++) out[t]![h * D + d]! += weight / sum * values[s]![d]!;
      });
    });
  }
  return out;
}

/** x cos + rotate_half(x) sin, with the frequencies repeated once. */
function rotate(x: Float64Array, position: number, theta: number): Float64Array {
  const D = x.length, half = D / 2;
  return x.map((value, i) => {
    const angle = position / theta ** (2 * (i % half) / D);
    const turned = i < half ? -x[i + half]! : x[i - half]!;
    return value * Math.cos(angle) + turned * Math.sin(angle);
  });
}

function rmsNorm(x: Float64Array, weight: Float64Array, eps: number): Float64Array {
  const scale = 1 / Math.sqrt(dot(x, x) / x.length + eps);
  return x.map((value, i) => weight[i]! * value * scale);
}

function matvec({ shape, values }: LoadedTensor, x: Float64Array): Float64Array {
  const [rows, columns] = shape as [number, number];
  return Float64Array.from(
    { length: rows },
    (_, r) => dot(values.subarray(r * columns, (r + 1) * columns), x),
  );
}

function dot(a: Float64Array, b: Float64Array): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

function plus(a: Matrix, b: Matrix): Matrix {
  return a.map((row, t) => row.map((value, i) => value + b[t]![i]!));
}
