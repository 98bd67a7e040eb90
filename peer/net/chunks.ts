// Cuts frames into chunks and puts them together again: a 16-byte little-endian header and at most 60 KiB in
// all. Not a transport and no retransmission: a gap, a repeat or a foreign byte is a refusal, upon which the
// link closes.
import { refuse, type Result } from "../wire/errors.ts";
import { FRAME_BYTES_MAX } from "../wire/frame.ts";
import type { Priority } from "./link.ts";

/**
 * A WebRTC message over 262,144 bytes silently closes the channel; shorter chunks also let urgent frames in
 * sooner.
 */
export const CHUNK_BYTES_MAX = 60 * 1024;
export const CHUNK_HEADER_BYTES = 16;
export const CHUNK_PAYLOAD_BYTES_MAX = CHUNK_BYTES_MAX - CHUNK_HEADER_BYTES;
export const CHUNK_VERSION = 1;
/** Priorities 0..2, one message under way in each: bounds a receiver to three partial frames. */
export const PRIORITY_COUNT = 3;
/** Text of a goodbye, in UTF-8 bytes: a sentence, not a document. */
export const GOODBYE_BYTES_MAX = 400;

export type ChunkType = "data" | "ping" | "pong" | "goodbye" | "hello" | "ack";
/** Names in wire order: the position is the number on the wire. Append only. */
export const CHUNK_TYPES: readonly ChunkType[] = ["data", "ping", "pong", "goodbye", "hello", "ack"];

type FieldType = "u8" | "u32";
/** The chunk header, byte by byte; docs/protocol.md shows the same table. */
export const CHUNK_FIELDS = [
  { name: "id", offset: 0, type: "u32" },
  { name: "offset", offset: 4, type: "u32" },
  { name: "total", offset: 8, type: "u32" },
  { name: "priority", offset: 12, type: "u8" },
  { name: "version", offset: 13, type: "u8" },
  { name: "type", offset: 14, type: "u8" },
  { name: "reserved", offset: 15, type: "u8" },
] as const satisfies readonly { name: string; offset: number; type: FieldType }[];

/**
 * One chunk. Only "data" uses every field; the other types document their use of `id`, `offset` and `total`.
 */
export interface Chunk {
  type: ChunkType;
  /**
   * data: number of the message within its priority, wrapping at 2^32. ping, pong: the token that is echoed.
   */
  id: number;
  /** data: position of the payload within the frame. */
  offset: number;
  /** data: length of the whole frame. */
  total: number;
  priority: Priority;
  payload: Uint8Array;
}

const EMPTY = new Uint8Array(0);

export function controlChunk(type: ChunkType, id: number, rest?: Partial<Chunk>): Chunk {
  return { type, id, offset: 0, total: 0, priority: 0, payload: EMPTY, ...rest };
}

export function encodeChunk(chunk: Chunk): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(CHUNK_HEADER_BYTES + chunk.payload.length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, chunk.id, true);
  view.setUint32(4, chunk.offset, true);
  view.setUint32(8, chunk.total, true);
  bytes[12] = chunk.priority;
  bytes[13] = CHUNK_VERSION;
  bytes[14] = CHUNK_TYPES.indexOf(chunk.type);
  bytes.set(chunk.payload, CHUNK_HEADER_BYTES);
  return bytes;
}

/**
 * Reads one chunk; the payload is a view into `bytes`. Refuses with "bad-frame" or "wrong-version", never
 * throws.
 */
export function decodeChunk(bytes: Uint8Array): Result<Chunk> {
  if (bytes.length < CHUNK_HEADER_BYTES || bytes.length > CHUNK_BYTES_MAX) {
    return refuse(
      "bad-frame",
      `chunk of ${bytes.length} bytes, expected ${CHUNK_HEADER_BYTES}..${CHUNK_BYTES_MAX}`,
    );
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes[13] !== CHUNK_VERSION) {
    return refuse("wrong-version", `chunk version ${bytes[13]}, this peer reads ${CHUNK_VERSION}`);
  }
  const type = CHUNK_TYPES[bytes[14]!];
  const priority = bytes[12]!;
  if (type === undefined || priority >= PRIORITY_COUNT || bytes[15] !== 0) {
    return refuse(
      "bad-frame",
      `chunk of type ${bytes[14]} and priority ${priority} is not one of this version`,
    );
  }
  const payload = bytes.subarray(CHUNK_HEADER_BYTES);
  const chunk: Chunk = {
    type,
    id: view.getUint32(0, true),
    offset: view.getUint32(4, true),
    total: view.getUint32(8, true),
    priority: priority as Priority,
    payload,
  };
  const problem = type === "data" ? dataProblem(chunk) : controlProblem(chunk);
  return problem === null ? { ok: true, value: chunk } : refuse("bad-frame", problem);
}

