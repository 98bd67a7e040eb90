// Exports in the programs they are meant for, as far as those run in Deno: ONNX in onnxruntime, the tokenizer in Hugging
// Face's, the folder's weights in a forward pass written from transformers' definition. (GGUF: test/e2e/export_gguf_test.ts.)
// The model was trained for some steps on Moby Dick, and what counts is Shoal's own engine in double precision.
import assert from "node:assert/strict";
import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web/wasm";
import { largestDifference } from "../../test/support/compare_logits.ts";
import { exportTo, inTempFolder, type Wish } from "../../test/support/export_support.ts";
import { gpt2Logits, type Gpt2Shape } from "../../test/support/gpt2.ts";
import { type LlamaConfig, llamaLogits, readFolder } from "../../test/support/hf_llama.ts";
import { type TrainedModel, trainSmallModel, writeTrained } from "../../test/support/trained_model.ts";
import type { RunConfig } from "../../peer/wire/run.ts";

/** Within the model's 32 tokens. */
const TEXT = 'Call me Ishmael.\n"Some years—';
const PROMPTS = ["Call me Ishmael.", "T", "—what\nis it?"];
const COUNT = 14;

/** f16 keeps 11 bits of each weight and bf16 8; logits reach 6, and some hundred roundings partly cancel. */
const F32_TOLERANCE = 1e-3, F16_TOLERANCE = 1e-2, BF16_TOLERANCE = 5e-2;

type Kind = "untied" | "tied" | "gpt2";

const TIED = { tie_word_embeddings: true, learning_rate: 3e-3, min_lr: 3e-4 };
const CONFIGS: Readonly<Record<Kind, Partial<RunConfig>>> = {
  untied: {},
  tied: TIED,
  gpt2: { ...TIED, architecture: "gpt2", n_kv_head: 8 },
};

const models: Partial<Record<Kind, Promise<TrainedModel>>> = {};

/** Trained once for the whole file. */
function trained(kind: Kind): Promise<TrainedModel> {
  return models[kind] ??= trainSmallModel(CONFIGS[kind]);
}

async function exported(
  model: TrainedModel,
  wish: Wish,
  body: (folder: string) => Promise<void>,
): Promise<void> {
  await inTempFolder(async (folder) => {
    const checkpoint = await writeTrained(`${folder}/run`, model);
    await body(await exportTo(folder, checkpoint, wish));
  });
}

async function readJson(path: string) {
  return JSON.parse(await Deno.readTextFile(path));
}

Deno.test("export: the model has learned something, or its logits would prove nothing", async () => {
  for (const kind of ["untied", "tied", "gpt2"] as const) {
    const { losses, logits, encode } = await trained(kind);
    assert.ok(losses.at(-1)! < losses[0]! - 0.8, `from ${losses[0]} to ${losses.at(-1)}`);
    const row = logits(encode("the")).at(-1)!;
    const spread = Math.max(...row) - Math.min(...row);
    assert.ok(spread > 3, `${kind}: ${spread}`);
  }
});

for (
  const [dtype, kind, tolerance] of [
    ["f32", "untied", F32_TOLERANCE],
    ["f32", "tied", F32_TOLERANCE],
    ["f32", "gpt2", F32_TOLERANCE],
    ["f16", "untied", F16_TOLERANCE],
    ["bf16", "tied", BF16_TOLERANCE],
  ] as const
) {
  Deno.test(`export: a ${dtype} folder of a model, ${kind}, is what transformers makes of it`, async () => {
    const model = await trained(kind);
    // Small shards, so that the index and each file count.
    await exported(model, { format: "hf", dtype, shardBytes: 30_000 }, async (folder) => {
      const config = await readJson(`${folder}/config.json`);
      const weights = await readFolder(folder);
      const tokens = model.encode(TEXT);
      const theirs = kind === "gpt2"
        ? gpt2Logits(config as Gpt2Shape, weights, tokens)
        : llamaLogits(config as LlamaConfig, weights, tokens);
      const difference = largestDifference(model.logits(tokens), theirs);
      assert.ok(difference < tolerance, `logits differ by ${difference}`);
      if (dtype === "f32") {
        // Both are in double precision, so only the order of sums and Shoal's f32 between layers are left.
        assert.ok(difference < 1e-5, `logits differ by ${difference}`);
      } else assert.ok(difference > 1e-6, "nothing was rounded");
    });
  });
}

