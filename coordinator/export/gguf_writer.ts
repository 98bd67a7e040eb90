// The GGUF container, version 3 (ggml's docs/gguf.md): typed metadata, tensor table, aligned little-endian tensors. Pure.
// Not what the keys and tensors of a model are (gguf.ts). Offsets count from the start of the aligned data section.
import { assert } from "../../peer/wire/errors.ts";
import { padding, type Piece, pieceBytes, totalBytes } from "./pieces.ts";

export const GGUF_VERSION = 3;
/** Every tensor begins at a multiple of this; readers assume it where the metadata has no general.alignment. */
export const GGUF_ALIGNMENT = 32;
const MAGIC = "GGUF";

/** Numbers of the metadata's types. */
const TYPE = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9, u64: 10 } as const;
/** Numbers of the tensors' types. */
export const GGML_TYPE = { f32: 0, f16: 1, q8_0: 8, bf16: 30 } as const;

export type GgufValue =
  | { type: "u32" | "u64" | "f32"; value: number }
  | { type: "bool"; value: boolean }
  | { type: "string"; value: string }
  | { type: "strings"; values: readonly string[] }
  | { type: "i32s" | "f32s"; values: readonly number[] };

export interface GgufTensor {
  name: string;
  /** Row-major with the outermost first, as everywhere else here; the file has the innermost first. */
  shape: readonly number[];
  dtype: keyof typeof GGML_TYPE;
  data: Piece;
}

/** The whole file; metadata and tensors in the order given. */
export function ggufPieces(
  metadata: Readonly<Record<string, GgufValue>>,
  tensors: readonly GgufTensor[],
): Piece[] {
  const keys = Object.entries(metadata);
  const parts: Uint8Array[] = [ascii(MAGIC), u32(GGUF_VERSION), u64(tensors.length), u64(keys.length)];
  for (const [key, value] of keys) parts.push(text(key), ...encodeValue(value));
  const data: Piece[] = [];
  let offset = 0;
  for (const { name, shape, dtype, data: piece } of tensors) {
    assert(offset % GGUF_ALIGNMENT === 0, `tensor ${name} is aligned`);
    const dimensions = shape.toReversed().map(u64);
    parts.push(text(name), u32(shape.length), ...dimensions, u32(GGML_TYPE[dtype]), u64(offset));
    const pad = padding(pieceBytes(piece), GGUF_ALIGNMENT);
    data.push(piece, pad);
    offset += pieceBytes(piece) + pad.length;
  }
  // A vocabulary is a hundred thousand parts, each of which would be written by itself.
  const head = joined(parts);
  return [head, padding(head.length, GGUF_ALIGNMENT), ...data];
}

function joined(parts: readonly Uint8Array[]): Uint8Array {
  const out = new Uint8Array(totalBytes(parts));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

function encodeValue(value: GgufValue): Uint8Array[] {
  switch (value.type) {
    case "u32":
      return [u32(TYPE.u32), u32(value.value)];
    case "u64":
      return [u32(TYPE.u64), u64(value.value)];
    case "f32":
      return [u32(TYPE.f32), bytesOf(4, (view) => view.setFloat32(0, value.value, true))];
    case "bool":
      return [u32(TYPE.bool), Uint8Array.of(value.value ? 1 : 0)];
    case "string":
      return [u32(TYPE.string), text(value.value)];
    case "strings":
      return [...arrayHead(TYPE.string, value.values.length), ...value.values.map(text)];
    case "f32s":
      return [
        ...arrayHead(TYPE.f32, value.values.length),
        ...value.values.map((number) => bytesOf(4, (view) => view.setFloat32(0, number, true))),
      ];
    case "i32s":
      return [
        ...arrayHead(TYPE.i32, value.values.length),
        ...value.values.map((number) => bytesOf(4, (view) => view.setInt32(0, number, true))),
      ];
  }
}

function arrayHead(type: number, length: number): Uint8Array[] {
  return [u32(TYPE.array), u32(type), u64(length)];
}

function text(value: string): Uint8Array {
  const bytes = new TextEncoder().encode(value);
  const out = new Uint8Array(8 + bytes.length);
  out.set(u64(bytes.length));
  out.set(bytes, 8);
  return out;
}

function ascii(value: string): Uint8Array {
  return new TextEncoder().encode(value);
}

function u32(value: number): Uint8Array {
  return bytesOf(4, (view) => view.setUint32(0, value, true));
}

function u64(value: number): Uint8Array {
  return bytesOf(8, (view) => view.setBigUint64(0, BigInt(value), true));
}

function bytesOf(size: number, write: (view: DataView) => void): Uint8Array {
  const bytes = new Uint8Array(size);
  write(new DataView(bytes.buffer));
  return bytes;
}
