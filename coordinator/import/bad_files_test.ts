// Files that are no model, or damaged, or made to hurt: each is refused with bad-model and a reason that names the file, before
// memory is taken for what it claims, and the run's folder does not appear.
import assert from "node:assert/strict";
import fc from "fast-check";
import { ShoalError } from "../../peer/wire/errors.ts";
import { inTempFolder } from "../../test/support/checkpoint.ts";
import { charTokenizerJson, drawLlama, type LlamaShape, writeLlama } from "../../test/support/llama.ts";
import { fileOf } from "../../test/support/safetensors_writer.ts";
import { importModel } from "./import_model.ts";

const VOCAB = [..."abc"];
const SHAPE: LlamaShape = {
  ...{ vocab_size: 3, hidden_size: 4, intermediate_size: 6, num_hidden_layers: 1, num_attention_heads: 2 },
  ...{ num_key_value_heads: 1, max_position_embeddings: 4, rms_norm_eps: 1e-5, rope_theta: 10000 },
  tie_word_embeddings: true,
};

async function good(folder: string, shards = 1, config: Record<string, unknown> = {}): Promise<void> {
  const weights = drawLlama(SHAPE, 1), tokenizer = charTokenizerJson(VOCAB);
  await Deno.remove(`${folder}/model`, { recursive: true }).catch(() => {});
  await writeLlama(`${folder}/model`, { shape: SHAPE, weights, dtype: "F32", shards, tokenizer, config });
}

/** Imports and returns the refusal; anything else than a coded one fails the test. */
async function refusal(folder: string): Promise<string> {
  try {
    await importModel({ from: `${folder}/model`, out: `${folder}/run`, config: {} });
  } catch (error) {
    if (!(error instanceof ShoalError)) throw error;
    assert.equal(error.code, "bad-model", error.message);
    assert.deepEqual([...Deno.readDirSync(folder)].map(({ name }) => name), ["model"]);
    return error.message;
  }
  throw new Error("it was accepted");
}

const u64 = (value: bigint) => {
  const out = new Uint8Array(8);
  new DataView(out.buffer).setBigUint64(0, value, true);
  return out;
};
const entry = (begin: number, end: number, more: Record<string, unknown> = {}) => ({
  ...{ dtype: "F32", shape: [(end - begin) / 4], data_offsets: [begin, end] },
  ...more,
});
const file = (header: Record<string, unknown>, bytes: number) =>
  fileOf(JSON.stringify(header), [new Uint8Array(bytes)]);

const FILES: [string, Uint8Array, RegExp][] = [
  ["nothing", new Uint8Array(0), /a file of 0 bytes has no safetensors header/],
  [
    "garbage like a zip",
    new TextEncoder().encode("PK\x03\x04 and so on, for more than eight bytes"),
    /a header of \d+ bytes exceeds/,
  ],
  ["a header bomb", u64(2n ** 62n), /a header of 4611686018427387904 bytes exceeds/],
  ["a header of 2 GB", u64(2n ** 31n), /a header of 2147483648 bytes exceeds/],
  ["a header that is no JSON", fileOf("{", []), /header is not a JSON object/],
  ["a header deeper than a stack", fileOf("[".repeat(200_000), []), /header is not a JSON object/],
  ["overlapping tensors", file({ a: entry(0, 8), b: entry(4, 12) }, 12), /data at 4 is used twice/],
  ["a hole", file({ a: entry(0, 4), b: entry(8, 12) }, 12), /data at 4 is unused/],
  ["a tensor of 2 GB", file({ a: entry(0, 2 ** 31) }, 8), /leaves the 8 bytes of data/],
  [
    "a shape without bytes",
    file({ a: entry(0, 8, { shape: [2 ** 40, 2 ** 40] }) }, 8),
    /which is not its shape/,
  ],
  [
    "a shape of nothing, many times",
    file({ a: entry(0, 0, { shape: [0, 2 ** 50] }) }, 0),
    /embed_tokens.weight is missing/,
  ],
  ["a type from nowhere", file({ a: entry(0, 8, { dtype: "F4" }) }, 8), /unsupported type/],
  ["bytes after the end", file({ a: entry(0, 4) }, 9), /5 bytes follow/],
];

Deno.test("bad model: malformed safetensors files are refused with the reason", () =>
  inTempFolder(async (folder) => {
    await good(folder);
    for (const [what, bytes, pattern] of FILES) {
      await Deno.writeFile(`${folder}/model/model.safetensors`, bytes);
      const message = await refusal(folder);
      assert.match(message, pattern, what);
      assert.match(message, /model/, what);
    }
  }));

Deno.test("bad model: cut short or changed anywhere, it is refused or still a model", () =>
  inTempFolder(async (folder) => {
    await good(folder);
    const path = `${folder}/model/model.safetensors`, bytes = await Deno.readFile(path);
    const cut = fc.nat({ max: bytes.length - 1 }).map((length) => bytes.subarray(0, length));
    const headerBytes = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true));
    const changed = fc.tuple(fc.nat({ max: headerBytes - 1 }), fc.integer({ min: 1, max: 255 })).map(
      ([at, by]) => {
        const out = bytes.slice();
        out[at]! ^= by;
        return out;
      },
    );
    await fc.assert(
      fc.asyncProperty(fc.oneof(cut, changed), async (damaged) => {
        await Deno.writeFile(path, damaged);
        try {
          await refusal(folder);
        } catch (error) {
          // A change of the metadata, or from one name of an optional tensor to another, does not matter.
          if (!(error instanceof Error) || error.message !== "it was accepted") throw error;
          assert.equal(damaged.length, bytes.length);
          await Deno.remove(`${folder}/run`, { recursive: true });
        }
      }),
      { seed: 20263, numRuns: 150 },
    );
  }));