/**
 * Every chunk of a frame but the last is full, so the number of pieces is bounded by the length of the frame.
 */
function dataProblem({ offset, total, payload }: Chunk): string | null {
  if (total > FRAME_BYTES_MAX) return `frame of ${total} bytes, the limit is ${FRAME_BYTES_MAX}`;
  if (offset > total) return `chunk at ${offset} lies behind the end of its frame of ${total} bytes`;
  const due = Math.min(CHUNK_PAYLOAD_BYTES_MAX, total - offset);
  if (due === 0 && offset > 0) return `empty chunk at ${offset}`;
  return payload.length === due
    ? null
    : `chunk at ${offset} of ${total} carries ${payload.length} bytes, not ${due}`;
}

function controlProblem({ type, payload }: Chunk): string | null {
  const max = type === "goodbye" ? GOODBYE_BYTES_MAX : 0;
  return payload.length <= max ? null : `${type} chunk with ${payload.length} bytes, the limit is ${max}`;
}

interface Message {
  id: number;
  frame: Uint8Array;
  offset: number;
}

/** Frames waiting to be cut and sent; one first-in-first-out line per priority, the lowest number first. */
export class ChunkQueue {
  #lines: Message[][] = Array.from({ length: PRIORITY_COUNT }, () => []);
  #nextId: number[];
  #bytes = 0;
  #frames = 0;

  /** `firstId` exists so that a test can stand just before the wrap. */
  constructor(firstId = 0) {
    this.#nextId = new Array<number>(PRIORITY_COUNT).fill(firstId >>> 0);
  }

  /** Bytes of frames not yet cut off. */
  get bytes(): number {
    return this.#bytes;
  }

  get frames(): number {
    return this.#frames;
  }

  /** Priority of the chunk that next() would give; null if nothing waits. */
  get head(): Priority | null {
    const priority = this.#lines.findIndex((line) => line.length > 0);
    return priority < 0 ? null : priority as Priority;
  }

  /** Keeps a reference to `frame`: the caller must not change it any more. */
  push(frame: Uint8Array, priority: Priority): void {
    const id = this.#nextId[priority]!;
    this.#nextId[priority] = (id + 1) >>> 0;
    this.#lines[priority]!.push({ id, frame, offset: 0 });
    this.#bytes += frame.length;
    this.#frames++;
  }

  next(): Chunk | null {
    const priority = this.head;
    if (priority === null) return null;
    const line = this.#lines[priority]!;
    const message = line[0]!;
    const { id, frame, offset } = message;
    const payload = frame.subarray(offset, offset + CHUNK_PAYLOAD_BYTES_MAX);
    message.offset += payload.length;
    this.#bytes -= payload.length;
    if (message.offset === frame.length) {
      line.shift();
      this.#frames--;
    }
    return { type: "data", id, offset, total: frame.length, priority, payload };
  }

  clear(): void {
    for (const line of this.#lines) line.length = 0;
    this.#bytes = 0;
    this.#frames = 0;
  }
}

interface PartialFrame {
  total: number;
  received: number;
  pieces: Uint8Array[];
}

/**
 * Puts data chunks together: at most one frame under way per priority, memory only for what really arrived.
 */
export class Reassembler {
  #partials: (PartialFrame | null)[] = new Array<PartialFrame | null>(PRIORITY_COUNT).fill(null);
  #expected: number[];

  constructor(firstId = 0) {
    this.#expected = new Array<number>(PRIORITY_COUNT).fill(firstId >>> 0);
  }

  /**
   * Takes the next data chunk; gives the frame if it is complete, null if more is due, "bad-frame" on any
   * gap.
   */
  accept(chunk: Chunk): Result<Uint8Array | null> {
    const { id, offset, total, priority, payload } = chunk;
    const partial = this.#partials[priority] ?? { total, received: 0, pieces: [] };
    const expected = this.#expected[priority]!;
    if (id !== expected || offset !== partial.received || total !== partial.total) {
      const due = `message ${expected} at ${partial.received}`;
      return refuse("bad-frame", `chunk out of order: message ${id} at ${offset} came, ${due} was due`);
    }
    partial.pieces.push(payload);
    partial.received += payload.length;
    if (partial.received < total) {
      this.#partials[priority] = partial;
      return { ok: true, value: null };
    }
    this.#partials[priority] = null;
    this.#expected[priority] = (expected + 1) >>> 0;
    return { ok: true, value: join(partial) };
  }
}

/**
 * One copy, also for a single piece: a frame must not keep the transport's buffer alive or be aligned by its
 * header.
 */
function join({ total, pieces }: PartialFrame): Uint8Array {
  const frame = new Uint8Array(total);
  let at = 0;
  for (const piece of pieces) {
    frame.set(piece, at);
    at += piece.length;
  }
  return frame;
}
