// A run's adapters as llama.cpp applies them beside a model of its own (its convert_lora_to_gguf.py): one GGUF file of type "adapter",
// with .lora_a [rank, in] and .lora_b [out, rank] behind the name of each matrix. Pure. What must stay true: applied to the exported
// base, they give the model that a merged export is.
import { isGpt2, LORA_A, LORA_B, stageLayout, wholeModel } from "../../peer/model/layout.ts";
import { loraOf } from "../../peer/model/lora.ts";
import { dtypeBytes, encodeValues, type ExportDtype } from "./dtypes.ts";
import { FILE_TYPE, type GgufAbout, ggufName, interleaveRows, rotatedHeads } from "./gguf.ts";
import { gpt2GgufName } from "./gguf_gpt2.ts";
import { ggufPieces, type GgufValue } from "./gguf_writer.ts";
import { gpt2Adapters, PEFT_PREFIX } from "./peft.ts";
import type { Piece } from "./pieces.ts";
import type { WeightSource } from "./source.ts";
import type { StoredTensor } from "./stored.ts";

/** The file's pieces. @param source Of the adapters. */
export function ggufLoraFile(
  source: WeightSource,
  dtype: ExportDtype,
  about: Pick<GgufAbout, "name" | "description" | "license">,
): Piece[] {
  const tensors = isGpt2(source.spec) ? gpt2Tensors(source) : llamaTensors(source);
  return ggufPieces(
    metadataOf(source, dtype, about),
    tensors.map(({ name, shape, size, read }) => ({
      ...{ name, shape, dtype },
      data: { bytes: dtypeBytes(dtype, size), read: async () => encodeValues(dtype, await read(), name) },
    })),
  );
}

function metadataOf(
  { spec }: WeightSource,
  dtype: ExportDtype,
  { name, description, license }: Pick<GgufAbout, "name" | "description" | "license">,
): Record<string, GgufValue> {
  const text = (value: string): GgufValue => ({ type: "string", value });
  return {
    "general.architecture": text(isGpt2(spec) ? "gpt2" : "llama"),
    "general.type": text("adapter"),
    "general.name": text(name),
    "general.description": text(description),
    ...(license === null ? {} : { "general.license": text(license) }),
    "general.file_type": { type: "u32", value: FILE_TYPE[dtype] },
    "adapter.type": text("lora"),
    "adapter.lora.alpha": { type: "f32", value: loraOf(spec).alpha },
  };
}

/** llama.cpp pairs neighbouring elements of a head, so B's rows of q and k stand in its order, as the base's do. */
function llamaTensors(source: WeightSource): StoredTensor[] {
  const { spec } = source, { rank } = loraOf(spec);
  return stageLayout(spec, wholeModel(spec)).tensors.map((tensor): StoredTensor => {
    const { name, shape, size } = tensor, isA = name.endsWith(LORA_A);
    const matrix = `${name.slice(0, -(isA ? LORA_A : LORA_B).length)}.weight`;
    const heads = isA ? 0 : rotatedHeads(spec, matrix);
    const read = async () => {
      const values = await source.read(name);
      return heads === 0 ? values : interleaveRows(values, heads, rank);
    };
    return { name: ggufName(matrix) + suffix(isA), shape, size, read };
  });
}

/**
 * As in a PEFT folder q, k and v are one matrix, whose adapters have the sum of their ranks. llama.cpp knows one alpha, which it divides
 * by the rank of each matrix, so B makes up for what that divides too much.
 */
function gpt2Tensors(source: WeightSource): StoredTensor[] {
  const { rank } = loraOf(source.spec);
  return gpt2Adapters(source).map(({ name, shape, size, read }): StoredTensor => {
    const isA = name.endsWith(LORA_A);
    const module = name.slice(PEFT_PREFIX.length, -(isA ? LORA_A : LORA_B).length);
    const factor = isA ? 1 : shape[1]! / rank;
    const scaled = async () => factor === 1 ? await read() : (await read()).map((value) => factor * value);
    return { name: gpt2GgufName(`${module}.weight`) + suffix(isA), shape, size, read: scaled };
  });
}

function suffix(isA: boolean): string {
  return isA ? ".lora_a" : ".lora_b";
}
