// Data frames: a fixed 96-byte little-endian header, then the payload, crc32c over both. This is the hot
// path, so it is bytes and not msgpack; what a frame means is decided elsewhere. The byte table is in
// docs/protocol.md and a test compares the two.
import { crc32c } from "./crc32c.ts";
import { refuse, type Result, ShoalError } from "./errors.ts";
import type { CodecId } from "./run.ts";

/** First four bytes of a frame, "SHOL" read as a little-endian number. */
export const FRAME_MAGIC = 0x4c4f4853;
/** Version of this layout; peers of another version are refused in the handshake and again here. */
export const FRAME_VERSION = 2;
export const FRAME_HEADER_BYTES = 96;
/**
 * Bounds what one frame can make a receiver allocate: 64 MiB is 16 M values of f32, far above any boundary
 * tensor.
 */
export const FRAME_PAYLOAD_BYTES_MAX = 64 * 1024 * 1024;
export const FRAME_BYTES_MAX = FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX;
/** The longest snapshot message: the offer of a shard of 1 GiB. */
export const SNAPSHOT_PAYLOAD_BYTES_MAX = 299_648;
/** The longest probe of a link: long enough to outlast what timers and threads add, short enough to be no load. */
export const PROBE_PAYLOAD_BYTES_MAX = 160 * 1024;
/** By kind: the longest payload of those that are bytes. */
const RAW_BYTES_MAX = { snapshot: SNAPSHOT_PAYLOAD_BYTES_MAX, probe: PROBE_PAYLOAD_BYTES_MAX };
/** Rows of a text that go through a stage together: a longer prompt travels in pieces. */
export const TEXT_ROWS_MAX = 16;
/** Micro-batches that the set of a partial sum can name; one more would not fit the 32-byte bitset. */
export const FRAME_SET_MAX = 256;
/** Beyond this a power of two times a decoded value could leave the range of f32. */
export const EXPONENT_MAX = 100;
/** Values in one i8b64 block, which share one scale. */
export const I8_BLOCK = 64;
/** Values in one block of packed integers, which share one width; w bits of each are then w whole words of 64 bits. */
export const PACK_BLOCK = 64;

export type FrameKind =
  | "activation"
  | "gradient"
  | "part"
  | "tied"
  | "total"
  | "shard"
  | "snapshot"
  | "probe"
  | "text";
/** "bytes": the payload has a layout of its own, one value is one byte. */
export type FrameCodec = CodecId | SumCodec | "bytes";
/** How sums of quantised gradients travel; a receiver reads either. */
export type SumCodec = "int32" | "packed";
export type FramePass = "train" | "eval";

/** Names in wire order: the position is the number on the wire. Append only. */
export const FRAME_KINDS: readonly FrameKind[] = [
  ...["activation", "gradient", "part", "tied", "total", "shard", "snapshot", "probe", "text"] as const,
];
export const FRAME_CODECS: readonly FrameCodec[] = ["raw32", "f16s", "i8b64", "int32", "packed", "bytes"];
export const FRAME_PASSES: readonly FramePass[] = ["train", "eval"];

type FieldType = "u8" | "u16" | "i16" | "u32" | "bits256" | "zeros12";
export interface FrameField {
  name: string;
  offset: number;
  type: FieldType;
}

/** The header, byte by byte. Reserved fields are zero, and a frame where they are not is refused. */
export const FRAME_FIELDS = [
  { name: "magic", offset: 0, type: "u32" },
  { name: "version", offset: 4, type: "u16" },
  { name: "headerBytes", offset: 6, type: "u16" },
  { name: "kind", offset: 8, type: "u8" },
  { name: "codec", offset: 9, type: "u8" },
  { name: "pass", offset: 10, type: "u8" },
  { name: "reserved0", offset: 11, type: "u8" },
  { name: "gen", offset: 12, type: "u32" },
  { name: "step", offset: 16, type: "u32" },
  { name: "incarnation", offset: 20, type: "u32" },
  { name: "fromStage", offset: 24, type: "u16" },
  { name: "toStage", offset: 26, type: "u16" },
  { name: "microBatch", offset: 28, type: "u16" },
  { name: "exponent", offset: 30, type: "i16" },
  { name: "rows", offset: 32, type: "u32" },
  { name: "cols", offset: 36, type: "u32" },
  { name: "payloadBytes", offset: 40, type: "u32" },
  { name: "cut", offset: 44, type: "u32" },
  { name: "set", offset: 48, type: "bits256" },
  { name: "reserved2", offset: 80, type: "zeros12" },
  { name: "crc32c", offset: 92, type: "u32" },
] as const satisfies readonly FrameField[];

