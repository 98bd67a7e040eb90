// What a run with adapters becomes elsewhere: the merged model in the programs it is meant for, and a PEFT folder beside the base, read by
// a reader written from PEFT's definition. What counts is W + (alpha / rank)·B·A in double precision. Also which bases are refused.
import assert from "node:assert/strict";
import { join } from "node:path";
import * as ort from "onnxruntime-web/wasm";
import { createSampler } from "../../peer/engine/sampler.ts";
import type { RunConfig } from "../../peer/wire/run.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { adapt, type AdaptedModel, type Lora, writeAdapted } from "../../test/support/adapted_model.ts";
import { largestDifference } from "../../test/support/compare_logits.ts";
import { exportTo, inTempFolder, planOf, writeTiny } from "../../test/support/export_support.ts";
import { gpt2Logits, type Gpt2Shape } from "../../test/support/gpt2.ts";
import { type LlamaConfig, llamaLogits, type LoadedTensor, readFolder } from "../../test/support/hf_llama.ts";
import { mergePeft, readPeft } from "../../test/support/peft.ts";
import { type TrainedModel, trainSmallModel, writeTrained } from "../../test/support/trained_model.ts";
import { BASE_NAME, BaseFile } from "../store/base.ts";
import { baseFolderOf } from "../store/base_place.ts";
import { readWeights } from "../store/weights.ts";
import { openWeights } from "./merged.ts";
import { writeExport } from "./write.ts";

const TEXT = "Call me Ishmael. Some years";
const SHORT = { max_iters: 40, learning_rate: 3e-3, min_lr: 3e-4, tie_word_embeddings: true };
const BASES = {
  llama: SHORT,
  gpt2: { ...SHORT, architecture: "gpt2", n_kv_head: 8 },
} as const satisfies Record<string, Partial<RunConfig>>;
type Kind = keyof typeof BASES;

const trained: Partial<Record<Kind, Promise<TrainedModel>>> = {};

async function adapted(kind: Kind, targets: string): Promise<AdaptedModel> {
  const base = await (trained[kind] ??= trainSmallModel(BASES[kind]));
  return adapt(base, lora(targets));
}

function lora(lora_targets: string): Lora {
  return { lora_rank: 3, lora_alpha: 6, lora_targets };
}

async function json(path: string) {
  return JSON.parse(await Deno.readTextFile(path));
}

async function theirLogits(kind: Kind, folder: string, weights: Map<string, LoadedTensor>, tokens: number[]) {
  const config = await json(`${folder}/config.json`);
  return kind === "gpt2"
    ? gpt2Logits(config as Gpt2Shape, weights, tokens)
    : llamaLogits(config as LlamaConfig, weights, tokens);
}

const CASES: [Kind, string, Record<string, unknown>][] = [
  ["llama", "q_proj,v_proj", {
    r: 3,
    lora_alpha: 6,
    target_modules: ["q_proj", "v_proj"],
    fan_in_fan_out: false,
  }],
  ["llama", "k_proj,o_proj,gate_proj,up_proj,down_proj", { r: 3 }],
  // Two of the three matrices in c_attn: their ranks add up, and so do their alphas.
  ["gpt2", "q_proj,v_proj", { r: 6, lora_alpha: 12, target_modules: ["attn.c_attn"], fan_in_fan_out: true }],
  ["gpt2", "k_proj,o_proj", { r: 3, lora_alpha: 6, rank_pattern: {}, alpha_pattern: {} }],
  ["gpt2", "q_proj,k_proj,v_proj,up_proj,down_proj", {
    ...{ r: 3, lora_alpha: 6, target_modules: ["attn.c_attn", "mlp.c_fc", "mlp.c_proj"] },
    ...{ rank_pattern: { "attn.c_attn": 9 }, alpha_pattern: { "attn.c_attn": 18 } },
  }],
];

