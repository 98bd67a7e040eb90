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

/** Bytes per value, of the types that our own files use. */
const DTYPES = { F32: 4, I16: 2, U8: 1 } as const;
/** Bytes per value, of the types that other writers use. */
const OTHER_DTYPES = {
  ...{ F64: 8, I64: 8, U64: 8, I32: 4, U32: 4, F16: 2, BF16: 2, U16: 2 },
  ...{ I8: 1, BOOL: 1, F8_E4M3: 1, F8_E5M2: 1 },
} as const;

export type Dtype = keyof typeof DTYPES;
export type AnyDtype = Dtype | keyof typeof OTHER_DTYPES;

/** A tensor as a header describes it. */
export interface TensorEntry {
  dtype: AnyDtype;
  shape: number[];
  /** First byte and one past the last, from the end of the header. */
  begin: number;
  end: number;
}

export interface SafetensorsHeader {
  metadata: Record<string, string>;
  tensors: Map<string, TensorEntry>;
}

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
  const length = headerLength(bytes.subarray(0, LENGTH_BYTES), bytes.length, code);
  if (!length.ok) return length;
  const end = LENGTH_BYTES + length.value;
  const data = bytes.subarray(end);
  const header = readHeader(bytes.subarray(LENGTH_BYTES, end), { dataBytes: data.length, dtypes: DTYPES });
  if (typeof header === "string") return refuse(code, header);
  const tensors = new Map<string, Tensor>();
  for (const [name, { dtype, shape, begin, end }] of header.tensors) {
    tensors.set(name, { dtype: dtype as Dtype, shape, bytes: data.subarray(begin, end) });
  }
  return { ok: true, value: { metadata: header.metadata, tensors } };
}

/** Bytes of the JSON header that follows the first 8 bytes of a file of `fileBytes`. Refuses what exceeds file or limit. */
export function headerLength(
  first: Uint8Array,
  fileBytes: number,
  code: ErrorCode = "bad-state",
): Result<number> {
  if (first.length < LENGTH_BYTES || fileBytes < LENGTH_BYTES) {
    return refuse(code, `a file of ${fileBytes} bytes has no safetensors header`);
  }
  const length = new DataView(first.buffer, first.byteOffset, LENGTH_BYTES).getBigUint64(0, true);
  if (length > BigInt(Math.min(HEADER_BYTES_MAX, fileBytes - LENGTH_BYTES))) {
    return refuse(code, `a header of ${length} bytes exceeds the file or ${HEADER_BYTES_MAX} bytes`);
  }
  return { ok: true, value: Number(length) };
}

/**
 * The header of a file from any writer, so that tensors can be read one by one where they lie: tensor `t` occupies bytes
 * 8 + headerLength + t.begin on. Refuses like decodeSafetensors, but knows all types of the format.
 */
export function decodeHeader(
  text: Uint8Array,
  dataBytes: number,
  code: ErrorCode = "bad-state",
): Result<SafetensorsHeader> {
  const header = readHeader(text, { dataBytes, dtypes: { ...DTYPES, ...OTHER_DTYPES } });
  return typeof header === "string" ? refuse(code, header) : { ok: true, value: header };
}

interface HeaderLimits {
  dataBytes: number;
  /** Bytes per value of the types that are accepted. */
  dtypes: Readonly<Record<string, number>>;
}

function readHeader(text: Uint8Array, limits: HeaderLimits): SafetensorsHeader | string {
  const entries = parseJson(text);
  if (!isRecord(entries)) return "the header is not a JSON object";
  const count = Object.keys(entries).length;
  if (count > TENSORS_MAX + 1) return `${count} tensors exceed ${TENSORS_MAX}`;
  const header: SafetensorsHeader = { metadata: {}, tensors: new Map() };
  for (const [name, entry] of Object.entries(entries)) {
    const problem = name === METADATA_KEY
      ? readMetadata(header, entry)
      : readEntry(header, { name, entry }, limits);
    if (problem !== null) return problem;
  }
  return findGap([...header.tensors.values()], limits.dataBytes) ?? header;
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

function readMetadata(header: SafetensorsHeader, entry: unknown): string | null {
  if (!isRecord(entry)) return "the metadata is not an object";
  for (const [key, value] of Object.entries(entry)) {
    if (typeof value !== "string") return `metadata ${JSON.stringify(key).slice(0, 100)} is not a string`;
  }
  header.metadata = Object.fromEntries(Object.entries(entry)) as Record<string, string>;
  return null;
}

/** Adds the tensor, or says what is wrong with it. */
function readEntry(
  header: SafetensorsHeader,
  { name, entry }: { name: string; entry: unknown },
  { dataBytes, dtypes }: HeaderLimits,
): string | null {
  const label = `tensor ${JSON.stringify(name).slice(0, 100)}`;
  if (!isRecord(entry)) return `${label} is not an object`;
  const { dtype, shape, data_offsets: offsets } = entry;
  if (typeof dtype !== "string" || !Object.hasOwn(dtypes, dtype)) {
    return `${label} has an unsupported type; use ${typeList(Object.keys(dtypes))}`;
  }
  if (!isSizes(shape) || shape.length > RANK_MAX) return `${label} has a malformed shape`;
  if (!isSizes(offsets) || offsets.length !== 2) return `${label} has malformed offsets`;
  const [begin, end] = offsets as [number, number];
  if (begin > end || end > dataBytes) {
    return `${label} at ${begin}..${end} leaves the ${dataBytes} bytes of data`;
  }
  if (end - begin !== valueCount(shape) * dtypes[dtype]!) {
    return `${label} has ${end - begin} bytes, which is not its shape`;
  }
  header.tensors.set(name, { dtype: dtype as AnyDtype, shape, begin, end });
  return null;
}

/** "F32, I16 or U8" */
function typeList(names: readonly string[]): string {
  return `${names.slice(0, -1).join(", ")} or ${names.at(-1)}`;
}

function isSizes(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);
}

function valueCount(shape: readonly number[]): number {
  return shape.reduce((count, n) => count * n, 1);
}

/** Tensors must tile the data exactly: anything else hides bytes or reads some twice. */
function findGap(ranges: { begin: number; end: number }[], size: number): string | null {
  let at = 0;
  for (const { begin, end } of ranges.sort((a, b) => a.begin - b.begin || a.end - b.end)) {
    if (begin !== at) return `data at ${Math.min(begin, at)} is ${begin > at ? "unused" : "used twice"}`;
    at = end;
  }
  return at === size ? null : `${size - at} bytes follow the last tensor`;
}
