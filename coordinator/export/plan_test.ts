// Which files an export has, that their sizes are known beforehand, and which wishes are refused. Also the Hugging Face folder's
// JSON files; what real programs make of all this is in clients_test.ts.
import assert from "node:assert/strict";
import { Tokenizer } from "@huggingface/tokenizers";
import { charTokenizer } from "../../peer/model/tokenizer.ts";
import {
  AWKWARD_VOCAB,
  bytesOf,
  inTempFolder,
  planOf,
  TINY_SHAPE,
  type Wish,
  writeTiny,
} from "../../test/support/export_support.ts";
import { type ExportFile, totalBytes } from "./pieces.ts";
import { type ExportPlan, fileStem, readFormat } from "./plan.ts";
import { openCheckpoint } from "./source.ts";

interface Made {
  plan: ExportPlan;
  /** Content of each file. */
  files: Map<string, Uint8Array>;
  json(name: string): Record<string, unknown>;
}

async function make(wish: Wish): Promise<Made> {
  return await inTempFolder(async (folder) => {
    using source = await openCheckpoint(await writeTiny(folder));
    const plan = planOf(source, wish);
    const files = new Map<string, Uint8Array>();
    for (const file of plan.files) files.set(file.name, await bytesOf(file.pieces));
    const json = (name: string) => JSON.parse(new TextDecoder().decode(files.get(name)));
    return { plan, files, json };
  });
}

const COMMON = [
  "README.md",
  "config.json",
  "generation_config.json",
  "tokenizer.json",
  "tokenizer_config.json",
];

Deno.test("plan: each format has its files, and as many bytes as were promised", async () => {
  const expected: [Wish, string[]][] = [
    [{ format: "hf", dtype: "f32" }, [...COMMON, "model.safetensors"]],
    [{ format: "gguf", dtype: "q8_0", name: "Évening class!" }, ["evening-class-q8_0.gguf"]],
    [{ format: "onnx", dtype: "f32" }, [...COMMON, "onnx/model.onnx"]],
    [{ format: "onnx", dtype: "f16" }, [...COMMON, "onnx/model_fp16.onnx"]],
    [{ format: "onnx", dtype: "f32", inlineBytesMax: 1000 }, [
      ...COMMON,
      "onnx/model.onnx",
      "onnx/model.onnx_data",
    ]],
  ];
  for (const [wish, names] of expected) {
    const { plan, files } = await make(wish);
    assert.deepEqual([...files.keys()], names);
    assert.equal(plan.kind, wish.format === "gguf" ? "file" : "folder");
    assert.equal(plan.bytes, [...files.values()].reduce((sum, { length }) => sum + length, 0));
    const sizeOf = ({ pieces }: ExportFile) => totalBytes(pieces);
    assert.deepEqual(plan.files.map(sizeOf), [...files.values()].map(({ length }) => length));
  }
});

Deno.test("plan: two exports of one checkpoint are the same bytes", async () => {
  for (
    const wish of [{ format: "hf", dtype: "f16" }, { format: "gguf", dtype: "f32" }, {
      format: "onnx",
      dtype: "f32",
    }] as const
  ) {
    const [a, b] = [await make(wish), await make(wish)];
    assert.deepEqual(a.files, b.files);
  }
});

Deno.test("plan: types that a format does not have are refused with those it has", () => {
  const refusals: [string, string, RegExp][] = [
    ["pt", "f32", /format "pt" is not one of hf, gguf, onnx/],
    ["hf", "q8_0", /dtype "q8_0" does not go with hf; use f32, f16, bf16/],
    ["onnx", "bf16", /does not go with onnx; use f32, f16$/],
    ["gguf", "int4", /dtype "int4" does not go with gguf; use f32, f16, bf16, q8_0/],
  ];
  for (const [format, dtype, message] of refusals) {
    assert.throws(() => readFormat(format, dtype), { code: "usage", message });
  }
  assert.deepEqual(readFormat("gguf", "q8_0"), { format: "gguf", dtype: "q8_0" });
});

