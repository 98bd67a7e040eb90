// What an exported file is made of: bytes that are there already, and tensors that are read only when their turn comes.
// Pure. Every size is known before the first byte is read, so headers, archives and HTTP can announce it.
import { assert } from "../../peer/wire/errors.ts";

/** Bytes made on demand, so that a file of any size needs the memory of its largest tensor only. */
export interface LazyBytes {
  /** Exactly what `read` gives. */
  readonly bytes: number;
  read(): Promise<Uint8Array>;
}

export type Piece = Uint8Array | LazyBytes;

export interface ExportFile {
  /** Path in the exported folder, with forward slashes. */
  name: string;
  pieces: readonly Piece[];
}

export function pieceBytes(piece: Piece): number {
  return piece instanceof Uint8Array ? piece.length : piece.bytes;
}

export function totalBytes(pieces: readonly Piece[]): number {
  return pieces.reduce((sum, piece) => sum + pieceBytes(piece), 0);
}

/** The file's bytes in order, one piece at a time. */
export async function* readPieces(pieces: readonly Piece[]): AsyncGenerator<Uint8Array> {
  for (const piece of pieces) {
    if (piece instanceof Uint8Array) {
      yield piece;
      continue;
    }
    const bytes = await piece.read();
    assert(bytes.length === piece.bytes, `a piece of ${bytes.length} bytes was announced as ${piece.bytes}`);
    yield bytes;
  }
}

export function textFile(name: string, text: string): ExportFile {
  return { name, pieces: [new TextEncoder().encode(text)] };
}

export function jsonFile(name: string, value: unknown): ExportFile {
  return textFile(name, JSON.stringify(value, null, 2) + "\n");
}

/** Zeros up to the next multiple of `alignment`. */
export function padding(bytes: number, alignment: number): Uint8Array {
  return new Uint8Array((alignment - bytes % alignment) % alignment);
}