Deno.test("bad model: a configuration that claims far more than the files hold takes no memory", () =>
  inTempFolder(async (folder) => {
    const huge = {
      hidden_size: 16_384,
      intermediate_size: 65_536,
      num_attention_heads: 128,
      num_key_value_heads: 128,
    };
    await good(folder, 1, huge);
    assert.match(await refusal(folder), /embed_tokens.weight is \[3,4\], config.json says \[3,16384\]/);
  }));

Deno.test("bad model: values that no training gives are refused by the tensor's name", () =>
  inTempFolder(async (folder) => {
    await good(folder);
    const path = `${folder}/model/model.safetensors`, bytes = await Deno.readFile(path);
    for (const [value, shown] of [[NaN, "NaN"], [Infinity, "Infinity"]] as const) {
      new DataView(bytes.buffer).setFloat32(bytes.length - 4, value, true);
      await Deno.writeFile(path, bytes);
      assert.match(await refusal(folder), new RegExp(`tensor model.norm.weight contains ${shown}`));
    }
  }));

Deno.test("bad model: an index that leads astray is refused", () =>
  inTempFolder(async (folder) => {
    const index = `${folder}/model/model.safetensors.index.json`;
    const cases: [unknown, RegExp][] = [
      [{ weight_map: { a: "../secret.safetensors" } }, /"..\/secret.safetensors" is no shard's name/],
      [{ weight_map: { a: "/etc/passwd" } }, /no shard's name/],
      [{ weight_map: { a: 7 } }, /7 is no shard's name/],
      [{ weight_map: { a: "none.safetensors" } }, /none.safetensors: there is no such file/],
      [{ weight_map: {} }, /it names 0 shards/],
      [
        { weight_map: Object.fromEntries(Array.from({ length: 300 }, (_, i) => [i, `${i}.safetensors`])) },
        /300 shards/,
      ],
      [[], /it has no weight_map/],
      [null, /it has no weight_map/],
    ];
    for (const [json, pattern] of cases) {
      await good(folder, 2);
      await Deno.writeTextFile(index, JSON.stringify(json));
      assert.match(await refusal(folder), pattern);
    }
    await Deno.writeTextFile(index, "{");
    assert.match(await refusal(folder), /index.json: it is not JSON/);
    await good(folder, 2);
    const copy = "model-00001-of-00002.safetensors";
    await Deno.copyFile(`${folder}/model/${copy}`, `${folder}/model/again.safetensors`);
    const both = { a: copy, b: "model-00002-of-00002.safetensors", c: "again.safetensors" };
    await Deno.writeTextFile(index, JSON.stringify({ weight_map: both }));
    assert.match(await refusal(folder), /is in two files/);
  }));

Deno.test("bad model: missing and malformed companions are named", () =>
  inTempFolder(async (folder) => {
    const companion = async (name: string, content: string | Uint8Array | null, pattern: RegExp) => {
      await good(folder);
      const path = `${folder}/model/${name}`;
      if (content === null) await Deno.remove(path);
      else if (typeof content === "string") await Deno.writeTextFile(path, content);
      else await Deno.writeFile(path, content);
      assert.match(await refusal(folder), pattern);
    };
    await companion("config.json", null, /config.json: there is no such file/);
    await companion("config.json", "{", /config.json: it is not JSON/);
    await companion("config.json", "[]", /config.json is not an object/);
    await companion("config.json", Uint8Array.of(0x22, 0xff, 0x22), /config.json: it is not UTF-8/);
    await companion("config.json", " ".repeat((1 << 20) + 1), /it has 1048577 bytes, at most 1048576/);
    await companion("tokenizer.json", null, /tokenizer.json: there is no such file/);
    await companion("tokenizer.json", "{}", /tokenizer.json has no model with a vocabulary/);
    await companion("model.safetensors", null, /neither model.safetensors nor model.safetensors.index.json/);
    const tokenizer = (vocab: unknown, more: Record<string, unknown> = {}) =>
      JSON.stringify({ model: { type: "BPE", vocab, merges: [] }, ...more });
    await companion(
      "tokenizer.json",
      tokenizer({ a: 0, b: 1, c: 3 }),
      /token "c" is number 3, but the model has 3/,
    );
    await companion("tokenizer.json", tokenizer({ a: 0, b: 0 }), /number 0 is "b" and "a"/);
    await companion("tokenizer.json", tokenizer({ a: 0.5 }), /token "a" has no number/);
    await companion("tokenizer.json", tokenizer({}), /vocabulary is empty/);
    await companion("tokenizer.json", tokenizer({ a: 0 }, { added_tokens: [7] }), /token "" has no number/);
  }));
