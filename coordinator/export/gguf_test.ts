// The GGUF file as an independent reader sees it: metadata, table, alignment, and every tensor's values in its place.
// That llama.cpp computes the same with it is shown in test/e2e/export_gguf_test.ts.
import assert from "node:assert/strict";
import { gguf } from "@huggingface/gguf";
import { stageLayout, wholeModel } from "../../peer/model/layout.ts";
import {
  AWKWARD_VOCAB,
  inTempFolder,
  planOf,
  type Wish,
  writeTiny,
} from "../../test/support/export_support.ts";
import { interleaveRows } from "./gguf.ts";
import { escapeToken } from "./gguf_tokenizer.ts";
import { openCheckpoint } from "./source.ts";
import { writeExport } from "./write.ts";

/** Numbers of ggml's types. */
const F32 = 0, F16 = 1, Q8_0 = 8, BF16 = 30;

interface Read {
  parsed: Awaited<ReturnType<typeof gguf>>;
  file: Uint8Array;
  /** The checkpoint's tensors under our names. */
  ours: Map<string, Float32Array>;
}

/** Rows of 64 are whole blocks of Q8_0, rows of 10 are not. */
async function read(wish: Omit<Wish, "format">, tied = false): Promise<Read> {
  return await inTempFolder(async (folder) => {
    const shape = { n_embd: 64, n_inner: 10, tie_word_embeddings: tied };
    using source = await openCheckpoint(await writeTiny(folder, shape));
    const path = await writeExport(planOf(source, { format: "gguf", ...wish }), `${folder}/out.gguf`);
    const ours = new Map<string, Float32Array>();
    for (const { name } of stageLayout(source.spec, wholeModel(source.spec)).tensors) {
      ours.set(name, await source.read(name));
    }
    return { parsed: await gguf(path, { allowLocalFile: true }), file: await Deno.readFile(path), ours };
  });
}

/** A view of one tensor's bytes; `length` in bytes. */
function dataOf({ parsed, file }: Read, name: string, length: number): DataView {
  const info = parsed.tensorInfos.find((it) => it.name === name);
  assert.ok(info, `no tensor ${name}`);
  const at = Number(parsed.tensorDataOffset + info.offset);
  assert.equal(at % 32, 0, `${name} is aligned`);
  assert.ok(at + length <= file.length);
  return new DataView(file.buffer, file.byteOffset + at, length);
}

function f32Of(it: Read, name: string, count: number): number[] {
  const view = dataOf(it, name, 4 * count);
  return Array.from({ length: count }, (_, i) => view.getFloat32(4 * i, true));
}

