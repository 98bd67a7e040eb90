// Adapters in PEFT's layout come in: those that we wrote are what they were, those of others give the model that PEFT gives, by a reader
// written from its definition; of adapters that are none of ours, each kind is refused by name, and nothing is left behind.
import assert from "node:assert/strict";
import { createSampler } from "../../peer/engine/sampler.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import { relativeError } from "../../shaders/reference/check.ts";
import { drawGpt2, gpt2Logits, writeGpt2 } from "../../test/support/gpt2.ts";
import {
  charTokenizerJson,
  drawLlama,
  llamaLogits,
  type Weights,
  writeLlama,
} from "../../test/support/llama.ts";
import { exportTo, inTempFolder } from "../../test/support/export_support.ts";
import { type AdapterConfig, mergePeft } from "../../test/support/peft.ts";
import { encodeFile } from "../../test/support/safetensors_writer.ts";
import { openCheckpoint } from "../export/source.ts";
import { findTensor, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { encodeState, initialState } from "../../peer/model/state_file.ts";
import { readCheckpoint, stageFileName, writeCheckpoint } from "../store/checkpoints.ts";
import { readWeights } from "../store/weights.ts";
import { type Imported, importModel } from "./import_model.ts";

const VOCAB = [..."\n abcdefgh"];
const TOKENS = [3, 0, 9, 9, 1, 5, 2, 7];
const LLAMA = {
  ...{ vocab_size: VOCAB.length, hidden_size: 12, intermediate_size: 20, num_hidden_layers: 2 },
  ...{ num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 8, rms_norm_eps: 1e-6 },
  ...{ rope_theta: 1e4, tie_word_embeddings: false },
};
const GPT2 = {
  ...{ vocab_size: VOCAB.length, n_positions: 8, n_embd: 12, n_layer: 2, n_head: 2, n_inner: 20 },
  ...{ layer_norm_epsilon: 1e-5, tie_word_embeddings: true },
};
type Kind = "llama" | "gpt2";

/** A model's folder, and its tensors. */
async function writeModel(folder: string, kind: Kind): Promise<Weights> {
  const tokenizer = charTokenizerJson(VOCAB);
  const weights = kind === "gpt2" ? drawGpt2(GPT2, 5) : drawLlama(LLAMA, 5);
  if (kind === "gpt2") await writeGpt2(folder, { shape: GPT2, weights, dtype: "F32", tokenizer });
  else await writeLlama(folder, { shape: LLAMA, weights, dtype: "F32", shards: 1, tokenizer });
  return weights;
}

type Shapes = Record<string, [out: number, into: number, rank: number]>;

interface Adapter {
  config: AdapterConfig;
  tensors: Map<string, { shape: number[]; values: Float64Array }>;
}

/** Adapters of some modules in all layers, drawn from a seed. */
function adapter(kind: Kind, modules: Shapes, config: Record<string, unknown> = {}): Adapter {
  const tensors: Adapter["tensors"] = new Map();
  let state = 77;
  const draw = (name: string, shape: [number, number]) => {
    const values = Float64Array.from({ length: shape[0] * shape[1] }, () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return Math.round((state / 2 ** 32 * 2 - 1) * 64) / 64;
    });
    tensors.set(name, { shape, values });
  };
  for (const [module, [out, into, rank]] of Object.entries(modules)) {
    for (const layer of [0, 1]) {
      const at = `base_model.model.${kind === "gpt2" ? "transformer.h" : "model.layers"}.${layer}.${module}`;
      draw(`${at}.lora_A.weight`, [rank, into]);
      draw(`${at}.lora_B.weight`, [out, rank]);
    }
  }
  const target_modules = Object.keys(modules);
  const plain = {
    peft_type: "LORA",
    task_type: "CAUSAL_LM",
    r: 2,
    lora_alpha: 6,
    bias: "none",
    target_modules,
  };
  return { config: { ...plain, fan_in_fan_out: kind === "gpt2", ...config }, tensors };
}

async function writeAdapter(folder: string, { config, tensors }: Adapter): Promise<void> {
  await Deno.mkdir(folder, { recursive: true });
  await Deno.writeTextFile(`${folder}/adapter_config.json`, JSON.stringify(config));
  await Deno.writeFile(`${folder}/adapter_model.safetensors`, encodeFile([...tensors], "F32"));
}

async function importBoth(folder: string, config: Record<string, unknown> = {}): Promise<Imported> {
  return await importModel({
    from: `${folder}/model`,
    out: `${folder}/run`,
    adapter: `${folder}/peft`,
    config,
  });
}

