// What an export consists of: which files, of which sizes, out of which tensors. Pure; nothing is read or written yet.
// The composition of the formats' modules; storing and sending are write.ts and serve.ts.
import { ShoalError } from "../../peer/wire/errors.ts";
import { DTYPES, type ExportDtype } from "./dtypes.ts";
import type { ModelFacts } from "./facts.ts";
import { ggufFile } from "./gguf.ts";
import { ggufLoraFile } from "./gguf_lora.ts";
import { configFiles, SHARD_BYTES_DEFAULT, weightFiles } from "./hf.ts";
import { describeModel, modelCard } from "./model_card.ts";
import { onnxModel } from "./onnx.ts";
import { peftFiles } from "./peft.ts";
import { type ExportFile, textFile, totalBytes } from "./pieces.ts";
import type { WeightSource } from "./source.ts";
import { type TextMarks, textMarks } from "../store/tokenizer_marks.ts";
import { tokenizerFiles } from "./tokenizer_files.ts";

export const FORMATS = ["hf", "gguf", "onnx", "peft", "gguf-lora"] as const;
export type ExportFormat = typeof FORMATS[number];

/** What each format's readers take. */
export const FORMAT_DTYPES: Readonly<Record<ExportFormat, readonly ExportDtype[]>> = {
  hf: ["f32", "f16", "bf16"],
  gguf: ["f32", "f16", "bf16", "q8_0"],
  onnx: ["f32", "f16"],
  peft: ["f32", "f16", "bf16"],
  "gguf-lora": ["f32", "f16", "bf16"],
};

/** Formats of the adapters alone; all others hold a whole model. */
export const ADAPTER_FORMATS: readonly ExportFormat[] = ["peft", "gguf-lora"];

/** Formats that are a single file, which ends in .gguf. */
export const FILE_FORMATS: readonly ExportFormat[] = ["gguf", "gguf-lora"];

export interface ExportRequest {
  format: ExportFormat;
  dtype: ExportDtype;
  /** Shown in the card and in the files' metadata. */
  name: string;
  /** Names by token number. */
  vocab: readonly string[];
  /** Text of the tokenizer.json that the model has instead of characters. */
  tokenizer?: string | null;
  facts: ModelFacts;
  /** What a peft folder calls the model that the adapters belong to: a hub's name, or a path. */
  baseModel?: string | null;
  /** Most bytes of data in one safetensors file; default SHARD_BYTES_DEFAULT. */
  shardBytes?: number;
  /** Most bytes of weights inside an ONNX file; default INLINE_BYTES_MAX. */
  inlineBytesMax?: number;
}

export interface ExportPlan {
  format: ExportFormat;
  dtype: ExportDtype;
  /** A single file stands for itself, anything else is a folder. */
  kind: "file" | "folder";
  files: readonly ExportFile[];
  bytes: number;
}

/** @throws {ShoalError} usage for a format or type that does not exist, or does not go with the other. */
export function readFormat(format: string, dtype: string): { format: ExportFormat; dtype: ExportDtype } {
  const known = FORMATS.find((name) => name === format);
  if (known === undefined) {
    throw new ShoalError("usage", `format "${format}" is not one of ${FORMATS.join(", ")}`);
  }
  const type = DTYPES.find((name) => name === dtype);
  const fitting = FORMAT_DTYPES[known];
  if (type === undefined || !fitting.includes(type)) {
    throw new ShoalError("usage", `dtype "${dtype}" does not go with ${known}; use ${fitting.join(", ")}`);
  }
  return { format: known, dtype: type };
}

/** @param source Of the weights that the format holds; openWeights gives it. */
export function planExport(source: WeightSource, request: ExportRequest): ExportPlan {
  const { format, dtype } = readFormat(request.format, request.dtype);
  const files = filesOf(source, request);
  const bytes = files.reduce((sum, { pieces }) => sum + totalBytes(pieces), 0);
  return { format, dtype, kind: FILE_FORMATS.includes(format) ? "file" : "folder", files, bytes };
}

function filesOf(source: WeightSource, request: ExportRequest): ExportFile[] {
  const { format, dtype, name, facts, vocab } = request;
  switch (format) {
    case "gguf": {
      const { license } = facts, tokenizer = request.tokenizer ?? null;
      const about = { name, description: describeModel(facts), license, vocab, tokenizer };
      return [{ name: exportedName(fileStem(name), request), pieces: ggufFile(source, dtype, about) }];
    }
    case "gguf-lora": {
      const about = { name, description: describeModel(facts), license: facts.license };
      return [{ name: exportedName(fileStem(name), request), pieces: ggufLoraFile(source, dtype, about) }];
    }
    case "hf":
      return [
        ...commonFiles(source, request, "hf"),
        ...weightFiles(source, dtype, request.shardBytes ?? SHARD_BYTES_DEFAULT),
      ];
    case "onnx":
      return [...commonFiles(source, request, "onnx"), ...onnxFiles(source, request)];
    case "peft": {
      const base = request.baseModel ?? null;
      const card = textFile("README.md", modelCard(name, facts, "peft", base));
      return [card, ...tokenizerOf(source, request), ...peftFiles(source, dtype, base)];
    }
  }
}

function commonFiles(source: WeightSource, request: ExportRequest, format: "hf" | "onnx"): ExportFile[] {
  const { name, facts, dtype } = request;
  return [
    textFile("README.md", modelCard(name, facts, format)),
    ...configFiles(source.spec, dtype, marksOf(request)),
    ...tokenizerOf(source, request),
  ];
}

function tokenizerOf({ spec }: WeightSource, { vocab, tokenizer = null }: ExportRequest): ExportFile[] {
  return tokenizerFiles(vocab, spec.block_size, tokenizer);
}

/** Characters neither begin nor end a text. */
function marksOf({ tokenizer }: ExportRequest): TextMarks | null {
  return tokenizer ? textMarks(JSON.parse(tokenizer)) : null;
}

/** Folder and names are where transformers.js looks. */
function onnxFiles(
  source: WeightSource,
  { name, dtype, facts, inlineBytesMax }: ExportRequest,
): ExportFile[] {
  const file = dtype === "f16" ? "model_fp16.onnx" : "model.onnx";
  const external = `${file}_data`;
  const about = {
    ...{ name, producer: "shoal", description: describeModel(facts) },
    metadata: { step: String(facts.step), dataset: facts.dataset },
  };
  const limit = inlineBytesMax === undefined ? {} : { inlineBytesMax };
  const built = onnxModel(source, { dtype, about, external, ...limit });
  return [
    { name: `onnx/${file}`, pieces: built.model },
    ...(built.external === null ? [] : [{ name: `onnx/${external}`, pieces: built.external }]),
  ];
}

/** What an export is called, of a folder without an ending. */
export function exportedName(
  stem: string,
  { format, dtype }: Pick<ExportRequest, "format" | "dtype">,
): string {
  if (!FILE_FORMATS.includes(format)) return `${stem}-${format}-${dtype}`;
  return `${stem}-${format === "gguf" ? "" : "lora-"}${dtype}.gguf`;
}

/** A name as part of a file's name on every system. */
export function fileStem(name: string): string {
  const plain = name.normalize("NFKD").replace(/\p{M}/gu, "");
  return plain.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "model";
}
