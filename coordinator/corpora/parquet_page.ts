// One page of a Parquet column of texts -> its values as bytes. Pure. Flat columns only. Nothing is allocated for what a header
// claims before the bytes for it are known to be there; the limits that bound the rest are the caller's `values`.
// Source: Apache Parquet format, Encodings.md and README (data pages).
import * as zlib from "node:zlib";
import type { PageHeader } from "hyparquet";
import { deltaBinaryUnpack } from "hyparquet/src/delta.js";
import { snappyUncompress } from "hyparquet/src/snappy.js";

/** Bytes of one page, unpacked. Writers make pages of 1 MiB; some put a whole row group into one. */
export const PAGE_BYTES_MAX = 256 << 20;

/** What is wrong with a page; the reader adds where it is. */
export class PageError extends Error {}

export interface PageColumn {
  codec: string;
  /** Rows may be empty. */
  optional: boolean;
}

/** The values that a column chunk's other pages refer to. @throws {PageError} */
export function dictionaryOf(header: PageHeader, body: Uint8Array, column: PageColumn): Uint8Array[] {
  const count = header.dictionary_page_header?.num_values ?? -1;
  return plainValues(unpack(body, header.uncompressed_page_size, column.codec), count);
}

/** One entry per row; null where the row is empty. @param count Rows that the page says it has. @throws {PageError} */
export function valuesOf(
  header: PageHeader,
  body: Uint8Array,
  { count, column, dictionary }: { count: number; column: PageColumn; dictionary: Uint8Array[] | null },
): (Uint8Array | null)[] {
  const { levels, data } = header.data_page_header_v2 === undefined
    ? splitV1(header, body, { count, column })
    : splitV2(header, body, { count, column });
  const encoding = (header.data_page_header_v2 ?? header.data_page_header)?.encoding ?? "none";
  if (levels === null) return decodeValues(data, { encoding, count, dictionary });
  let present = 0;
  for (const level of levels) present += level;
  const values = decodeValues(data, { encoding, count: present, dictionary });
  let next = 0;
  return Array.from(levels, (level) => level === 0 ? null : values[next++]!);
}

interface Split {
  /** 1 where a row has a value; null: each has one. */
  levels: Uint32Array | null;
  data: Uint8Array;
}

interface Rows {
  count: number;
  column: PageColumn;
}

/** Levels and values are packed together; the levels begin with their length. */
function splitV1(header: PageHeader, body: Uint8Array, { count, column }: Rows): Split {
  const page = unpack(body, header.uncompressed_page_size, column.codec);
  if (!column.optional) return { levels: null, data: page };
  const length = page.length < 4 ? -1 : viewOf(page).getUint32(0, true);
  if (length < 0 || length > page.length - 4) throw new PageError("its levels are longer than the page");
  return { levels: levelsOf(page.subarray(4, 4 + length), count), data: page.subarray(4 + length) };
}

/** The levels lie before the packed values. */
function splitV2(header: PageHeader, body: Uint8Array, { count, column }: Rows): Split {
  const v2 = header.data_page_header_v2!;
  const { repetition_levels_byte_length: before, definition_levels_byte_length: length } = v2;
  if (!(before >= 0 && length >= 0 && before + length <= body.length)) {
    throw new PageError("its levels are longer than the page");
  }
  const packed = body.subarray(before + length);
  const size = header.uncompressed_page_size - before - length;
  const data = v2.is_compressed === false || size === 0 ? packed : unpack(packed, size, column.codec);
  const levels = column.optional ? levelsOf(body.subarray(before, before + length), count) : null;
  return { levels, data };
}

function levelsOf(bytes: Uint8Array, count: number): Uint32Array {
  return decodeRuns(bytes, 1, count);
}

interface Values {
  encoding: string;
  count: number;
  dictionary: Uint8Array[] | null;
}

function decodeValues(data: Uint8Array, { encoding, count, dictionary }: Values): Uint8Array[] {
  switch (encoding) {
    case "PLAIN":
      return plainValues(data, count);
    case "PLAIN_DICTIONARY":
    case "RLE_DICTIONARY":
      return referred(data, count, dictionary);
    case "DELTA_LENGTH_BYTE_ARRAY":
      return deltaLength(data, count);
    case "DELTA_BYTE_ARRAY":
      return deltaBytes(data, count);
    default:
      throw new PageError(`its encoding ${encoding} is not known for texts`);
  }
}

/** Each value after its length in four bytes. */
function plainValues(data: Uint8Array, count: number): Uint8Array[] {
  if (!(count >= 0 && count <= data.length / 4)) throw new PageError(`it has no room for ${count} values`);
  const values: Uint8Array[] = [], view = viewOf(data);
  for (let at = 0; values.length < count;) {
    const length = at + 4 > data.length ? Infinity : view.getUint32(at, true);
    at += 4;
    if (length > data.length - at) throw new PageError("a value is longer than the page");
    values.push(data.subarray(at, at + length));
    at += length;
  }
  return values;
}