Deno.test("export: Hugging Face's tokenizer gives Shoal's tokens, whatever the text", async () => {
  const model = await trained("untied");
  await exported(model, { format: "hf", dtype: "f32" }, async (folder) => {
    const tokenizer = new Tokenizer(
      await readJson(`${folder}/tokenizer.json`),
      await readJson(`${folder}/tokenizer_config.json`),
    );
    const all = model.vocab.join("");
    assert.deepEqual(tokenizer.encode("").ids, []);
    for (const text of [TEXT, "\n", "  two  spaces ", "it 's n't . , !", all, all.repeat(40)]) {
      assert.deepEqual(tokenizer.encode(text).ids, model.encode(text), JSON.stringify(text.slice(0, 40)));
      assert.equal(tokenizer.decode(model.encode(text)), text);
    }
    // There is no token for the unknown, so it is left out rather than taken for something else.
    assert.deepEqual(tokenizer.encode("aé漢b").ids, model.encode("ab"));
  });
});

interface Session {
  session: ort.InferenceSession;
  model: TrainedModel;
  /** Weights lie in a file of their own. */
  external: boolean;
}

async function withSession(kind: Kind, wish: Wish, body: (it: Session) => Promise<void>): Promise<void> {
  ort.env.wasm.numThreads = 1;
  const model = await trained(kind);
  await exported(model, wish, async (folder) => {
    const name = wish.dtype === "f16" ? "model_fp16.onnx" : "model.onnx";
    const data = await Deno.readFile(`${folder}/onnx/${name}_data`).catch(() => null);
    const external = data === null ? {} : { externalData: [{ path: `${name}_data`, data }] };
    const options = { logSeverityLevel: 3 as const, ...external };
    const session = await ort.InferenceSession.create(await Deno.readFile(`${folder}/onnx/${name}`), options);
    await body({ session, model, external: data !== null }).finally(() => session.release());
  });
}

function int64(rows: readonly (readonly number[])[]): ort.Tensor {
  return new ort.Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0]!.length]);
}

type Cache = Record<string, ort.Tensor>;

function emptyCache({ session, model: { spec } }: Session, batch: number): Cache {
  const shape = [batch, spec.n_kv_head, 0, spec.n_embd / spec.n_head];
  const names = session.inputNames.filter((name) => name.startsWith("past_key_values."));
  assert.equal(names.length, 2 * spec.n_layer);
  return Object.fromEntries(
    names.map((name) => [name, new ort.Tensor("float32", new Float32Array(0), shape)]),
  );
}

interface Feed {
  tokens: readonly (readonly number[])[];
  /** Absent: nothing is hidden. */
  mask?: readonly (readonly number[])[];
  positions?: readonly (readonly number[])[];
  cache?: Cache;
}

/** Logits [batch][n][V], and the keys and values with which the text goes on. */
async function run(it: Session, feed: Feed): Promise<{ logits: number[][][]; cache: Cache }> {
  const { tokens } = feed, cache = feed.cache ?? emptyCache(it, tokens.length), n = tokens[0]!.length;
  const past = Object.values(cache)[0]!.dims[2]!;
  const outputs = await it.session.run({
    input_ids: int64(tokens),
    attention_mask: int64(feed.mask ?? tokens.map(() => Array(past + n).fill(1))),
    position_ids: int64(feed.positions ?? tokens.map((row) => row.map((_, i) => past + i))),
    ...cache,
  });
  const { logits, ...present } = outputs;
  const V = it.model.vocab.length, flat = logits!.data as Float32Array;
  assert.deepEqual([...logits!.dims], [tokens.length, n, V]);
  return {
    logits: tokens.map((row, b) =>
      row.map((_, i) => [...flat.subarray((b * n + i) * V, (b * n + i + 1) * V)])
    ),
    cache: Object.fromEntries(
      Object.entries(present).map(([name, tensor]) => [name.replace("present", "past_key_values"), tensor]),
    ),
  };
}