Deno.test("hf: shards keep to their limit, and the index leads to every tensor and counts the bytes", async () => {
  const whole = await make({ format: "hf", dtype: "f16" });
  const size = whole.files.get("model.safetensors")!.length;
  const { files, json } = await make({ format: "hf", dtype: "f16", shardBytes: 600 });
  const shards = [...files.keys()].filter((name) => name.endsWith(".safetensors"));
  assert.ok(shards.length >= 3);
  assert.equal(shards[0], `model-00001-of-0000${shards.length}.safetensors`);
  const { metadata, weight_map: map } = json("model.safetensors.index.json") as {
    metadata: { total_size: number };
    weight_map: Record<string, string>;
  };
  assert.deepEqual([...new Set(Object.values(map))].sort(), shards);
  assert.equal(Object.keys(map).length, 21);
  const headerBytes = (file: Uint8Array) => 8 + Number(new DataView(file.buffer).getBigUint64(0, true));
  const data = shards.map((name) => files.get(name)!.length - headerBytes(files.get(name)!));
  // A tensor that is larger than the limit has a shard of its own.
  shards.forEach((shard, i) =>
    assert.ok(data[i]! <= 600 || Object.values(map).filter((it) => it === shard).length === 1)
  );
  assert.equal(metadata.total_size, data.reduce((sum, bytes) => sum + bytes));
  assert.ok(metadata.total_size < size);
});

Deno.test("hf: the configuration is Llama's, and no character ends a text", async () => {
  const { json } = await make({ format: "hf", dtype: "bf16" });
  const config = json("config.json");
  const shape = {
    ...{
      hidden_size: 12,
      intermediate_size: 10,
      num_hidden_layers: 2,
      num_attention_heads: 2,
      num_key_value_heads: 1,
    },
    ...{ head_dim: 6, max_position_embeddings: 8, vocab_size: AWKWARD_VOCAB.length, rope_theta: 10000 },
    ...{
      model_type: "llama",
      architectures: ["LlamaForCausalLM"],
      hidden_act: "silu",
      torch_dtype: "bfloat16",
    },
    ...{ tie_word_embeddings: false, attention_bias: false, mlp_bias: false, rms_norm_eps: 1e-5 },
    rope_parameters: { rope_type: "default", rope_theta: 10000 },
  };
  for (const [key, value] of Object.entries(shape)) assert.deepEqual(config[key], value, key);
  for (const file of ["config.json", "generation_config.json"]) {
    // Absent would mean Llama's defaults, tokens 1 and 2.
    for (const key of ["bos_token_id", "eos_token_id", "pad_token_id"]) {
      assert.equal(json(file)[key], null, key);
    }
  }
  assert.equal(TINY_SHAPE.block_size, json("tokenizer_config.json").model_max_length);
});

Deno.test("hf: the tokenizer keeps awkward characters apart", async () => {
  const { json } = await make({ format: "hf", dtype: "f32" });
  const tokenizer = new Tokenizer(json("tokenizer.json"), json("tokenizer_config.json"));
  const ours = charTokenizer(AWKWARD_VOCAB);
  for (const text of [AWKWARD_VOCAB.join(""), "🐋漢🐋", "<x09|\\x09\t", "a  a\r\n\0▁ é", "'9' 'z "]) {
    assert.deepEqual(tokenizer.encode(text).ids, [...ours.encode(text)], JSON.stringify(text));
    assert.equal(tokenizer.decode([...ours.encode(text)]), text);
  }
});

Deno.test("plan: names of files are plain", () => {
  assert.deepEqual(["Evening class 3", "../x", "漢", "", "a".repeat(99)].map(fileStem), [
    ...["evening-class-3", "x", "model", "model", "a".repeat(60)],
  ]);
});