Deno.test("gguf: an independent reader finds the metadata of llama.cpp's converter", async () => {
  const { parsed: { metadata } } = await read({ dtype: "f16", name: "Ein Modell" });
  const { "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, ...rest } = metadata as Record<
    string,
    unknown
  >;
  assert.deepEqual(rest, {
    ...{ version: 3, tensor_count: 21n, kv_count: 24n },
    "general.architecture": "llama",
    "general.type": "model",
    "general.name": "Ein Modell",
    "general.description":
      "A character-level language model of 31424 parameters, trained with Shoal on moby-dick for 7 steps",
    "general.license": "public domain",
    "general.file_type": 1,
    "general.quantization_version": 2,
    "llama.vocab_size": AWKWARD_VOCAB.length,
    "llama.context_length": 8,
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.feed_forward_length": 10,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.key_length": 32,
    "llama.attention.value_length": 32,
    "llama.attention.layer_norm_rms_epsilon": Math.fround(1e-5),
    "llama.rope.dimension_count": 32,
    "llama.rope.freq_base": 10000,
    "tokenizer.ggml.model": "rwkv",
    "tokenizer.ggml.add_bos_token": false,
    "tokenizer.ggml.add_eos_token": false,
  });
  assert.deepEqual(tokens, AWKWARD_VOCAB.map(escapeToken));
  assert.deepEqual(types, AWKWARD_VOCAB.map(() => 1));
});

Deno.test("gguf: tokens are escaped as llama.cpp unescapes them", () => {
  const escaped = [..."\0\t\n\r\x7f\\ aé🐋"].map(escapeToken);
  assert.deepEqual(escaped, ["\\x00", "\\x09", "\\x0a", "\\x0d", "\\x7f", "\\\\", " ", "a", "é", "🐋"]);
});

Deno.test("gguf: every tensor has llama.cpp's name, shape and type", async () => {
  for (
    const [dtype, matrix, odd] of [["f32", F32, F32], ["f16", F16, F16], ["bf16", BF16, BF16], [
      "q8_0",
      Q8_0,
      F16,
    ]] as const
  ) {
    const { parsed } = await read({ dtype });
    const V = BigInt(AWKWARD_VOCAB.length);
    const layer = (i: number) => [
      [`blk.${i}.attn_norm.weight`, [64n], F32],
      [`blk.${i}.attn_q.weight`, [64n, 64n], matrix],
      [`blk.${i}.attn_k.weight`, [64n, 32n], matrix],
      [`blk.${i}.attn_v.weight`, [64n, 32n], matrix],
      [`blk.${i}.attn_output.weight`, [64n, 64n], matrix],
      [`blk.${i}.ffn_norm.weight`, [64n], F32],
      [`blk.${i}.ffn_gate.weight`, [64n, 10n], matrix],
      [`blk.${i}.ffn_up.weight`, [64n, 10n], matrix],
      // A row of 10 is no whole block.
      [`blk.${i}.ffn_down.weight`, [10n, 64n], odd],
    ];
    assert.deepEqual(parsed.tensorInfos.map(({ name, shape, dtype }) => [name, shape, dtype]), [
      ["token_embd.weight", [64n, V], matrix],
      ...layer(0),
      ...layer(1),
      ["output_norm.weight", [64n], F32],
      ["output.weight", [64n, V], matrix],
    ]);
  }
});

Deno.test("gguf: a tied head is left out, since llama.cpp takes the embedding", async () => {
  const { parsed } = await read({ dtype: "f32" }, true);
  const names = parsed.tensorInfos.map(({ name }) => name);
  assert.equal(names.length, 20);
  assert.ok(!names.includes("output.weight"));
});

Deno.test("gguf: values lie where the table says, queries and keys in llama.cpp's order of rows", async () => {
  const it = await read({ dtype: "f32" });
  const same = [
    ["token_embd.weight", "model.embed_tokens.weight"],
    ["blk.1.attn_norm.weight", "model.layers.1.input_layernorm.weight"],
    ["blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"],
    ["blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"],
    ["output.weight", "lm_head.weight"],
  ] as const;
  for (const [theirs, ours] of same) {
    const values = it.ours.get(ours)!;
    assert.deepEqual(f32Of(it, theirs, values.length), [...values], theirs);
  }
  const queries = it.ours.get("model.layers.1.self_attn.q_proj.weight")!;
  const stored = f32Of(it, "blk.1.attn_q.weight", queries.length);
  const row = (values: ArrayLike<number>, i: number) => Array.from(values).slice(i * 64, (i + 1) * 64);
  // Head 1 of width 32 begins at row 32; its element 3 and its partner 3 + 16 become neighbours.
  assert.deepEqual(row(stored, 32 + 6), row(queries, 32 + 3));
  assert.deepEqual(row(stored, 32 + 7), row(queries, 32 + 3 + 16));
  const keys = it.ours.get("model.layers.1.self_attn.k_proj.weight")!;
  const storedKeys = f32Of(it, "blk.1.attn_k.weight", keys.length);
  assert.deepEqual([row(storedKeys, 4), row(storedKeys, 5)], [row(keys, 2), row(keys, 2 + 16)]);
});

Deno.test("gguf: rows of a head are interleaved, each once", () => {
  const rows = Float32Array.from({ length: 2 * 6 * 2 }, (_, i) => Math.floor(i / 2));
  const order = [...interleaveRows(rows, 2, 2)].filter((_, i) => i % 2 === 0);
  assert.deepEqual(order, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
});

Deno.test("gguf: Q8_0 rows are blocks of a scale and 32 codes", async () => {
  const it = await read({ dtype: "q8_0" });
  const ours = it.ours.get("model.layers.0.mlp.gate_proj.weight")!;
  const view = dataOf(it, "blk.0.ffn_gate.weight", ours.length / 32 * 34);
  let worst = 0;
  ours.forEach((value, i) => {
    const block = Math.floor(i / 32) * 34;
    const scale = view.getFloat16(block, true);
    worst = Math.max(worst, Math.abs(scale * view.getInt8(block + 2 + i % 32) - value) / scale);
  });
  // Half a step, and what the scale's own eleven bits do to a code of 127.
  assert.ok(worst > 0.3 && worst < 0.5 + 127 * 2 ** -11, String(worst));
});
