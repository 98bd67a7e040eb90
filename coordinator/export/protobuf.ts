// Protocol Buffers' wire format, the four kinds of field that ONNX's messages need. Pure; writing only.
// Not a library, because libraries build a message in memory and a model does not fit: here a field's content may be pieces
// that are read when they are written, since all that the format asks for in advance is their length.
import { assert } from "../../peer/wire/errors.ts";
import { type Piece, totalBytes } from "./pieces.ts";

const VARINT = 0, LENGTH_DELIMITED = 2, FIXED32 = 5;

/** An int32, int64 or enum; negative numbers take ten bytes, as two's complement of 64 bits. */
export function intField(field: number, value: number): Uint8Array {
  assert(Number.isSafeInteger(value), `${value} is an integer`);
  return Uint8Array.from([...varint(field << 3 | VARINT), ...varint(value)]);
}

export function floatField(field: number, value: number): Uint8Array {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setFloat32(0, value, true);
  return Uint8Array.from([...varint(field << 3 | FIXED32), ...bytes]);
}

export function textField(field: number, text: string): Uint8Array {
  const bytes = new TextEncoder().encode(text);
  return concat([Uint8Array.from(head(field, bytes.length)), bytes]);
}

/** A message whose content is at hand. */
export function messageField(field: number, parts: readonly Uint8Array[]): Uint8Array {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  return concat([Uint8Array.from(head(field, length)), ...parts]);
}

/** Bytes or a message whose content may be read later. */
export function lazyField(field: number, parts: readonly Piece[]): Piece[] {
  return [Uint8Array.from(head(field, totalBytes(parts))), ...parts];
}

function head(field: number, length: number): number[] {
  return [...varint(field << 3 | LENGTH_DELIMITED), ...varint(length)];
}

function varint(value: number): number[] {
  let rest = BigInt.asUintN(64, BigInt(value));
  const bytes: number[] = [];
  while (rest > 0x7fn) {
    bytes.push(Number(rest & 0x7fn) | 0x80);
    rest >>= 7n;
  }
  bytes.push(Number(rest));
  return bytes;
}

function concat(parts: readonly Uint8Array[]): Uint8Array {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}
