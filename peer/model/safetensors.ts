// The safetensors file format (huggingface/safetensors, format section of its README): u64 little-endian header
// length, JSON header, raw little-endian tensors. Not what the tensors mean (state_file.ts). Decoding bounds every
// size before use, refuses overlaps and holes, and never throws.
import { assert, type ErrorCode, refuse, type Result } from "../wire/errors.ts";

/** A longer header would cost more to parse than any stage's tensor list needs. */
export const HEADER_BYTES_MAX = 4 << 20;
/** More tensors than 256 layers with moments and exponents need. */
export const TENSORS_MAX = 16_384;
/** Dimensions of a tensor; ours have at most 2. */
const RANK_MAX = 8;
/** Header and tensors start at multiples of 8 bytes, as the reference writer pads. */
const ALIGNMENT = 8;
const LENGTH_BYTES = 8;
const METADATA_KEY = "__metadata__";

/** Bytes per value. */
const DTYPES = { F32: 4, I16: 2, U8: 1 } as const;

export type Dtype = keyof typeof DTYPES;

export interface Tensor {
  dtype: Dtype;
  shape: number[];
  /** Little-endian values, row-major; a view into the file after decoding. */
  bytes: Uint8Array;
}

/** Content of one file; tensors in file order. */
export interface TensorMap {
  metadata: Record<string, string>;
  tensors: Map<string, Tensor>;
}

/** Wraps a typed array without copying. */
export function tensorOf(values: Float32Array | Int16Array | Uint8Array, shape: number[]): Tensor {
  // All platforms with WebGPU are little-endian; anywhere else the files would be wrong without a word.
  assert(new Uint8Array(Uint16Array.of(1).buffer)[0] === 1, "the machine is little-endian");
  assert(values.length === valueCount(shape), `${values.length} values for shape [${shape}]`);
  const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const dtype = values instanceof Float32Array ? "F32" : values instanceof Int16Array ? "I16" : "U8";
  return { dtype, shape, bytes };
}

/** A copy as f32 values; the caller has checked the dtype. */
export function toF32(tensor: Tensor): Float32Array {
  assert(tensor.dtype === "F32", `a tensor of ${tensor.dtype}`);
  return new Float32Array(tensor.bytes.slice().buffer);
}

/** A copy as i16 values; the caller has checked the dtype. */
export function toI16(tensor: Tensor): Int16Array {
  assert(tensor.dtype === "I16", `a tensor of ${tensor.dtype}`);
  return new Int16Array(tensor.bytes.slice().buffer);
}

export function encodeSafetensors(file: TensorMap): Uint8Array<ArrayBuffer> {
  assert(file.tensors.size <= TENSORS_MAX, `${file.tensors.size} tensors in one file`);
  const header: Record<string, unknown> = {};
  if (Object.keys(file.metadata).length > 0) header[METADATA_KEY] = file.metadata;
  const ordered = writeOrder(file.tensors);
  let end = 0;
  for (const [name, { dtype, shape, bytes }] of ordered) {
    assert(name !== METADATA_KEY && bytes.length === valueCount(shape) * DTYPES[dtype], `tensor ${name}`);
    header[name] = { dtype, shape, data_offsets: [end, end + bytes.length] };
    end += bytes.length;
  }
  const text = paddedHeader(header);
  const out = new Uint8Array(LENGTH_BYTES + text.length + end);
  new DataView(out.buffer).setBigUint64(0, BigInt(text.length), true);
  out.set(text, LENGTH_BYTES);
  let at = LENGTH_BYTES + text.length;
  for (const [, { bytes }] of ordered) {
    out.set(bytes, at);
    at += bytes.length;
  }
  return out;
}

/** Wide values first, so that every tensor is aligned to its own value size without holes. */
function writeOrder(tensors: ReadonlyMap<string, Tensor>): [string, Tensor][] {
  return [...tensors].sort(([, a], [, b]) => DTYPES[b.dtype] - DTYPES[a.dtype]);
}

function paddedHeader(header: Record<string, unknown>): Uint8Array {
  const text = JSON.stringify(header);
  const bytes = new TextEncoder().encode(text);
  const missing = (ALIGNMENT - bytes.length % ALIGNMENT) % ALIGNMENT;
  assert(bytes.length + missing <= HEADER_BYTES_MAX, `a header of ${bytes.length} bytes`);
  return missing === 0 ? bytes : new TextEncoder().encode(text + " ".repeat(missing));
}

