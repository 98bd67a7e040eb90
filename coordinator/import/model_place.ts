// A place that holds a model's files, and a folder as one. It reads what is asked for, in pieces, and understands nothing of it; model_url.ts
// is the same over HTTP. What must stay true: no read is larger than its caller allows.
import { basename, join } from "node:path";
import { ShoalError } from "../../peer/wire/errors.ts";

/** Read at once; a multiple of every value's size. */
export const PIECE_BYTES = 4 << 20;

/** A file that is open. */
export interface ByteFile {
  /** For messages: where it is. */
  readonly said: string;
  /** Without its folder. */
  readonly name: string;
  readonly size: number;
  /**
   * Bytes [begin, end) in pieces of PIECE_BYTES, the last one of what is left, each in memory of its own.
   * @throws {ShoalError} bad-model if it ends before
   */
  pieces(begin: number, end: number): AsyncGenerator<Uint8Array<ArrayBuffer>>;
  close(): void;
}

export interface ModelPlace {
  /** For messages: the place, or a file of it. */
  said(name?: string): string;
  /** A text of at most so many bytes; null if there is none. @throws {ShoalError} bad-model */
  text(name: string, bytesMax: number): Promise<string | null>;
  has(name: string): Promise<boolean>;
  /** @throws {ShoalError} bad-model if it is not there */
  open(name: string): Promise<ByteFile>;
}

export class FolderPlace implements ModelPlace {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  said(name?: string): string {
    return name === undefined ? this.#folder : join(this.#folder, name);
  }

  async text(name: string, bytesMax: number): Promise<string | null> {
    const path = this.said(name);
    try {
      const { size, isFile } = await Deno.stat(path);
      if (!isFile || size > bytesMax) {
        throw badModel(path, `it has ${size} bytes, at most ${bytesMax} are expected`);
      }
      return utf8(path, await Deno.readFile(path));
    } catch (error) {
      if (error instanceof Deno.errors.NotFound) return null;
      throw error;
    }
  }

  async has(name: string): Promise<boolean> {
    try {
      await Deno.stat(this.said(name));
      return true;
    } catch (error) {
      if (error instanceof Deno.errors.NotFound) return false;
      throw error;
    }
  }

  async open(name: string): Promise<ByteFile> {
    const path = this.said(name);
    try {
      const file = await Deno.open(path);
      const { size, isFile } = await file.stat();
      if (isFile) return new DiskFile(path, file, size);
      file.close();
    } catch (error) {
      if (error instanceof Deno.errors.NotFound) throw badModel(path, "there is no such file");
      throw error;
    }
    throw badModel(path, "it is not a file");
  }
}

class DiskFile implements ByteFile {
  readonly said: string;
  readonly size: number;
  readonly #file: Deno.FsFile;

  constructor(path: string, file: Deno.FsFile, size: number) {
    [this.said, this.#file, this.size] = [path, file, size];
  }

  get name(): string {
    return basename(this.said);
  }

  async *pieces(begin: number, end: number): AsyncGenerator<Uint8Array<ArrayBuffer>> {
    await this.#file.seek(begin, Deno.SeekMode.Start);
    for (let at = begin; at < end; at += PIECE_BYTES) {
      const out = new Uint8Array(Math.min(PIECE_BYTES, end - at));
      for (let have = 0; have < out.length;) {
        const read = await this.#file.read(out.subarray(have));
        if (read === null) throw badModel(this.said, `it ends ${out.length - have} bytes too early`);
        have += read;
      }
      yield out;
    }
  }

  close(): void {
    this.#file.close();
  }
}

/** @throws {ShoalError} bad-model */
export function utf8(said: string, bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw badModel(said, "it is not UTF-8");
  }
}

export function badModel(said: string, reason: string): ShoalError {
  return new ShoalError("bad-model", `${said}: ${reason}`);
}
