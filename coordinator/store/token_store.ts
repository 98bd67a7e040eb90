// A run's tokens as the coordinator serves them: in memory while they are few, else in the file where they were prepared. Bytes only; what
// they mean is the corpus' matter. What must stay true: of a file no more is in memory than one answer asks for.
import { createHash } from "node:crypto";
import { type BytesPerToken, type Corpus, corpusView, type TokenSource } from "../../peer/model/data.ts";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";

/** A corpus with more bytes is fetched page by page by whoever needs it; below, each peer takes it whole. */
export const WHOLE_BYTES_MAX = 16 << 20;
/** A window of a thousand tokens has 2 to 4 kB: much smaller pages have more hash than use, larger ones are mostly unread. */
const PAGE_BYTES_MIN = 4 << 10;
/** Their hashes are fetched once by each peer that needs any: 4 MiB at most. */
const PAGES_MAX = 1 << 17;
const DIGEST_BYTES = 32;
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
  pieces(begin: number, end: number): AsyncGenerator<Uint8Array<ArrayBuffer>> {
    return this.parts([{ begin, end }]);
  }

  /** The same of several parts, one after the other. */
  async *parts(parts: readonly { begin: number; end: number }[]): AsyncGenerator<Uint8Array<ArrayBuffer>> {
    using file = await Deno.open(this.path);
    for (const { begin, end } of parts) {
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
}

/** The tokens as whoever computes reads them: here as they are, of a file window by window. */
export function sourceOf(tokens: Tokens, width: BytesPerToken): Corpus | TokenSource {
  if (!(tokens instanceof TokenFile)) return tokens;
  return {
    length: tokens.length,
    async read({ begin, end }) {
      const window = new Uint8Array((end - begin) * width);
      let at = 0;
      for await (const piece of tokens.pieces(begin * width, end * width)) {
        window.set(piece, at);
        at += piece.length;
      }
      return corpusView(window.buffer, width);
    },
    expect: () => {},
    takeWaitMs: () => 0,
  };
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

export interface HashedFile {
  bytes: number;
  /** SHA-256 of all of it, hex. */
  hash: string;
  pages: CorpusPages;
}

/**
 * The hash of a file, and of its pages, in one reading. The pages' are kept beside it: they take most of the time, and are read again only
 * if they are of these bytes. @throws {ShoalError} bad-corpus if it cannot be read
 */
export async function hashPages(path: string, pageBytes: number): Promise<HashedFile> {
  return await hashed(path, pageBytes, await keptDigests(path, pageBytes));
}

async function hashed(path: string, pageBytes: number, kept: KeptDigests | null): Promise<HashedFile> {
  const whole = createHash("sha256"), digests: Uint8Array[] = [];
  let bytes = 0;
  try {
    using file = await Deno.open(path);
    // A whole number of pages at a time.
    const piece = new Uint8Array(Math.max(1, Math.floor(PIECE_BYTES / pageBytes)) * pageBytes);
    for (let filled = await fill(file, piece); filled > 0; filled = await fill(file, piece)) {
      const read = piece.subarray(0, filled);
      whole.update(read);
      bytes += filled;
      if (kept !== null) continue;
      for (let at = 0; at < filled; at += pageBytes) digests.push(sha256(read.subarray(at, at + pageBytes)));
    }
  } catch (error) {
    throw new ShoalError("bad-corpus", `${path} cannot be read: ${messageOf(error)}`, { cause: error });
  }
  const hash = whole.digest("hex");
  if (kept !== null && sameSeal(kept, hash)) {
    return { bytes, hash, pages: pagesWith(pageBytes, kept.digests) };
  }
  // They are of other bytes: those that lay there before.
  if (kept !== null) return await hashed(path, pageBytes, null);
  const joined = new Uint8Array(digests.length * DIGEST_BYTES);
  digests.forEach((digest, i) => joined.set(digest, i * DIGEST_BYTES));
  await keepDigests(path, pageBytes, { hash, digests: joined });
  return { bytes, hash, pages: pagesWith(pageBytes, joined) };
}

interface KeptDigests {
  /** Of the file's hash and the digests. */
  seal: Uint8Array;
  digests: Uint8Array<ArrayBuffer>;
}

function pagesWith(bytes: number, digests: Uint8Array<ArrayBuffer>): CorpusPages {
  return { bytes, digests, hash: createHash("sha256").update(digests).digest("hex") };
}

function digestsPath(path: string, pageBytes: number): string {
  return `${path}.pages-${pageBytes}`;
}

function sealOf(hash: string, digests: Uint8Array): Uint8Array {
  return createHash("sha256").update(hash).update(digests).digest();
}

function sameSeal({ seal, digests }: KeptDigests, hash: string): boolean {
  return sealOf(hash, digests).every((byte, i) => byte === seal[i]);
}

/** Null: there are none, or not so many as the file has pages. */
async function keptDigests(path: string, pageBytes: number): Promise<KeptDigests | null> {
  try {
    const { size } = await Deno.stat(path);
    const kept = digestsPath(path, pageBytes), expected = (Math.ceil(size / pageBytes) + 1) * DIGEST_BYTES;
    if ((await Deno.stat(kept)).size !== expected) return null;
    const bytes = await Deno.readFile(kept);
    return { seal: bytes.subarray(0, DIGEST_BYTES), digests: bytes.slice(DIGEST_BYTES) };
  } catch {
    return null;
  }
}

/** Beside the file, renamed once they are whole. A folder that cannot be written, or is full, only costs time the next time. */
async function keepDigests(
  path: string,
  pageBytes: number,
  { hash, digests }: { hash: string; digests: Uint8Array },
): Promise<void> {
  const kept = digestsPath(path, pageBytes), bytes = new Uint8Array(digests.length + DIGEST_BYTES);
  bytes.set(sealOf(hash, digests));
  bytes.set(digests, DIGEST_BYTES);
  const temporary = `${kept}.${crypto.randomUUID()}`;
  try {
    await Deno.writeFile(temporary, bytes, { createNew: true });
    await Deno.rename(temporary, kept);
  } catch {
    await Deno.remove(temporary).catch(() => {});
  }
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