const FOREIGN: [string, Kind, Adapter, Record<string, unknown>][] = [
  [
    "a Llama's, of a module by the root of its rank",
    "llama",
    adapter("llama", { "self_attn.k_proj": [6, 12, 3], "mlp.down_proj": [12, 20, 3] }, {
      r: 3,
      use_rslora: true,
    }),
    { lora_rank: 3, lora_alpha: 3 * 6 / Math.sqrt(3), lora_targets: "k_proj,down_proj" },
  ],
  [
    "a Llama's with ranks and alphas of its own by module",
    "llama",
    adapter("llama", { "self_attn.q_proj": [12, 12, 2], "mlp.up_proj": [20, 12, 4] }, {
      ...{ rank_pattern: { up_proj: 4 }, alpha_pattern: { "mlp.up_proj": 20 } },
    }),
    { lora_rank: 4, lora_alpha: 12, lora_targets: "q_proj,up_proj" },
  ],
  [
    "a GPT-2's whose q, k and v share a product",
    "gpt2",
    adapter("gpt2", { "attn.c_attn": [36, 12, 2], "mlp.c_proj": [12, 20, 2] }),
    { lora_rank: 2, lora_alpha: 6, lora_targets: "q_proj,k_proj,v_proj,down_proj" },
  ],
];

for (const [what, kind, made, expected] of FOREIGN) {
  Deno.test(`import: PEFT's adapters give PEFT's model: ${what}`, () =>
    inTempFolder(async (folder) => {
      const weights = await writeModel(`${folder}/model`, kind);
      await writeAdapter(`${folder}/peft`, made);
      const { path, config } = await importBoth(folder, { block_size: 8 });
      for (const [key, value] of Object.entries(expected)) {
        assert.equal(config[key as keyof typeof config], value, key);
      }
      const merged = mergePeft(made, weights);
      const theirs = kind === "gpt2" ? gpt2Logits(GPT2, merged, TOKENS) : llamaLogits(LLAMA, merged, TOKENS);
      const { spec, params } = await readWeights(path);
      const ours = createSampler(spec, params).logits(TOKENS);
      const error = relativeError(ours, Float64Array.from(theirs.flat()));
      assert.ok(error < 1e-5, `logits are off by ${error}`);
    }));
}

for (
  const [kind, targets] of [
    ["llama", "q_proj,v_proj,gate_proj"],
    ["gpt2", "q_proj,v_proj"],
    ["gpt2", "q_proj,k_proj,v_proj,up_proj,down_proj"],
    ["gpt2", "k_proj,o_proj"],
  ] as const
) {
  Deno.test(`round trip: a ${kind}'s adapters on ${targets} come back as they were`, () =>
    inTempFolder(async (folder) => {
      await writeModel(`${folder}/model`, kind);
      const lora = { lora_rank: 2, lora_alpha: 5, lora_targets: targets };
      const first = await importModel({ from: `${folder}/model`, out: `${folder}/first`, config: lora });
      const path = await trained(`${folder}/first`, first);
      const peft = await exportTo(folder, path, { format: "peft", dtype: "f32" });
      await Deno.rename(peft, `${folder}/peft`);
      const again = await importBoth(folder);
      assert.deepEqual(again.spec, first.spec);
      using before = await openCheckpoint(path);
      using after = await openCheckpoint(again.path);
      for (const { name } of stageLayout(again.spec, wholeModel(again.spec)).tensors) {
        assert.deepEqual(await after.read(name), await before.read(name), name);
      }
    }));
}

/** A later checkpoint of an import, in which no value of an adapter is 0. */
async function trained(runDir: string, { spec, path }: Imported): Promise<string> {
  const { manifest } = await readCheckpoint(path), [stage] = manifest.stages;
  const state = { ...initialState(spec, stage!, 1), step: 1 };
  for (const { offset, size } of state.layout.tensors) {
    for (let i = 0; i < size; i++) state.params[offset + i] = ((offset + i) % 97 + 1) / 128;
  }
  const { format: _f, files: _s, step: _t, ...about } = manifest;
  const files = [{ name: stageFileName(0, 1), bytes: encodeState(state) }];
  return await writeCheckpoint(runDir, { step: 1, files, manifest: about });
}

const QV = { "self_attn.q_proj": [12, 12, 2], "self_attn.v_proj": [6, 12, 2] } as const satisfies Shapes;

/** A Llama's adapters, with something changed. */
function spoiled(config: Record<string, unknown>, change: (tensors: Adapter["tensors"]) => void = () => {}) {
  const made = adapter("llama", QV, config);
  change(made.tensors);
  return made;
}

