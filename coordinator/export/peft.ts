// A run's adapters as PEFT's LoraModel keeps them: adapter_model.safetensors and adapter_config.json. Pure. What must stay true: loaded
// beside the base they belong to, they give the model that a merged export is.
// A Llama's names are ours. GPT-2's q, k and v are one Conv1D there, c_attn, so their adapters become one of the summed rank: A's rows
// lie one below the other, and B is zero but for a block of columns per matrix.
import { HF_PREFIX } from "../../peer/model/hf_gpt2.ts";
import { isGpt2, LORA_A, LORA_B, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { loraOf } from "../../peer/model/lora.ts";
import type { LoraTarget, ModelSpec } from "../../peer/wire/run.ts";
import type { ExportDtype } from "./dtypes.ts";
import { safetensorsFile } from "./hf.ts";
import { type ExportFile, jsonFile } from "./pieces.ts";
import type { WeightSource } from "./source.ts";
import type { StoredTensor } from "./stored.ts";

/** PEFT's wrapper and the model inside it. */
export const PEFT_PREFIX = "base_model.model.";

/** GPT-2's modules within a layer, and our matrices that they hold, in the order of their rows. */
export const GPT2_MODULES: readonly { module: string; ours: readonly LoraTarget[] }[] = [
  { module: "attn.c_attn", ours: ["q_proj", "k_proj", "v_proj"] },
  { module: "attn.c_proj", ours: ["o_proj"] },
  { module: "mlp.c_fc", ours: ["up_proj"] },
  { module: "mlp.c_proj", ours: ["down_proj"] },
];

/** Our module of a layer's matrix. */
export function moduleOf(layer: number, target: LoraTarget): string {
  const part = /^[qkvo]_proj$/.test(target) ? "self_attn" : "mlp";
  return `model.layers.${layer}.${part}.${target}`;
}

/**
 * @param source Of the adapters. @param base What the configuration calls the base: a hub's name or a path; null: nothing.
 */
export function peftFiles(source: WeightSource, dtype: ExportDtype, base: string | null): ExportFile[] {
  const tensors = isGpt2(source.spec) ? gpt2Adapters(source) : llamaAdapters(source);
  return [
    jsonFile("adapter_config.json", peftConfig(source.spec, base)),
    safetensorsFile("adapter_model.safetensors", tensors, dtype),
  ];
}

/** Keys that PEFT has had since rank_pattern came; newer versions fill in the rest. */
export function peftConfig(spec: ModelSpec, base: string | null): Record<string, unknown> {
  const { rank, alpha, targets } = loraOf(spec);
  return {
    ...{ peft_type: "LORA", task_type: "CAUSAL_LM", base_model_name_or_path: base, revision: null },
    ...{ auto_mapping: null, inference_mode: true, bias: "none", modules_to_save: null },
    ...(isGpt2(spec) ? gpt2Ranks(spec) : { r: rank, lora_alpha: alpha, target_modules: [...targets] }),
    ...{ lora_dropout: 0, fan_in_fan_out: isGpt2(spec), init_lora_weights: true },
    ...{ layers_to_transform: null, layers_pattern: null },
  };
}

/** One rank for all where only c_attn is fitted, else the ranks that differ by module. */
function gpt2Ranks(spec: ModelSpec): Record<string, unknown> {
  const { rank, alpha } = loraOf(spec), modules = fittedModules(spec);
  const [first] = modules, parts = first?.ours.length ?? 1;
  const joined = { r: parts * rank, lora_alpha: parts * alpha };
  const target_modules = modules.map(({ module }) => module);
  if (modules.length === 1) return { ...joined, target_modules };
  const own = (value: number) => parts === 1 ? {} : { [first!.module]: value };
  return {
    ...{ r: rank, lora_alpha: alpha, target_modules },
    ...{ rank_pattern: own(joined.r), alpha_pattern: own(joined.lora_alpha) },
  };
}

interface Fitted {
  module: string;
  /** All matrices that it holds, and those with adapters. */
  all: readonly LoraTarget[];
  ours: LoraTarget[];
}

/** Modules with adapters. */
function fittedModules(spec: ModelSpec): Fitted[] {
  const { targets } = loraOf(spec);
  return GPT2_MODULES.map(({ module, ours: all }) => (
    { module, all, ours: all.filter((name) => targets.includes(name)) }
  )).filter(({ ours }) => ours.length > 0);
}

function llamaAdapters(source: WeightSource): StoredTensor[] {
  const { spec } = source;
  return stageLayout(spec, wholeModel(spec)).tensors.map(({ name, shape, size }) => (
    { name: PEFT_PREFIX + name, shape, size, read: () => source.read(name) }
  ));
}

/** By module, q, k and v as one. */
export function gpt2Adapters(source: WeightSource): StoredTensor[] {
  const layers = Array.from({ length: source.spec.n_layer }, (_, layer) => layer);
  return layers.flatMap((layer) =>
    fittedModules(source.spec).flatMap((fitted) => fused(source, layer, fitted))
  );
}

/** A and B of one of GPT-2's modules: [rank, in] and [out, rank], of as many ranks as it has matrices with adapters. */
function fused(source: WeightSource, layer: number, { module, ours, all }: Fitted): StoredTensor[] {
  const { spec } = source, { tensors } = stageLayout(spec, wholeModel(spec));
  const shapeOf = (name: string) => tensors.find((it) => it.name === name)!.shape as [number, number];
  const own = ours.map((it) => moduleOf(layer, it)), ends = own.map((it) => it + LORA_B);
  const [rank, into] = shapeOf(own[0]! + LORA_A), [out] = shapeOf(own[0]! + LORA_B);
  const name = `${PEFT_PREFIX}${HF_PREFIX}h.${layer}.${module}`;
  const ranks = rank * own.length, rows = out * all.length;
  const places = ours.map((it) => all.indexOf(it) * out);
  return [
    {
      ...{ name: name + LORA_A, shape: [ranks, into], size: ranks * into },
      read: async () => stacked(await readAll(source, own.map((it) => it + LORA_A)), ranks * into),
    },
    {
      ...{ name: name + LORA_B, shape: [rows, ranks], size: rows * ranks },
      read: async () => blocks(await readAll(source, ends), { rank, places, rows }),
    },
  ];
}

async function readAll(source: WeightSource, names: readonly string[]): Promise<Float32Array[]> {
  const all: Float32Array[] = [];
  for (const name of names) all.push(await source.read(name));
  return all;
}

function stacked(parts: readonly Float32Array[], size: number): Float32Array {
  const out = new Float32Array(size);
  parts.forEach((part, i) => out.set(part, i * part.length));
  return out;
}

/** Matrices [out, rank] in one of [rows, rank * count]: the i-th in the i-th block of columns, from row places[i] on. */
function blocks(
  parts: readonly Float32Array[],
  { rank, places, rows }: { rank: number; places: readonly number[]; rows: number },
): Float32Array {
  const width = rank * parts.length, out = new Float32Array(rows * width);
  parts.forEach((part, i) => {
    for (let row = 0; row < part.length / rank; row++) {
      out.set(part.subarray(row * rank, (row + 1) * rank), (places[i]! + row) * width + i * rank);
    }
  });
  return out;
}