type FieldName = (typeof FRAME_FIELDS)[number]["name"];
const FIELDS = new Map<string, FrameField>(FRAME_FIELDS.map((field) => [field.name, field]));
const CRC_OFFSET = 92;
const SET_OFFSET = 48;
const RESERVED2_OFFSET = 80;
const FOUR_ZEROS = new Uint8Array(4);
/** Fields of FrameHeader that are plain numbers on the wire. */
const NUMBERS = [
  "gen",
  "cut",
  "step",
  "incarnation",
  "fromStage",
  "toStage",
  "microBatch",
  "exponent",
  "rows",
  "cols",
] as const;

/** What a frame says about its payload. */
export interface FrameHeader {
  kind: FrameKind;
  /** A SumCodec for the kinds that carry sums, a CodecId for the two boundary kinds. */
  codec: FrameCodec;
  pass: FramePass;
  /** Generation of the view that the sender executes. */
  gen: number;
  /** Generation with which the present cut of the layers began: views of one cut share states and open steps. */
  cut: number;
  step: number;
  /** Incarnation of the sender; fences what an evicted process still sends. */
  incarnation: number;
  fromStage: number;
  toStage: number;
  microBatch: number;
  /** Power of two of the tensor, -100..100; 0 for raw32 and bytes; of a sum 1 if one of its values was not finite, else 0. */
  exponent: number;
  rows: number;
  cols: number;
  /** Micro-batches contained in a partial sum, ascending, each below 256; empty for boundary tensors. */
  set: number[];
}

export interface Frame {
  header: FrameHeader;
  payload: Uint8Array;
}

/**
 * Bytes that `rows` x `cols` values take in a codec of fixed size, padding included. May exceed the limit: check before
 * use.
 */
export function framePayloadBytes(codec: Exclude<FrameCodec, "packed">, rows: number, cols: number): number {
  const n = rows * cols;
  const blocks = Math.ceil(n / I8_BLOCK);
  switch (codec) {
    case "raw32":
    case "int32":
      return n * 4;
    case "f16s":
      return roundUp4(n * 2);
    case "i8b64":
      return roundUp4(blocks * 2) + blocks * I8_BLOCK;
    case "bytes":
      return n;
  }
}

/** Least and most bytes that `values` packed integers can take: every block 0 or 32 bits wide. */
export function packedPayloadBytes(values: number): { min: number; max: number } {
  const blocks = Math.ceil(values / PACK_BLOCK);
  const min = roundUp4(blocks);
  return { min, max: min + blocks * PACK_BLOCK * 4 };
}

/** True for the codecs of "part" and "tied". */
export function isSumCodec(codec: FrameCodec): codec is SumCodec {
  return codec === "int32" || codec === "packed";
}

function roundUp4(bytes: number): number {
  return Math.ceil(bytes / 4) * 4;
}

/**
 * Serialises one frame into a fresh array. Throws ShoalError internal where the header breaks its own
 * contract.
 */
export function encodeFrame(header: FrameHeader, payload: Uint8Array): Uint8Array<ArrayBuffer> {
  const problem = headerProblem(header, payload.length) ?? rangeProblem(header);
  if (problem !== null) {
    throw new ShoalError(
      "internal",
      `cannot encode a frame: ${problem}; fix the caller that built the header`,
    );
  }
  const bytes = new Uint8Array(FRAME_HEADER_BYTES + payload.length);
  const view = new DataView(bytes.buffer);
  put(view, "magic", FRAME_MAGIC);
  put(view, "version", FRAME_VERSION);
  put(view, "headerBytes", FRAME_HEADER_BYTES);
  put(view, "kind", FRAME_KINDS.indexOf(header.kind));
  put(view, "codec", FRAME_CODECS.indexOf(header.codec));
  put(view, "pass", FRAME_PASSES.indexOf(header.pass));
  for (const name of NUMBERS) put(view, name, header[name]);
  put(view, "payloadBytes", payload.length);
  for (const m of header.set) bytes[SET_OFFSET + (m >> 3)]! |= 1 << (m & 7);
  bytes.set(payload, FRAME_HEADER_BYTES);
  put(view, "crc32c", frameCrc(bytes));
  return bytes;
}