for (const [kind, targets, expected] of CASES) {
  Deno.test(`peft: a ${kind}'s adapters on ${targets} beside its base are Shoal's model`, () =>
    inTempFolder(async (folder) => {
      const model = await adapted(kind, targets), tokens = model.base.encode(TEXT);
      await Deno.mkdir(`${folder}/run`);
      const base = await exportTo(`${folder}/run`, await writeTrained(`${folder}/plain`, model.base), {
        ...{ format: "hf", dtype: "f32" },
      });
      const checkpoint = await writeAdapted(`${folder}/run`, model);
      const peft = await exportTo(folder, checkpoint, {
        format: "peft",
        dtype: "f32",
        baseModel: "us/whale",
      });
      const config = await json(`${peft}/adapter_config.json`);
      for (const [key, value] of Object.entries(expected)) assert.deepEqual(config[key], value, key);
      assert.deepEqual([config.peft_type, config.task_type, config.base_model_name_or_path], [
        ...["LORA", "CAUSAL_LM", "us/whale"],
      ]);
      assert.match(await Deno.readTextFile(`${peft}/README.md`), /^base_model: us\/whale$/m);
      const merged = mergePeft(await readPeft(peft), await readFolder(base));
      const theirs = await theirLogits(kind, base, merged, tokens);
      const difference = largestDifference(model.logits(tokens), theirs);
      // Shoal's activations between layers are f32; everything else is double.
      assert.ok(difference < 1e-5, `logits differ by ${difference}`);
      const without = largestDifference(model.logits(tokens), model.base.logits(tokens));
      assert.ok(without > 0.3, `the adapters change logits by ${without} only`);
    }));
}