function referred(data: Uint8Array, count: number, dictionary: Uint8Array[] | null): Uint8Array[] {
  if (dictionary === null) throw new PageError("it refers to a dictionary that is not there");
  if (count === 0) return [];
  const width = data[0] ?? 255;
  if (width > 32) throw new PageError(`numbers of ${width} bits are none`);
  const numbers = decodeRuns(data.subarray(1), width, count);
  return Array.from(numbers, (number) => {
    const value = dictionary[number];
    if (value === undefined) throw new PageError(`it refers to value ${number} of ${dictionary.length}`);
    return value;
  });
}

function deltaLength(data: Uint8Array, count: number): Uint8Array[] {
  const reader = { view: viewOf(data), offset: 0 };
  const lengths = deltas(reader, count);
  return takeAll(data, reader.offset, lengths);
}

/** Each value begins like the one before it; together they are bounded like a page. */
function deltaBytes(data: Uint8Array, count: number): Uint8Array[] {
  const reader = { view: viewOf(data), offset: 0 };
  const prefixes = deltas(reader, count), lengths = deltas(reader, count);
  const suffixes = takeAll(data, reader.offset, lengths);
  let before: Uint8Array = new Uint8Array(0), total = 0;
  return suffixes.map((suffix, i) => {
    const prefix = prefixes[i]!;
    total += prefix + suffix.length;
    if (prefix < 0 || prefix > before.length) throw new PageError("a value begins with more than there is");
    if (total > PAGE_BYTES_MAX) throw new PageError(`it has more than ${PAGE_BYTES_MAX} bytes of text`);
    const value = new Uint8Array(prefix + suffix.length);
    value.set(before.subarray(0, prefix));
    value.set(suffix, prefix);
    before = value;
    return value;
  });
}

function deltas(reader: { view: DataView; offset: number }, count: number): Int32Array {
  const values = new Int32Array(count);
  if (count > 0) deltaBinaryUnpack(reader, count, values);
  return values;
}

/** Neighbouring values from `from` on. */
function takeAll(data: Uint8Array, from: number, lengths: Int32Array): Uint8Array[] {
  let at = from;
  return Array.from(lengths, (length) => {
    if (length < 0 || length > data.length - at) throw new PageError("a value is longer than the page");
    at += length;
    return data.subarray(at - length, at);
  });
}

/** Runs of equal numbers and runs of packed ones ("RLE/bit-packing hybrid"). @throws {PageError} if they end early. */
export function decodeRuns(bytes: Uint8Array, width: number, count: number): Uint32Array {
  const out = new Uint32Array(count);
  let at = 0;
  for (let done = 0; done < count;) {
    let header = 0;
    for (let shift = 0;; shift += 7) {
      const byte = bytes[at++];
      if (byte === undefined || shift > 28) throw new PageError("its runs end early");
      header += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) break;
    }
    const half = Math.floor(header / 2);
    const values = Math.min(header % 2 === 1 ? half * 8 : half, count - done);
    if (values === 0) throw new PageError("it has a run of nothing");
    if (header % 2 === 1) {
      readPacked(bytes, { at, width }, out.subarray(done, done + values));
      at += half * width;
    } else {
      const length = (width + 7) >> 3;
      if (at + length > bytes.length) throw new PageError("its runs end early");
      out.fill(littleEndian(bytes, at, length), done, done + values);
      at += length;
    }
    done += values;
  }
  return out;
}

/** Numbers of `width` bits, lowest bit first. */
function readPacked(bytes: Uint8Array, { at, width }: { at: number; width: number }, out: Uint32Array): void {
  if (Math.ceil(out.length * width / 8) > bytes.length - at) throw new PageError("its runs end early");
  let bit = at * 8;
  for (let i = 0; i < out.length; i++) {
    let value = 0;
    for (let got = 0; got < width;) {
      const take = Math.min(8 - (bit & 7), width - got);
      const part = (bytes[bit >> 3]! >> (bit & 7)) & ((1 << take) - 1);
      value += part * 2 ** got;
      got += take;
      bit += take;
    }
    out[i] = value;
  }
}

function littleEndian(bytes: Uint8Array, at: number, length: number): number {
  let value = 0;
  for (let i = 0; i < length; i++) value += bytes[at + i]! * 2 ** (8 * i);
  return value;
}

/** @throws {PageError} for a codec that is not known, or bytes that do not unpack to `size`. */
function unpack(bytes: Uint8Array, size: number, codec: string): Uint8Array {
  const page = codec === "UNCOMPRESSED" ? bytes : unpackers[codec]?.(bytes, size);
  if (page === undefined) {
    throw new PageError(
      `its compression ${codec} is not supported; write it with snappy, gzip, zstd, brotli or none`,
    );
  }
  if (page.length !== size) throw new PageError(`it unpacks to ${page.length} bytes instead of ${size}`);
  return page;
}

const unpackers: Readonly<Record<string, (bytes: Uint8Array, size: number) => Uint8Array>> = {
  SNAPPY: (bytes, size) => {
    const page = new Uint8Array(size);
    snappyUncompress(bytes, page);
    return page;
  },
  GZIP: (bytes, size) => zlib.gunzipSync(bytes, { maxOutputLength: Math.max(1, size) }),
  BROTLI: (bytes, size) => zlib.brotliDecompressSync(bytes, { maxOutputLength: Math.max(1, size) }),
  ZSTD: (bytes, size) => zlib.zstdDecompressSync(bytes, { maxOutputLength: Math.max(1, size) }),
};

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
