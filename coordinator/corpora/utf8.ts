// Bytes of a text file -> text, piece by piece, with the line and byte of the first thing that is not UTF-8. Pure.
// Nothing is replaced silently: a text with a broken character would teach the model the replacement.
import { ShoalError } from "../../peer/wire/errors.ts";

const LINE_FEED = 0x0a;
const BYTE_ORDER_MARK = "\ufeff";
/** Files that are taken for a text by mistake, by their first bytes. */
const MAGICS: readonly { bytes: readonly number[]; is: string; remedy: string }[] = [
  { bytes: [0x50, 0x4b, 0x03, 0x04], is: "a ZIP archive", remedy: "unpack it first" },
  { bytes: [0x1f, 0x8b], is: "compressed with gzip", remedy: "unpack it first" },
  { bytes: [0x28, 0xb5, 0x2f, 0xfd], is: "compressed with zstd", remedy: "unpack it first" },
  { bytes: [0x42, 0x5a, 0x68], is: "compressed with bzip2", remedy: "unpack it first" },
  { bytes: [0xfd, 0x37, 0x7a, 0x58], is: "compressed with xz", remedy: "unpack it first" },
  { bytes: [0x50, 0x41, 0x52, 0x31], is: "a Parquet file", remedy: "let its name end with .parquet" },
  { bytes: [0x25, 0x50, 0x44, 0x46], is: "a PDF document", remedy: "save it as plain text" },
  { bytes: [0xff, 0xfe], is: "UTF-16", remedy: "save it as UTF-8" },
  { bytes: [0xfe, 0xff], is: "UTF-16", remedy: "save it as UTF-8" },
];

/** Refuses what is no text at all by its first bytes. @throws {ShoalError} bad-corpus with the remedy. */
export function refuseMagic(name: string, head: Uint8Array): void {
  const found = MAGICS.find(({ bytes }) => bytes.every((byte, i) => head[i] === byte));
  if (found !== undefined) throw badCorpus(`${quoted(name)} is ${found.is}, not UTF-8 text; ${found.remedy}`);
}

/** Index of the first byte that cannot be part of UTF-8 (RFC 3629); -1 if all is well, an unfinished end included. */
export function firstInvalid(bytes: Uint8Array): number {
  for (let at = 0; at < bytes.length;) {
    const length = sequenceLength(bytes, at);
    if (length === 0) return at;
    at += length;
  }
  return -1;
}

/** Bytes of the character at `at`, or of its beginning at the end of the bytes; 0 if it is none. */
function sequenceLength(bytes: Uint8Array, at: number): number {
  const lead = bytes[at]!;
  if (lead < 0x80) return 1;
  const count = lead >= 0xc2 && lead <= 0xdf
    ? 2
    : lead >= 0xe0 && lead <= 0xef
    ? 3
    : lead >= 0xf0 && lead <= 0xf4
    ? 4
    : 0;
  // Overlong forms, surrogates and what lies beyond U+10FFFF show in the second byte.
  const least = lead === 0xe0 ? 0xa0 : lead === 0xf0 ? 0x90 : 0x80;
  const most = lead === 0xed ? 0x9f : lead === 0xf4 ? 0x8f : 0xbf;
  for (let i = 1; i < count; i++) {
    const byte = bytes[at + i];
    if (byte === undefined) return i;
    if (byte < (i === 1 ? least : 0x80) || byte > (i === 1 ? most : 0xbf)) return 0;
  }
  return count;
}

/** Bytes at the end that begin a character without finishing it: 0 to 3. */
function unfinished(bytes: Uint8Array): number {
  for (let back = 1; back <= 3 && back <= bytes.length; back++) {
    const byte = bytes[bytes.length - back]!;
    if (byte < 0x80) return 0;
    if (byte < 0xc0) continue;
    const needs = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return needs > back ? back : 0;
  }
  return 0;
}

/** Where a piece begins in its file: lines count from 1, bytes from 0. */
export interface Place {
  name: string;
  line: number;
  byte: number;
}

/** Text of bytes that end with a whole character. @throws {ShoalError} bad-corpus with the line and the byte. */
export function decodeUtf8(bytes: Uint8Array, place: Place): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    const found = firstInvalid(bytes);
    // Without a broken character it can only be one that the end cuts off.
    const at = found >= 0 ? found : bytes.length - unfinished(bytes);
    throw notUtf8(bytes, at, place);
  }
}

function notUtf8(bytes: Uint8Array, at: number, { name, line, byte }: Place): ShoalError {
  const where = `line ${line + linesIn(bytes.subarray(0, at))}, byte ${byte + at}`;
  const shown = [...bytes.subarray(at, at + 4)].map((it) => it.toString(16).padStart(2, "0")).join(" ");
  return badCorpus(`${quoted(name)}, ${where}: ${shown || "the end"} is not UTF-8; save the file as UTF-8`);
}

export function linesIn(bytes: Uint8Array): number {
  let lines = 0;
  for (let at = bytes.indexOf(LINE_FEED); at >= 0; at = bytes.indexOf(LINE_FEED, at + 1)) lines++;
  return lines;
}

/** Text of a file, in pieces as its bytes come. @throws {ShoalError} bad-corpus with the line and the byte. */
export async function* decodeStream(
  name: string,
  chunks: AsyncIterable<Uint8Array>,
): AsyncGenerator<{ text: string; bytes: number }> {
  const place = { name, line: 1, byte: 0 };
  let rest = new Uint8Array(0);
  for await (const chunk of chunks) {
    const all = rest.length === 0 ? chunk : joined(rest, chunk);
    if (place.byte === 0) refuseMagic(name, all);
    const whole = all.subarray(0, all.length - unfinished(all));
    rest = all.slice(whole.length);
    const text = decodeUtf8(whole, place);
    yield {
      text: place.byte === 0 && text.startsWith(BYTE_ORDER_MARK) ? text.slice(1) : text,
      bytes: whole.length,
    };
    place.line += linesIn(whole);
    place.byte += whole.length;
  }
  if (rest.length > 0) throw notUtf8(rest, 0, place);
}

function joined(a: Uint8Array, b: Uint8Array): Uint8Array {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

export function badCorpus(message: string): ShoalError {
  return new ShoalError("bad-corpus", message);
}

/** A name or a word of a file as an error shows it. */
export function quoted(text: string): string {
  return JSON.stringify(text.length > 80 ? `${text.slice(0, 80)}...` : text);
}