for (
  const [dtype, kind, tolerance] of [
    ["f32", "untied", F32_TOLERANCE],
    ["f32", "tied", F32_TOLERANCE],
    ["f32", "gpt2", F32_TOLERANCE],
    ["f16", "untied", F16_TOLERANCE],
    ["f16", "gpt2", F16_TOLERANCE],
  ] as const
) {
  Deno.test(`export: ${dtype} ONNX of a model, ${kind}, gives Shoal's logits in onnxruntime`, () =>
    withSession(kind, { format: "onnx", dtype }, async (it) => {
      const tokens = it.model.encode(TEXT), ours = it.model.logits(tokens);
      assert.ok(!it.external);
      const { logits } = await run(it, { tokens: [tokens] });
      const difference = largestDifference(ours, logits[0]!);
      assert.ok(difference < tolerance, `logits differ by ${difference}`);
      assert.ok(difference > 0, "two programs agree to the last bit: were they compared at all?");
      // Another length, in two parts: the keys and values of the first are the past of the second.
      const first = await run(it, { tokens: [tokens.slice(0, 5)] });
      const rest = await run(it, { tokens: [tokens.slice(5)], cache: first.cache });
      const parts = [...first.logits[0]!, ...rest.logits[0]!];
      assert.ok(largestDifference(ours, parts) < tolerance, "with a past");
    }));
}

for (const kind of ["untied", "gpt2"] as const) {
  Deno.test(`export: ONNX writes the text that Shoal writes, token by token, ${kind}`, () =>
    withSession(kind, { format: "onnx", dtype: "f32" }, async (it) => {
      for (const prompt of PROMPTS) {
        let step = await run(it, { tokens: [it.model.encode(prompt)] });
        const written: number[] = [];
        while (written.length < COUNT) {
          const row = step.logits[0]!.at(-1)!;
          const token = row.indexOf(Math.max(...row));
          written.push(token);
          step = await run(it, { tokens: [[token]], cache: step.cache });
        }
        assert.equal(it.model.decode(written), it.model.greedy(prompt, COUNT), prompt);
      }
    }));
}

Deno.test("export: ONNX takes several texts at once, the shorter ones padded on the left", () =>
  withSession("untied", { format: "onnx", dtype: "f32" }, async (it) => {
    const [long, short] = [it.model.encode("Call me"), it.model.encode("Ish")];
    const pad = long.length - short.length;
    const { logits } = await run(it, {
      tokens: [long, [...Array(pad).fill(3), ...short]],
      mask: [long.map(() => 1), [...Array(pad).fill(0), ...short.map(() => 1)]],
      positions: [long.map((_, i) => i), [...Array(pad).fill(0), ...short.map((_, i) => i)]],
    });
    assert.ok(largestDifference(it.model.logits(long), logits[0]!) < F32_TOLERANCE);
    assert.ok(largestDifference(it.model.logits(short), logits[1]!.slice(pad)) < F32_TOLERANCE);
    assert.ok(logits[1]!.flat().every(Number.isFinite), "padding gives numbers, too");
  }));

Deno.test("export: ONNX weights beyond the limit lie in a second file", () =>
  withSession("untied", { format: "onnx", dtype: "f32", inlineBytesMax: 50_000 }, async (it) => {
    assert.ok(it.external);
    const tokens = it.model.encode(TEXT);
    const { logits } = await run(it, { tokens: [tokens] });
    assert.ok(largestDifference(it.model.logits(tokens), logits[0]!) < F32_TOLERANCE);
  }));
