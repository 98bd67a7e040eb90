// What holders, keepers and restoring peers say to each other about snapshots: a header of 48 bytes, then a body by type.
// Travels as the payload of a data frame, whose checksum covers it; sizes are checked here before anything is allocated.
import { chunkCount, chunkLength, CONTENT_CHUNK_BYTES, HASH_DIGITS } from "../exact/chunk_hashes.ts";
import { shardBytes, type ShardId, shardIdProblem } from "../exact/parity.ts";
import { refuse, type Result } from "../wire/errors.ts";

export const SNAPSHOT_VERSION = 1;
export const SNAPSHOT_HEADER_BYTES = 48;
/** Words of a refusal, in UTF-8 bytes: a sentence. */
export const REFUSAL_BYTES_MAX = 200;

/**
 * offer: I have this shard, made of these chunks. want: send me these of them. chunk: one of them. kept: all are here and
 * sound. refusal: I shall not take or cannot give it. fetch: offer me this shard.
 */
export type SnapshotType = "offer" | "want" | "chunk" | "kept" | "refusal" | "fetch";
/** Names in wire order: the position is the number on the wire. Append only. */
export const SNAPSHOT_TYPES: readonly SnapshotType[] = ["offer", "want", "chunk", "kept", "refusal", "fetch"];

/** The header, byte by byte, little-endian. */
export const SNAPSHOT_FIELDS = [
  { name: "version", offset: 0, type: "u8" },
  { name: "type", offset: 1, type: "u8" },
  { name: "k", offset: 2, type: "u8" },
  { name: "index", offset: 3, type: "u8" },
  { name: "step", offset: 4, type: "u32" },
  { name: "firstLayer", offset: 8, type: "u16" },
  { name: "endLayer", offset: 10, type: "u16" },
  { name: "totalBytes", offset: 12, type: "u32" },
  { name: "chunk", offset: 16, type: "u32" },
  { name: "reserved", offset: 20, type: "zeros12" },
  { name: "hash", offset: 32, type: "hash128" },
] as const;

const AT = Object.fromEntries(SNAPSHOT_FIELDS.map(({ name, offset }) => [name, offset])) as Record<
  (typeof SNAPSHOT_FIELDS)[number]["name"],
  number
>;
const HASH_BYTES = HASH_DIGITS / 2;

export type SnapshotMessage =
  /** `hashes`: one per chunk of the shard. */
  | { type: "offer"; id: ShardId; hashes: string[] }
  /** `chunks`: ascending. */
  | { type: "want"; id: ShardId; chunks: number[] }
  | { type: "chunk"; id: ShardId; chunk: number; payload: Uint8Array }
  | { type: "kept"; id: ShardId }
  | { type: "refusal"; id: ShardId; reason: string }
  | { type: "fetch"; id: ShardId };

/** Chunks in one shard. */
export function shardChunks(id: ShardId): number {
  return chunkCount(shardBytes(id.totalBytes, id.k));
}

/** Serialises one message; `id` must pass shardIdProblem. */
export function encodeSnapshot(message: SnapshotMessage): Uint8Array<ArrayBuffer> {
  const body = bodyOf(message);
  const bytes = new Uint8Array(SNAPSHOT_HEADER_BYTES + body.length);
  const view = new DataView(bytes.buffer);
  const { id } = message;
  bytes[AT.version] = SNAPSHOT_VERSION;
  bytes[AT.type] = SNAPSHOT_TYPES.indexOf(message.type);
  bytes[AT.k] = id.k;
  bytes[AT.index] = id.index;
  view.setUint32(AT.step, id.step, true);
  view.setUint16(AT.firstLayer, id.firstLayer, true);
  view.setUint16(AT.endLayer, id.endLayer, true);
  view.setUint32(AT.totalBytes, id.totalBytes, true);
  view.setUint32(AT.chunk, message.type === "chunk" ? message.chunk : 0, true);
  bytes.set(hashToBytes(id.hash), AT.hash);
  bytes.set(body, SNAPSHOT_HEADER_BYTES);
  return bytes;
}

function bodyOf(message: SnapshotMessage): Uint8Array {
  switch (message.type) {
    case "offer": {
      const bytes = new Uint8Array(message.hashes.length * HASH_BYTES);
      message.hashes.forEach((hash, i) => bytes.set(hashToBytes(hash), i * HASH_BYTES));
      return bytes;
    }
    case "want": {
      const bits = new Uint8Array(Math.ceil(shardChunks(message.id) / 8));
      for (const chunk of message.chunks) bits[chunk >> 3]! |= 1 << (chunk & 7);
      return bits;
    }
    case "chunk":
      return message.payload;
    case "refusal":
      return encodeReason(message.reason);
    default:
      return new Uint8Array(0);
  }
}

