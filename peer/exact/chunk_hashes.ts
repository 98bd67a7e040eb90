// Bytes in chunks of one size, each with its hash: what has changed since the last copy, and a copy that is put together
// beside the old one. Not transport (peer/core/keeper_wire.ts). An Assembly gives its bytes out only once every chunk of
// them has been checked, so nobody ever sees half of a snapshot.
import { assert, refuse, type Result } from "../wire/errors.ts";
import { hashWords } from "./hash.ts";

/** With the headers of frame and snapshot it fits one chunk of a link, so urgent frames wait for one message at most. */
export const CONTENT_CHUNK_BYTES = 56 * 1024;
/** Hex digits of a content hash. */
export const HASH_DIGITS = 32;

const WORD = 4;

/** Hash of any bytes: their length and the Murmur hash of their words, so that padding makes no two contents equal. */
export function hashBytes(bytes: Uint8Array): string {
  const inner = hashWords(wordsOf(bytes));
  const words = new Uint32Array(8);
  words[0] = bytes.length;
  for (let i = 0; i < 4; i++) words[4 + i] = parseInt(inner.slice(i * 8, i * 8 + 8), 16);
  return hashWords(words);
}

/** The bytes as 32-bit words, the last one filled with zeros; a view where alignment allows it, else a copy. */
export function wordsOf(bytes: Uint8Array): Uint32Array {
  if (bytes.byteOffset % WORD === 0 && bytes.length % WORD === 0) {
    return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / WORD);
  }
  const words = new Uint32Array(Math.ceil(bytes.length / WORD));
  new Uint8Array(words.buffer).set(bytes);
  return words;
}

/** Number of chunks of `bytes` bytes; the last may be shorter. */
export function chunkCount(bytes: number): number {
  return Math.ceil(bytes / CONTENT_CHUNK_BYTES);
}

/** Length of chunk `index` of `total` bytes. */
export function chunkLength(total: number, index: number): number {
  return Math.min(CONTENT_CHUNK_BYTES, total - index * CONTENT_CHUNK_BYTES);
}

/** Chunk `index` as a view. */
export function chunkOf(bytes: Uint8Array, index: number): Uint8Array {
  const start = index * CONTENT_CHUNK_BYTES;
  return bytes.subarray(start, start + chunkLength(bytes.length, index));
}

/** One hash per chunk, in order. */
export function chunkHashes(bytes: Uint8Array): string[] {
  return Array.from({ length: chunkCount(bytes.length) }, (_, i) => hashBytes(chunkOf(bytes, i)));
}

/** Bytes with the hashes of their chunks: what a next version is compared with. */
export interface Hashed {
  bytes: Uint8Array;
  hashes: readonly string[];
}

/** Numbers of the chunks of the next version that differ from the same chunks of the base, ascending. */
export function changedChunks(base: readonly string[], next: readonly string[]): number[] {
  return next.flatMap((hash, i) => hash === base[i] ? [] : [i]);
}

/** A version being written beside the one it replaces: unchanged chunks from the base, the others as they arrive. */
export class Assembly {
  readonly hashes: readonly string[];
  readonly #bytes: Uint8Array<ArrayBuffer>;
  readonly #missing: Set<number>;

  /**
   * @param bytes length of the whole; bounded by the caller, for it is allocated here
   * @param hashes one per chunk, as announced
   * @param base an earlier version; chunks whose hash is the announced one are copied from it
   */
  constructor(bytes: number, hashes: readonly string[], base: Hashed | null) {
    assert(hashes.length === chunkCount(bytes), `${hashes.length} hashes for ${bytes} bytes`);
    this.hashes = hashes;
    this.#bytes = new Uint8Array(bytes);
    const usable = base !== null && base.bytes.length === bytes ? base : null;
    this.#missing = new Set(changedChunks(usable?.hashes ?? [], hashes));
    for (const [i] of hashes.entries()) {
      if (usable === null || this.#missing.has(i)) continue;
      this.#bytes.set(chunkOf(usable.bytes, i), i * CONTENT_CHUNK_BYTES);
    }
  }

  /** Chunks still to come, ascending. */
  get missing(): number[] {
    return [...this.#missing].sort((a, b) => a - b);
  }

  get missingCount(): number {
    return this.#missing.size;
  }

  get length(): number {
    return this.#bytes.length;
  }

  /**
   * Takes one chunk in. Refuses with stale-snapshot a chunk that is there already, with bad-snapshot a number, length or
   * content that was not announced; after a refusal nothing has changed.
   */
  put(index: number, payload: Uint8Array): Result<null> {
    if (!Number.isInteger(index) || index < 0 || index >= this.hashes.length) {
      return refuse("bad-snapshot", `chunk ${index} of ${this.hashes.length}`);
    }
    if (!this.#missing.has(index)) return refuse("stale-snapshot", `chunk ${index} is there already`);
    const expected = chunkLength(this.#bytes.length, index);
    if (payload.length !== expected) {
      return refuse("bad-snapshot", `chunk ${index} has ${payload.length} bytes instead of ${expected}`);
    }
    if (hashBytes(payload) !== this.hashes[index]) {
      return refuse("bad-snapshot", `chunk ${index} differs from its announced hash`);
    }
    this.#bytes.set(payload, index * CONTENT_CHUNK_BYTES);
    this.#missing.delete(index);
    return { ok: true, value: null };
  }

  /**
   * The finished version, or null while a chunk is missing. What came from the base is hashed again, because memory that
   * was kept for minutes is trusted no more than a wire: damaged chunks are missing afterwards.
   */
  finish(): Hashed | null {
    if (this.#missing.size > 0) return null;
    const actual = chunkHashes(this.#bytes);
    for (const index of changedChunks(actual, this.hashes)) this.#missing.add(index);
    return this.#missing.size > 0 ? null : { bytes: this.#bytes, hashes: this.hashes };
  }
}
