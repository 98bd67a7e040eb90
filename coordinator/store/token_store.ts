// A run's tokens as the coordinator serves them: in memory while they are few, else in the file where they were prepared. Bytes only; what
// they mean is the corpus' matter. What must stay true: of a file no more is in memory than one answer asks for.
import { createHash } from "node:crypto";
import type { BytesPerToken, Corpus } from "../../peer/model/data.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";

/** A corpus with more bytes is fetched page by page by whoever needs it; below, each peer takes it whole. */
export const WHOLE_BYTES_MAX = 16 << 20;
/** A window of a thousand tokens has 2 to 4 kB: much smaller pages have more hash than use, larger ones are mostly unread. */
const PAGE_BYTES_MIN = 4 << 10;
/** Their hashes are fetched once by each peer that needs any: 4 MiB at most. */
const PAGES_MAX = 1 << 17;
/** Bytes of one read while a file is checked, and of one piece of an answer. */
const PIECE_BYTES = 1 << 20;

/** How a corpus is fetched in parts. */
export interface CorpusPages {
  /** Bytes of every page but the last. */
  bytes: number;
  /** SHA-256 of each, one after the other. */
  digests: Uint8Array<ArrayBuffer>;
  /** SHA-256 of the digests, hex. */
  hash: string;
}

/** Tokens on the disk. */
export class TokenFile {
  readonly length: number;
  readonly byteLength: number;
  readonly pages: CorpusPages;
  readonly path: string;

  constructor(path: string, { tokens, bytesPerToken, pages }: TokenFileContent) {
    this.path = path;
    this.length = tokens;
    this.byteLength = tokens * bytesPerToken;
    this.pages = pages;
  }

  /** Bytes from the first to before the second, in pieces. @throws {ShoalError} bad-corpus if the file has changed */
  async *pieces(begin: number, end: number): AsyncGenerator<Uint8Array<ArrayBuffer>> {
    using file = await Deno.open(this.path);
    await file.seek(begin, Deno.SeekMode.Start);
    for (let at = begin; at < end;) {
      const piece = new Uint8Array(Math.min(PIECE_BYTES, end - at));
      const count = await file.read(piece);
      if (count === null) {
        throw new ShoalError("bad-corpus", `${this.path} ends at byte ${at}, before ${end}`);
      }
      at += count;
      yield piece.subarray(0, count);
    }
  }
}

interface TokenFileContent {
  tokens: number;
  bytesPerToken: BytesPerToken;
  pages: CorpusPages;
}

/** Tokens of a run, wherever they are. */
export type Tokens = Corpus | TokenFile;

/** What they take of the coordinator's memory. */
export function heldBytes(tokens: Tokens): number {
  return tokens instanceof TokenFile ? tokens.pages.digests.length : tokens.byteLength;
}

/** Bytes from the first to before the second, in pieces that are not kept. */
export async function* piecesOf(
  tokens: Tokens,
  begin: number,
  end: number,
): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  if (tokens instanceof TokenFile) return yield* tokens.pieces(begin, end);
  yield await Promise.resolve(
    new Uint8Array(tokens.buffer as ArrayBuffer, tokens.byteOffset + begin, end - begin),
  );
}

/** Bytes of a page of a corpus with so many. */
export function pageBytesFor(bytes: number): number {
  let page = PAGE_BYTES_MIN;
  while (page * PAGES_MAX < bytes) page *= 2;
  return page;
}

/** The hash of a file, and of its pages, in one reading. @throws {ShoalError} bad-corpus if it cannot be read */
export async function hashPages(
  path: string,
  pageBytes: number,
): Promise<{ bytes: number; hash: string; pages: CorpusPages }> {
  const whole = createHash("sha256"), digests: Uint8Array[] = [];
  let bytes = 0;
  try {
    using file = await Deno.open(path);
    // A whole number of pages at a time.
    const piece = new Uint8Array(Math.max(1, Math.floor(PIECE_BYTES / pageBytes)) * pageBytes);
    for (let filled = await fill(file, piece); filled > 0; filled = await fill(file, piece)) {
      const read = piece.subarray(0, filled);
      whole.update(read);
      for (let at = 0; at < filled; at += pageBytes) digests.push(sha256(read.subarray(at, at + pageBytes)));
      bytes += filled;
    }
  } catch (error) {
    throw new ShoalError("bad-corpus", `${path} cannot be read: ${messageOf(error)}`, { cause: error });
  }
  const joined = new Uint8Array(digests.length * 32);
  digests.forEach((digest, i) => joined.set(digest, i * 32));
  const hash = createHash("sha256").update(joined).digest("hex");
  return { bytes, hash: whole.digest("hex"), pages: { bytes: pageBytes, digests: joined, hash } };
}

async function fill(file: Deno.FsFile, piece: Uint8Array): Promise<number> {
  let filled = 0;
  while (filled < piece.length) {
    const count = await file.read(piece.subarray(filled));
    if (count === null) break;
    filled += count;
  }
  return filled;
}

function sha256(bytes: Uint8Array): Uint8Array {
  return createHash("sha256").update(bytes).digest();
}
