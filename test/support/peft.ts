// A second reading of PEFT's LoRA folder: which modules of a transformers model get adapters, with which ranks, and what is added to
// them, as peft's LoraModel and its Linear layer define it. Uses nothing of Shoal's export.
import { type LoadedTensor, readSafetensors } from "./hf_llama.ts";

/** The part of adapter_config.json that decides what is added. */
export interface AdapterConfig {
  peft_type: string;
  task_type: string;
  r: number;
  lora_alpha: number;
  use_rslora?: boolean;
  target_modules: string[];
  fan_in_fan_out: boolean;
  bias: string;
  rank_pattern?: Record<string, number>;
  alpha_pattern?: Record<string, number>;
}

export interface PeftFolder {
  config: AdapterConfig;
  tensors: Map<string, LoadedTensor>;
}

export async function readPeft(folder: string): Promise<PeftFolder> {
  return {
    config: JSON.parse(await Deno.readTextFile(`${folder}/adapter_config.json`)),
    tensors: readSafetensors(await Deno.readFile(`${folder}/adapter_model.safetensors`)),
  };
}

/** The model's tensors with adapters merged. Throws at whatever PEFT would refuse, and at tensors left over. */
export function mergePeft(
  { config, tensors }: PeftFolder,
  model: ReadonlyMap<string, LoadedTensor>,
): Map<string, LoadedTensor> {
  if (config.peft_type !== "LORA" || config.bias !== "none") throw new Error("another kind of adapter");
  const adapters = new Map(tensors), merged = new Map(model);
  for (const [name, tensor] of model) {
    const module = name.replace(/\.weight$/, "");
    if (name === module || !isTarget(config, module)) continue;
    const a = take(adapters, `base_model.model.${module}.lora_A.weight`);
    const b = take(adapters, `base_model.model.${module}.lora_B.weight`);
    merged.set(name, added(tensor, { a, b, config, module }));
  }
  if (adapters.size > 0) throw new Error(`tensors without a module: ${[...adapters.keys()].join()}`);
  return merged;
}

function isTarget({ target_modules }: AdapterConfig, module: string): boolean {
  return target_modules.some((target) => module === target || module.endsWith(`.${target}`));
}

function take(adapters: Map<string, LoadedTensor>, name: string): LoadedTensor {
  const tensor = adapters.get(name);
  if (tensor === undefined) throw new Error(`${name} is missing`);
  adapters.delete(name);
  return tensor;
}

/** The value of the first pattern that the module's name ends with. */
function patterned(pattern: Record<string, number> | undefined, module: string, otherwise: number): number {
  const key = Object.keys(pattern ?? {}).find((it) => new RegExp(`(^|.*\\.)${it}$`).test(module));
  return key === undefined ? otherwise : pattern![key]!;
}

interface Adding {
  a: LoadedTensor;
  b: LoadedTensor;
  config: AdapterConfig;
  module: string;
}

function added({ shape, values }: LoadedTensor, { a, b, config, module }: Adding): LoadedTensor {
  const rank = patterned(config.rank_pattern, module, config.r);
  const alpha = patterned(config.alpha_pattern, module, config.lora_alpha);
  const scale = alpha / (config.use_rslora ? Math.sqrt(rank) : rank);
  const [out, into] = config.fan_in_fan_out ? [shape[1]!, shape[0]!] : [shape[0]!, shape[1]!];
  if (String(a.shape) !== String([rank, into]) || String(b.shape) !== String([out, rank])) {
    throw new Error(`${module}: [${a.shape}] and [${b.shape}] are no adapters of rank ${rank} of [${shape}]`);
  }
  const sum = Float64Array.from(values);
  for (let o = 0; o < out; o++) {
    for (let i = 0; i < into; i++) {
      let product = 0;
      for (let r = 0; r < rank; r++) product += b.values[o * rank + r]! * a.values[r * into + i]!;
      sum[config.fan_in_fan_out ? i * out + o : o * into + i]! += scale * product;
    }
  }
  return { shape, values: sum };
}
