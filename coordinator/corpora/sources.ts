// A file of one of the known formats -> its text in parts, as the tokenizers take it. I/O shell: opens and reads, and leaves what the
// bytes mean to the readers. No part is larger than one document or one read.
import { extname } from "node:path";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { jsonlDocuments } from "./jsonl.ts";
import { parquetDocuments, type RandomAccess } from "./parquet.ts";
import type { CorpusFormat } from "./types.ts";
import { badCorpus, decodeStream, quoted } from "./utf8.ts";

/** Bytes of one read. */
const CHUNK_BYTES = 1 << 20;

export interface CorpusSource {
  path: string;
  /** What errors call it. */
  name: string;
  format: CorpusFormat;
  /** Field of a line's object, or name of a column; without meaning for plain text. */
  column: string;
}

/** Text that follows the part before. */
export interface TextPart {
  text: string;
  /** A document is over with it. */
  ends: boolean;
  /** Bytes of the file that are read by now. */
  done: number;
}

/** By the name's ending: .jsonl or .ndjson, .parquet, anything else is plain text. */
export function formatOf(name: string): CorpusFormat {
  const ending = extname(name).toLowerCase();
  if (ending === ".jsonl" || ending === ".ndjson") return "jsonl";
  return ending === ".parquet" ? "parquet" : "text";
}

/** Text from first to last. @throws {ShoalError} bad-corpus, with the line or row where there is one. */
export async function* readParts(source: CorpusSource): AsyncGenerator<TextPart> {
  const { path, name, format, column } = source;
  using file = await openFile(path, name);
  if (format === "parquet") {
    for await (const { text, done } of parquetDocuments(file, { name, column })) {
      yield { text, ends: true, done };
    }
    return;
  }
  let done = 0;
  const ends = format === "jsonl";
  const pieces = ends
    ? jsonlDocuments(file.chunks(), { name, field: column })
    : decodeStream(name, file.chunks());
  for await (const { text, bytes } of pieces) yield { text, ends, done: done += bytes };
}

/** A file that is read anywhere, or from its beginning to its end. */
class OpenFile implements RandomAccess, Disposable {
  readonly size: number;
  readonly #file: Deno.FsFile;

  constructor(file: Deno.FsFile, size: number) {
    this.#file = file;
    this.size = size;
  }

  async read(at: number, length: number): Promise<Uint8Array> {
    await this.#file.seek(at, Deno.SeekMode.Start);
    const bytes = new Uint8Array(Math.max(0, Math.min(length, this.size - at)));
    let got = 0;
    while (got < bytes.length) {
      const count = await this.#file.read(bytes.subarray(got));
      if (count === null) break;
      got += count;
    }
    return bytes.subarray(0, got);
  }

  async *chunks(): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < this.size;) {
      const bytes = await this.read(at, CHUNK_BYTES);
      if (bytes.length === 0) return;
      at += bytes.length;
      yield bytes;
    }
  }

  [Symbol.dispose](): void {
    this.#file.close();
  }
}

async function openFile(path: string, name: string): Promise<OpenFile> {
  try {
    const { size, isFile } = await Deno.stat(path);
    if (!isFile) throw new Error("it is no file");
    return new OpenFile(await Deno.open(path), size);
  } catch (error) {
    if (error instanceof ShoalError) throw error;
    throw badCorpus(`${quoted(name)} cannot be read: ${messageOf(error)}`);
  }
}