for (const kind of ["llama", "gpt2"] as const) {
  const targets = kind === "llama" ? "q_proj,v_proj,gate_proj" : "q_proj,v_proj,down_proj";
  Deno.test(`export: a ${kind}'s merged adapters in a folder, in onnxruntime, and in Shoal itself`, () =>
    inTempFolder(async (folder) => {
      const model = await adapted(kind, targets), tokens = model.base.encode(TEXT);
      const ours = model.logits(tokens),
        near = (theirs: number[][], most: number) => {
          const difference = largestDifference(ours, theirs);
          assert.ok(difference < most, `logits differ by ${difference}`);
        };
      await Deno.mkdir(`${folder}/run`);
      const checkpoint = await writeAdapted(`${folder}/run`, model);
      const hf = await exportTo(folder, checkpoint, { format: "hf", dtype: "f32" });
      // The merged weights are rounded to f32 once.
      near(await theirLogits(kind, hf, await readFolder(hf), tokens), 1e-5);
      assert.match(
        await Deno.readTextFile(`${hf}/README.md`),
        /fine-tuned by adapters \(LoRA of rank 3, alpha 6, on q_proj/,
      );
      const onnx = await exportTo(`${folder}/run`, checkpoint, { format: "onnx", dtype: "f32" });
      near(await onnxLogits(`${onnx}/onnx/model.onnx`, tokens), 1e-3);
      const { spec, params, manifest } = await readWeights(checkpoint);
      assert.deepEqual([spec.lora, manifest.spec.lora?.rank], [undefined, 3]);
      const flat = createSampler(spec, params).logits(tokens), V = spec.vocab_size;
      near(tokens.map((_, i) => [...flat.subarray(i * V, (i + 1) * V)]), 1e-4);
      using source = await openWeights(checkpoint, "hf");
      const name = "model.layers.1.self_attn.q_proj.weight";
      const { layout } = model.base.state, { offset, size } = layout.tensors.find((it) => it.name === name)!;
      assert.deepEqual(
        await source.read(name),
        params.slice(offset, offset + size),
        "one tensor or all: the same bits",
      );
    }));
}

async function onnxLogits(path: string, tokens: number[]): Promise<number[][]> {
  ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create(await Deno.readFile(path), { logSeverityLevel: 3 });
  const int64 = (row: number[]) => new ort.Tensor("int64", BigInt64Array.from(row, BigInt), [1, row.length]);
  const past = Object.fromEntries(
    session.inputMetadata.flatMap((it) => {
      if (!it.isTensor || !it.name.startsWith("past_key_values.")) return [];
      const [, heads, , width] = it.shape;
      return [[
        it.name,
        new ort.Tensor("float32", new Float32Array(0), [1, Number(heads), 0, Number(width)]),
      ]];
    }),
  );
  const { logits } = await session.run({
    ...{ input_ids: int64(tokens), attention_mask: int64(tokens.map(() => 1)) },
    ...{ position_ids: int64(tokens.map((_, i) => i)), ...past },
  });
  const V = logits!.dims[2]!, flat = logits!.data as Float32Array;
  await session.release();
  return tokens.map((_, i) => [...flat.subarray(i * V, (i + 1) * V)]);
}

/** A run of a tiny model with adapters. */
async function tinyRun(run: string): Promise<string> {
  await Deno.mkdir(run, { recursive: true });
  return await writeAdapted(run, await adapted("llama", "q_proj,v_proj"));
}

function refused(promise: Promise<unknown>, code: string, pattern: RegExp): Promise<void> {
  return assert.rejects(promise, (error) => {
    return error instanceof ShoalError && error.code === code && pattern.test(error.message);
  }, String(pattern));
}

Deno.test("export: a base that is missing, another, or damaged is refused before anything is written", () =>
  inTempFolder(async (folder) => {
    const run = `${folder}/run`, checkpoint = await tinyRun(run), base = join(run, BASE_NAME);
    const all = async (pattern: RegExp) => {
      await refused(readWeights(checkpoint), "bad-checkpoint", pattern);
      for (const format of ["hf", "gguf", "onnx"] as const) {
        await refused(openWeights(checkpoint, format), "bad-checkpoint", pattern);
      }
      // The adapters themselves need no base.
      using _ = await openWeights(checkpoint, "peft");
    };
    const bytes = await Deno.readFile(base);
    const damaged = bytes.slice();
    damaged[damaged.length - 9]! ^= 1;
    await Deno.writeFile(base, damaged);
    await all(/tensor \S+ differs from its SHA-256/);
    await Deno.writeFile(base, bytes.subarray(0, bytes.length - 4));
    await all(/base .*base\.safetensors/);
    await Deno.mkdir(`${folder}/other`);
    const model = await adapted("llama", "q_proj"), params = model.base.state.params.slice();
    params[0]! += 1;
    const state = { ...model.base.state, params };
    await writeAdapted(`${folder}/other`, adapt({ ...model.base, state }, lora("q_proj,v_proj")));
    await Deno.copyFile(`${folder}/other/${BASE_NAME}`, base);
    await all(/the base has hash \w+, the run's adapters belong to/);
    await Deno.remove(base);
    await all(/there is no such file; adapters need the base.safetensors that their run began with/);
  }));

Deno.test("export: a checkpoint that was copied is found its base beside it, above it, or in it", () =>
  inTempFolder(async (folder) => {
    const run = `${folder}/run`, checkpoint = await tinyRun(run);
    assert.equal(await baseFolderOf(checkpoint), run);
    const copy = `${folder}/elsewhere/deep/copy`;
    await Deno.mkdir(copy, { recursive: true });
    for await (const { name } of Deno.readDir(checkpoint)) {
      await Deno.copyFile(join(checkpoint, name), join(copy, name));
    }
    await refused(
      readWeights(copy),
      "bad-checkpoint",
      /elsewhere\/deep\/copy\/base.safetensors: there is no such file/,
    );
    for (const place of [`${folder}/elsewhere`, `${folder}/elsewhere/deep`, copy]) {
      await Deno.copyFile(join(run, BASE_NAME), join(place, BASE_NAME));
      assert.equal(await baseFolderOf(copy), place);
      const { params } = await readWeights(copy);
      assert.ok(params.length > 0);
    }
    // Whichever is found must still be the one that the manifest names.
    await BaseFile.open(copy, (await readWeights(copy)).manifest.spec);
  }));

Deno.test("peft: a checkpoint without adapters is refused, and so are types and names that do not fit", () =>
  inTempFolder(async (folder) => {
    await refused(
      openWeights(await writeTiny(folder), "peft"),
      "usage",
      /has no adapters, which peft is for; export it as hf/,
    );
    await refused(
      openWeights(await writeTiny(folder, { step: 8 }), "gguf-lora"),
      "usage",
      /has no adapters, which gguf-lora is for; export it as gguf/,
    );
    using source = await openWeights(await tinyRun(`${folder}/run`), "peft");
    assert.throws(
      () => planOf(source, { format: "peft", dtype: "q8_0" }),
      /does not go with peft; use f32, f16, bf16/,
    );
    // A path on somebody's disk is for the configuration, not for the hub.
    const plan = planOf(source, { format: "peft", dtype: "f16", baseModel: "/home/me/model" });
    const out = await writeExport(plan, `${folder}/peft`);
    assert.doesNotMatch(await Deno.readTextFile(`${out}/README.md`), /^base_model/m);
    assert.equal((await json(`${out}/adapter_config.json`)).base_model_name_or_path, "/home/me/model");
    // Its own kind of folder may be replaced.
    await writeExport(plan, out, { force: true });
  }));