/** As much of the text as fits, cut between characters. */
function encodeReason(reason: string): Uint8Array {
  const bytes = new Uint8Array(REFUSAL_BYTES_MAX);
  return bytes.subarray(0, new TextEncoder().encodeInto(reason, bytes).written);
}

/**
 * Reads one message; a chunk's payload is a view into `bytes`. Never throws: refuses with wrong-version another layout, with
 * bad-snapshot anything that encodeSnapshot would not have written.
 */
export function decodeSnapshot(bytes: Uint8Array): Result<SnapshotMessage> {
  if (bytes.length < SNAPSHOT_HEADER_BYTES) {
    return refuse("bad-snapshot", `a snapshot message of ${bytes.length} bytes`);
  }
  const version = bytes[AT.version];
  if (version !== SNAPSHOT_VERSION) {
    return refuse("wrong-version", `snapshot version ${version}, this peer reads ${SNAPSHOT_VERSION}`);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const id = readId(bytes, view);
  const problem = shardIdProblem(id);
  if (problem !== null) return refuse("bad-snapshot", problem);
  const type = SNAPSHOT_TYPES[bytes[AT.type]!];
  const chunk = view.getUint32(AT.chunk, true);
  if (type === undefined) return refuse("bad-snapshot", `unknown type ${bytes[AT.type]}`);
  if (type !== "chunk" && chunk !== 0) return refuse("bad-snapshot", `a ${type} with chunk number ${chunk}`);
  if (bytes.subarray(AT.reserved, AT.hash).some((byte) => byte !== 0)) {
    return refuse("bad-snapshot", "a reserved byte is not zero");
  }
  const message = readBody(type, { id, chunk, body: bytes.subarray(SNAPSHOT_HEADER_BYTES) });
  return typeof message === "string" ? refuse("bad-snapshot", message) : { ok: true, value: message };
}

function readId(bytes: Uint8Array, view: DataView): ShardId {
  return {
    step: view.getUint32(AT.step, true),
    firstLayer: view.getUint16(AT.firstLayer, true),
    endLayer: view.getUint16(AT.endLayer, true),
    k: bytes[AT.k]!,
    totalBytes: view.getUint32(AT.totalBytes, true),
    hash: hashFromBytes(bytes.subarray(AT.hash, AT.hash + HASH_BYTES)),
    index: bytes[AT.index]!,
  };
}

function readBody(
  type: SnapshotType,
  { id, chunk, body }: { id: ShardId; chunk: number; body: Uint8Array },
): SnapshotMessage | string {
  const count = shardChunks(id);
  switch (type) {
    case "offer": {
      if (body.length !== count * HASH_BYTES) return `an offer of ${body.length} bytes for ${count} chunks`;
      const at = (i: number) => body.subarray(i * HASH_BYTES, (i + 1) * HASH_BYTES);
      return { type, id, hashes: Array.from({ length: count }, (_, i) => hashFromBytes(at(i))) };
    }
    case "want":
      return readWant(id, body, count);
    case "chunk": {
      const length = chunk < count ? chunkLength(shardBytes(id.totalBytes, id.k), chunk) : 0;
      if (length === 0) return `chunk ${chunk} of ${count}`;
      if (body.length !== length) return `chunk ${chunk} has ${body.length} bytes instead of ${length}`;
      return { type, id, chunk, payload: body };
    }
    case "refusal":
      if (body.length > REFUSAL_BYTES_MAX) return `a refusal of ${body.length} bytes`;
      return readRefusal(id, body);
    default:
      return body.length === 0 ? { type, id } : `a ${type} with ${body.length} bytes too many`;
  }
}

function readRefusal(id: ShardId, body: Uint8Array): SnapshotMessage | string {
  try {
    return {
      type: "refusal",
      id,
      reason: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body),
    };
  } catch {
    return "a refusal that is not UTF-8";
  }
}

function readWant(id: ShardId, bits: Uint8Array, count: number): SnapshotMessage | string {
  if (bits.length !== Math.ceil(count / 8)) return `a want of ${bits.length} bytes for ${count} chunks`;
  const chunks: number[] = [];
  for (let i = 0; i < bits.length * 8; i++) if ((bits[i >> 3]! >> (i & 7)) & 1) chunks.push(i);
  return (chunks.at(-1) ?? 0) < count ? { type: "want", id, chunks } : `a want beyond chunk ${count}`;
}

function hashToBytes(hash: string): Uint8Array {
  return Uint8Array.from({ length: HASH_BYTES }, (_, i) => parseInt(hash.slice(2 * i, 2 * i + 2), 16));
}

function hashFromBytes(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Bound of one message, for whoever sets limits on frames: the offer of the largest shard. */
export const SNAPSHOT_MESSAGE_BYTES_MAX = SNAPSHOT_HEADER_BYTES +
  Math.max(CONTENT_CHUNK_BYTES, chunkCount(shardBytes(2 ** 30, 1)) * HASH_BYTES);