const Q_A = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";
const Q_B = Q_A.replace("lora_A", "lora_B");
const BAD: [string, RegExp, Adapter, Record<string, unknown>?][] = [
  ["another kind", /peft_type is "IA3"; only LORA can be imported/, spoiled({ peft_type: "IA3" })],
  ["with magnitudes", /use_dora is true; our adapters are a product B·A alone/, spoiled({ use_dora: true })],
  ["biases", /bias is "all"/, spoiled({ bias: "all" })],
  ["whole modules", /modules_to_save is \["lm_head"\]/, spoiled({ modules_to_save: ["lm_head"] })],
  ["no rank", /r is "8", no rank/, spoiled({ r: "8" })],
  ["no alpha", /lora_alpha is 0/, spoiled({ lora_alpha: 0 })],
  [
    "an expression",
    /rank_pattern has .*only a module's name/,
    spoiled({ rank_pattern: { "layers.[01].q": 4 } }),
  ],
  [
    "another rank",
    /q_proj has A \[2,12\] and B \[12,2\]; adapter_config.json and the model say A \[3,12\] and B \[12,3\]/,
    spoiled({ r: 3 }),
  ],
  ["a huge rank", /has rank 100000; at most 1024 is possible/, spoiled({ r: 100_000 })],
  [
    "no B",
    /tensor \S+layers\.1\.self_attn\.q_proj\.lora_B\.weight is missing/,
    spoiled({}, (it) => it.delete(Q_B)),
  ],
  ["no A", /q_proj\.lora_A\.weight is missing/, spoiled({}, (it) => it.delete(Q_A))],
  [
    "a tensor of its own",
    /"base_model.model.model.embed_tokens.lora_embedding_A" belongs to no matrix/,
    spoiled({}, (it) => it.set("base_model.model.model.embed_tokens.lora_embedding_A", it.get(Q_A)!)),
  ],
  [
    "a layer that is not there",
    /layers\.7\.self_attn\.q_proj\.lora_A\.weight" belongs to no matrix/,
    spoiled({}, (it) => it.set(Q_A.replace("layers.1", "layers.7"), it.get(Q_A)!)),
  ],
  ["no number", /lora_B.weight contains NaN/, spoiled({}, (it) => it.get(Q_B)!.values[5] = NaN)],
  ["nothing", /it has no adapters/, spoiled({}, (it) => it.clear())],
  ["with flags", /lora_rank is decided by the adapters that are imported/, spoiled({}), { lora_rank: 4 }],
];

Deno.test("import: adapters that are none of ours are refused by name, and nothing is left behind", () =>
  inTempFolder(async (folder) => {
    await writeModel(`${folder}/model`, "llama");
    const refused = async (pattern: RegExp, config = {}) => {
      await assert.rejects(importBoth(folder, config), (error) => {
        return error instanceof ShoalError && /^bad-(model|config)$/.test(error.code) &&
          pattern.test(error.message);
      }, String(pattern));
      assert.deepEqual([...Deno.readDirSync(folder)].map(({ name }) => name).sort(), ["model", "peft"]);
    };
    for (const [, pattern, made, config] of BAD) {
      await writeAdapter(`${folder}/peft`, made);
      await refused(pattern, config);
    }
    await Deno.writeTextFile(`${folder}/peft/adapter_config.json`, "{");
    await refused(/adapter_config.json: it is not JSON/);
    await Deno.remove(`${folder}/peft/adapter_config.json`);
    await refused(/there is no such file; name a PEFT folder/);
  }));

Deno.test("import: layers without adapters begin anew, as does what a lower rank leaves", () =>
  inTempFolder(async (folder) => {
    const weights = await writeModel(`${folder}/model`, "llama");
    const made = spoiled({ rank_pattern: { v_proj: 1 } }, (it) => {
      for (const name of [Q_A, Q_B]) it.delete(name);
      for (const layer of [0, 1]) {
        const at = `base_model.model.model.layers.${layer}.self_attn.v_proj`;
        const [a, b] = [it.get(`${at}.lora_A.weight`)!, it.get(`${at}.lora_B.weight`)!];
        it.set(`${at}.lora_A.weight`, { shape: [1, 12], values: a.values.slice(0, 12) });
        it.set(`${at}.lora_B.weight`, { shape: [6, 1], values: b.values.slice(0, 6) });
      }
    });
    await writeAdapter(`${folder}/peft`, made);
    const { path, config } = await importBoth(folder);
    assert.deepEqual([config.lora_rank, config.lora_alpha], [2, 6]);
    using source = await openCheckpoint(path);
    const read = (name: string) => source.read(name.replace("base_model.model.", ""));
    assert.ok((await read(Q_B)).every((value) => value === 0), "what begins anew changes nothing");
    assert.ok((await read(Q_A)).every((value) => value !== 0), "and can learn");
    const { shape, values } = weights.get("model.layers.1.self_attn.q_proj.weight")!;
    const { spec, params } = await readWeights(path);
    const { offset } = findTensor(
      stageLayout(spec, wholeModel(spec)),
      "model.layers.1.self_attn.q_proj.weight",
    )!;
    assert.deepEqual([...params.subarray(offset, offset + shape[0]! * shape[1]!)], [...values]);
    // v_proj has alpha 6 over rank 1: twice what it counts in ours, 6 over 2, so B is doubled.
    const b = made.tensors.get("base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight")!.values;
    const ours = await read("base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight");
    assert.deepEqual([...ours], [...b].flatMap((value) => [2 * value, 0]));
  }));
