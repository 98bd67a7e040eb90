// Several files as one tar stream (POSIX ustar), so that a browser can download a folder. Pure; writing only.
// Not a library, because the length must be known before the first file is read, and the files' pieces are read late.
import { assert } from "../../peer/wire/errors.ts";
import { type ExportFile, padding, type Piece, totalBytes } from "./pieces.ts";

const BLOCK_BYTES = 512;
/** What 11 octal digits can say. */
const FILE_BYTES_MAX = 8 ** 11 - 1;
/** Bytes of a name's field. */
const NAME_BYTES_MAX = 100;
const MODE = 0o644;

/** The files under `folder`, and the two empty blocks that end an archive. */
export function tarPieces(folder: string, files: readonly ExportFile[]): Piece[] {
  const entries = files.flatMap(({ name, pieces }): Piece[] => {
    const bytes = totalBytes(pieces);
    return [header(`${folder}/${name}`, bytes), ...pieces, padding(bytes, BLOCK_BYTES)];
  });
  return [...entries, new Uint8Array(2 * BLOCK_BYTES)];
}

/** Fields are ASCII in fixed places, numbers octal with a zero byte after them. Time 0 keeps equal exports equal. */
function header(name: string, bytes: number): Uint8Array {
  const out = new Uint8Array(BLOCK_BYTES);
  const put = (at: number, text: string) => out.set(new TextEncoder().encode(text), at);
  const octal = (value: number, digits: number) => value.toString(8).padStart(digits, "0");
  assert(name.length <= NAME_BYTES_MAX && /^[\x20-\x7e]+$/.test(name), `${name} fits a tar header`);
  assert(bytes <= FILE_BYTES_MAX, `a file of ${bytes} bytes fits a tar header`);
  put(0, name);
  put(100, octal(MODE, 7));
  put(108, octal(0, 7));
  put(116, octal(0, 7));
  put(124, octal(bytes, 11));
  put(136, octal(0, 11));
  // An ordinary file.
  put(156, "0");
  put(257, "ustar");
  put(263, "00");
  // The checksum counts its own field as spaces.
  put(148, " ".repeat(8));
  put(148, `${octal(out.reduce((sum, byte) => sum + byte, 0), 6)}\0 `);
  return out;
}