/**
 * Reads a file's header and views its tensors. Refuses with `code` (default bad-state): too short, a header that is too
 * long or not JSON, unknown dtypes, tensors that leave the file, overlap or leave holes, trailing bytes.
 */
export function decodeSafetensors(bytes: Uint8Array, code: ErrorCode = "bad-state"): Result<TensorMap> {
  const header = readHeader(bytes);
  if (typeof header === "string") return refuse(code, header);
  const data = bytes.subarray(header.end);
  const file: TensorMap = { metadata: {}, tensors: new Map() };
  const ranges: Range[] = [];
  for (const [name, entry] of Object.entries(header.entries)) {
    const problem = name === METADATA_KEY
      ? readMetadata(file, entry)
      : readTensor(file, ranges, { name, entry, data });
    if (problem !== null) return refuse(code, problem);
  }
  const gap = findGap(ranges, data.length);
  return gap === null ? { ok: true, value: file } : refuse(code, gap);
}

interface Range {
  begin: number;
  end: number;
}

function readHeader(bytes: Uint8Array): { end: number; entries: Record<string, unknown> } | string {
  if (bytes.length < LENGTH_BYTES) return `a file of ${bytes.length} bytes has no safetensors header`;
  const length = new DataView(bytes.buffer, bytes.byteOffset, LENGTH_BYTES).getBigUint64(0, true);
  if (length > BigInt(Math.min(HEADER_BYTES_MAX, bytes.length - LENGTH_BYTES))) {
    return `a header of ${length} bytes exceeds the file or ${HEADER_BYTES_MAX} bytes`;
  }
  const end = LENGTH_BYTES + Number(length);
  const entries = parseJson(bytes.subarray(LENGTH_BYTES, end));
  if (!isRecord(entries)) return "the header is not a JSON object";
  const count = Object.keys(entries).length;
  return count <= TENSORS_MAX + 1 ? { end, entries } : `${count} tensors exceed ${TENSORS_MAX}`;
}

function parseJson(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    return undefined;
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function readMetadata(file: TensorMap, entry: unknown): string | null {
  if (!isRecord(entry)) return "the metadata is not an object";
  for (const [key, value] of Object.entries(entry)) {
    if (typeof value !== "string") return `metadata ${JSON.stringify(key).slice(0, 100)} is not a string`;
  }
  file.metadata = Object.fromEntries(Object.entries(entry)) as Record<string, string>;
  return null;
}

interface Entry {
  name: string;
  entry: unknown;
  data: Uint8Array;
}

/** Adds the tensor and its range, or says what is wrong with it. */
function readTensor(file: TensorMap, ranges: Range[], { name, entry, data }: Entry): string | null {
  const label = `tensor ${JSON.stringify(name).slice(0, 100)}`;
  if (!isRecord(entry)) return `${label} is not an object`;
  const { dtype, shape, data_offsets: offsets } = entry;
  if (typeof dtype !== "string" || !Object.hasOwn(DTYPES, dtype)) {
    return `${label} has an unsupported type; use F32, I16 or U8`;
  }
  if (!isSizes(shape) || shape.length > RANK_MAX) return `${label} has a malformed shape`;
  if (!isSizes(offsets) || offsets.length !== 2) return `${label} has malformed offsets`;
  const [begin, end] = offsets as [number, number];
  if (begin > end || end > data.length) {
    return `${label} at ${begin}..${end} leaves the ${data.length} bytes of data`;
  }
  if (end - begin !== valueCount(shape) * DTYPES[dtype as Dtype]) {
    return `${label} has ${end - begin} bytes, which is not its shape`;
  }
  ranges.push({ begin, end });
  file.tensors.set(name, { dtype: dtype as Dtype, shape, bytes: data.subarray(begin, end) });
  return null;
}

function isSizes(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);
}

function valueCount(shape: readonly number[]): number {
  return shape.reduce((count, n) => count * n, 1);
}

/** Tensors must tile the data exactly: anything else hides bytes or reads some twice. */
function findGap(ranges: Range[], size: number): string | null {
  let at = 0;
  for (const { begin, end } of ranges.sort((a, b) => a.begin - b.begin || a.end - b.end)) {
    if (begin !== at) return `data at ${Math.min(begin, at)} is ${begin > at ? "unused" : "used twice"}`;
    at = end;
  }
  return at === size ? null : `${size - at} bytes follow the last tensor`;
}
