// A Hugging Face folder: weights in safetensors shards with the names of LlamaForCausalLM or GPT2LMHeadModel, and the JSON files
// beside them. Pure. No conversion of a Llama: our names, shapes and the pairing of rotary elements are Hugging Face's already.
import { gpt2Config } from "../../peer/model/hf_gpt2.ts";
import { isGpt2 } from "../../peer/model/layout.ts";
import { llamaConfig } from "../../peer/model/state_file.ts";
import { ShoalError } from "../../peer/wire/errors.ts";
import type { ModelSpec } from "../../peer/wire/run.ts";
import { dtypeBytes, encodeValues, type ExportDtype } from "./dtypes.ts";
import type { TextMarks } from "../store/tokenizer_marks.ts";
import { type ExportFile, jsonFile, padding, type Piece } from "./pieces.ts";
import type { WeightSource } from "./source.ts";
import { type StoredTensor, storedTensors } from "./stored.ts";

/** What transformers' save_pretrained uses; hubs and file systems take files of this size. */
export const SHARD_BYTES_DEFAULT = 5_000_000_000;

/** The reference writer starts the data at a multiple of 8 bytes. */
const ALIGNMENT = 8;

const SAFETENSORS_NAMES: Partial<Record<ExportDtype, string>> = { f32: "F32", f16: "F16", bf16: "BF16" };
const TORCH_NAMES: Partial<Record<ExportDtype, string>> = {
  f32: "float32",
  f16: "float16",
  bf16: "bfloat16",
};

/**
 * model.safetensors, or numbered shards of at most `shardBytes` of data with their index; a tensor that is larger has a
 * shard of its own. A tied head is not written: config.json says that it is the embedding.
 */
export function weightFiles(source: WeightSource, dtype: ExportDtype, shardBytes: number): ExportFile[] {
  const tensors = storedTensors(source);
  const shards = cut(tensors, dtype, shardBytes);
  if (shards.length === 1) {
    return [safetensorsFile("model.safetensors", shards[0]!, dtype)];
  }
  const weightMap: Record<string, string> = {};
  const files = shards.map((shard, index) => {
    const name = shardName(index, shards.length);
    for (const tensor of shard) weightMap[tensor.name] = name;
    return safetensorsFile(name, shard, dtype);
  });
  const totalSize = tensors.reduce((sum, { size }) => sum + dtypeBytes(dtype, size), 0);
  const index = { metadata: { total_size: totalSize }, weight_map: weightMap };
  return [...files, jsonFile("model.safetensors.index.json", index)];
}

/**
 * config.json and generation_config.json. @param marks Tokens that begin and end a text; null where none does, as with characters.
 */
export function configFiles(spec: ModelSpec, dtype: ExportDtype, marks: TextMarks | null): ExportFile[] {
  // Said outright, since the architectures' defaults are tokens that need not mean that here.
  const special = {
    ...{ bos_token_id: marks?.begin?.id ?? null, eos_token_id: marks?.end?.id ?? null, pad_token_id: null },
  };
  // Newer readers look there for what older ones call rope_theta.
  const rotary = { rope_parameters: { rope_type: "default", rope_theta: spec.rope_theta } };
  const config = {
    ...(isGpt2(spec) ? gpt2Config(spec) : { ...llamaConfig(spec), ...rotary }),
    ...special,
    torch_dtype: TORCH_NAMES[dtype] ?? "float32",
    use_cache: true,
  };
  const ends = marks?.ends.map(({ id }) => id) ?? [];
  const stop = ends.length > 1 ? { eos_token_id: ends } : {};
  const generation = { ...special, ...stop, do_sample: true, temperature: 0.8, use_cache: true };
  return [jsonFile("config.json", config), jsonFile("generation_config.json", generation)];
}

function cut(tensors: readonly StoredTensor[], dtype: ExportDtype, shardBytes: number): StoredTensor[][] {
  const shards: StoredTensor[][] = [];
  let left = 0;
  for (const tensor of tensors) {
    const bytes = dtypeBytes(dtype, tensor.size);
    if (shards.length === 0 || bytes > left) {
      shards.push([]);
      left = shardBytes;
    }
    shards.at(-1)!.push(tensor);
    left -= bytes;
  }
  return shards;
}

function shardName(index: number, count: number): string {
  const digits = (n: number) => String(n).padStart(5, "0");
  return `model-${digits(index + 1)}-of-${digits(count)}.safetensors`;
}

/** One file with these tensors. @throws {ShoalError} usage for a type that such files do not have */
export function safetensorsFile(
  name: string,
  tensors: readonly StoredTensor[],
  dtype: ExportDtype,
): ExportFile {
  const type = SAFETENSORS_NAMES[dtype];
  if (type === undefined) {
    throw new ShoalError("usage", `safetensors files have no type ${dtype}; use f32, f16 or bf16`);
  }
  return { name, pieces: safetensorsPieces(tensors, { dtype, type }) };
}

function safetensorsPieces(
  tensors: readonly StoredTensor[],
  { dtype, type }: { dtype: ExportDtype; type: string },
): Piece[] {
  const header: Record<string, unknown> = { __metadata__: { format: "pt" } };
  let end = 0;
  const data = tensors.map(({ name, shape, size, read }): Piece => {
    const bytes = dtypeBytes(dtype, size);
    header[name] = { dtype: type, shape, data_offsets: [end, end + bytes] };
    end += bytes;
    return { bytes, read: async () => encodeValues(dtype, await read(), name) };
  });
  const text = new TextEncoder().encode(JSON.stringify(header));
  // Padding is spaces, so that the header stays JSON.
  const spaces = padding(text.length, ALIGNMENT).fill(0x20);
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(text.length + spaces.length), true);
  return [length, text, spaces, ...data];
}