/**
 * Reads one whole frame; the payload is a view into `bytes`, not a copy. Never throws: refuses with
 * "wrong-version" a frame of another layout, with "bad-frame" anything else that encodeFrame would not have
 * written.
 */
export function decodeFrame(bytes: Uint8Array): Result<Frame> {
  if (bytes.length < FRAME_HEADER_BYTES) {
    return refuse("bad-frame", `frame of ${bytes.length} bytes, its header alone has ${FRAME_HEADER_BYTES}`);
  }
  if (bytes.length > FRAME_BYTES_MAX) {
    return refuse("bad-frame", `frame of ${bytes.length} bytes, the limit is ${FRAME_BYTES_MAX}`);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (get(view, "magic") !== FRAME_MAGIC) {
    return refuse("bad-frame", "no frame magic in the first four bytes");
  }
  const version = get(view, "version");
  if (version !== FRAME_VERSION) {
    return refuse("wrong-version", `frame version ${version}, this peer reads ${FRAME_VERSION}`);
  }
  const problem = envelopeProblem(bytes, view);
  if (problem !== null) return refuse("bad-frame", problem);
  const header = readHeader(bytes, view);
  if (header === null) return refuse("bad-frame", "kind, codec or pass is not one that this version names");
  const payload = bytes.subarray(FRAME_HEADER_BYTES);
  const wrong = headerProblem(header, payload.length);
  return wrong === null ? { ok: true, value: { header, payload } } : refuse("bad-frame", wrong);
}

function envelopeProblem(bytes: Uint8Array, view: DataView): string | null {
  const headerBytes = get(view, "headerBytes");
  if (headerBytes !== FRAME_HEADER_BYTES) {
    return `header of ${headerBytes} bytes, expected ${FRAME_HEADER_BYTES}`;
  }
  const payloadBytes = get(view, "payloadBytes");
  if (payloadBytes !== bytes.length - FRAME_HEADER_BYTES) {
    return `payload said to be ${payloadBytes} bytes, ${bytes.length - FRAME_HEADER_BYTES} arrived`;
  }
  if (get(view, "crc32c") !== frameCrc(bytes)) return "crc32c does not match: the frame was damaged";
  let reserved = get(view, "reserved0");
  for (let i = RESERVED2_OFFSET; i < CRC_OFFSET; i++) reserved |= bytes[i]!;
  return reserved === 0 ? null : "a reserved byte is not zero";
}

function readHeader(bytes: Uint8Array, view: DataView): FrameHeader | null {
  const kind = FRAME_KINDS[get(view, "kind")];
  const codec = FRAME_CODECS[get(view, "codec")];
  const pass = FRAME_PASSES[get(view, "pass")];
  if (kind === undefined || codec === undefined || pass === undefined) return null;
  const set: number[] = [];
  for (let m = 0; m < FRAME_SET_MAX; m++) {
    if ((bytes[SET_OFFSET + (m >> 3)]! >> (m & 7)) & 1) set.push(m);
  }
  return {
    kind,
    codec,
    pass,
    gen: get(view, "gen"),
    cut: get(view, "cut"),
    step: get(view, "step"),
    incarnation: get(view, "incarnation"),
    fromStage: get(view, "fromStage"),
    toStage: get(view, "toStage"),
    microBatch: get(view, "microBatch"),
    exponent: get(view, "exponent"),
    rows: get(view, "rows"),
    cols: get(view, "cols"),
    set,
  };
}

/** Kinds that carry integers: sums of quantised weight gradients. */
export function isSumKind(kind: FrameKind): boolean {
  return kind === "part" || kind === "tied" || kind === "total" || kind === "shard";
}

/** Kinds whose payload is bytes of a layout of their own: they are of no round and of no stage. */
function isRawKind(kind: FrameKind): kind is keyof typeof RAW_BYTES_MAX {
  return kind in RAW_BYTES_MAX;
}

/** Rules that bind the fields to each other; the same for what we write and for what a stranger sent. */
function headerProblem(header: FrameHeader, payloadBytes: number): string | null {
  const { kind, codec, exponent, rows, cols, set } = header;
  const sum = isSumKind(kind);
  const raw = isRawKind(kind);
  if (sum !== isSumCodec(codec) || raw !== (codec === "bytes")) {
    return `codec ${codec} cannot carry a frame of kind ${kind}`;
  }
  if (!sum && set.length > 0) return `kind ${kind} carries one micro-batch, its set must be empty`;
  if (kind === "text" && (codec !== "raw32" || rows > TEXT_ROWS_MAX)) {
    return `a text travels as at most ${TEXT_ROWS_MAX} rows of raw32, not ${rows} of ${codec}`;
  }
  if (rows < 1 || cols < 1) return `shape ${rows} x ${cols} has no values`;
  const exact = codec === "raw32" || raw;
  const fits = sum
    ? exponent === 0 || exponent === 1
    : exact
    ? exponent === 0
    : Math.abs(exponent) <= EXPONENT_MAX;
  if (!fits) {
    return `exponent ${exponent} is outside the range of codec ${codec}`;
  }
  return sizeProblem(header, payloadBytes);
}

/**
 * A packed payload may have any length between its least and most. Its most must fit a frame too, so that what a
 * receiver unpacks is never larger than what a frame may carry, however well a forger's zeros are packed.
 */
function sizeProblem({ kind, codec, rows, cols }: FrameHeader, payloadBytes: number): string | null {
  const exact = codec === "packed" ? null : framePayloadBytes(codec, rows, cols);
  const { min, max } = exact === null ? packedPayloadBytes(rows * cols) : { min: exact, max: exact };
  const what = `${rows} x ${cols} values in ${codec}`;
  const limit = isRawKind(kind) ? RAW_BYTES_MAX[kind] : FRAME_PAYLOAD_BYTES_MAX;
  if (max > limit) {
    return `${what} may need ${max} bytes, the limit is ${limit}`;
  }
  if (payloadBytes >= min && payloadBytes <= max) return null;
  return `${what} need ${min === max ? min : `${min} to ${max}`} bytes, the payload has ${payloadBytes}`;
}

/** Only our own mistakes can break these: what was read from the wire fits by construction. */
function rangeProblem(header: FrameHeader): string | null {
  if (!FRAME_KINDS.includes(header.kind) || !FRAME_PASSES.includes(header.pass)) {
    return "unknown kind or pass";
  }
  for (const name of NUMBERS) {
    const value = header[name];
    const type = FIELDS.get(name)!.type;
    const max = type === "u32" ? 0xffffffff : type === "u16" ? 0xffff : EXPONENT_MAX;
    const min = type === "i16" ? -EXPONENT_MAX : 0;
    if (!Number.isInteger(value) || value < min || value > max) {
      return `${name} = ${value} is not in ${min}..${max}`;
    }
  }
  let last = -1;
  for (const m of header.set) {
    if (!Number.isInteger(m) || m <= last || m >= FRAME_SET_MAX) {
      return `set [${header.set}] is not ascending below ${FRAME_SET_MAX}`;
    }
    last = m;
  }
  return null;
}

/** Over the header with its crc field read as zero, then the payload. */
function frameCrc(bytes: Uint8Array): number {
  const head = crc32c(FOUR_ZEROS, crc32c(bytes.subarray(0, CRC_OFFSET)));
  return crc32c(bytes.subarray(FRAME_HEADER_BYTES), head);
}

function put(view: DataView, name: FieldName, value: number): void {
  const { offset, type } = FIELDS.get(name)!;
  if (type === "u8") view.setUint8(offset, value);
  else if (type === "u16") view.setUint16(offset, value, true);
  else if (type === "i16") view.setInt16(offset, value, true);
  else view.setUint32(offset, value, true);
}

function get(view: DataView, name: FieldName): number {
  const { offset, type } = FIELDS.get(name)!;
  if (type === "u8") return view.getUint8(offset);
  if (type === "u16") return view.getUint16(offset, true);
  if (type === "i16") return view.getInt16(offset, true);
  return view.getUint32(offset, true);
}
