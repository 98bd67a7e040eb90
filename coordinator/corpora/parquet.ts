// A Parquet file -> the texts of one of its columns, row by row. Reads one page at a time, so memory does not depend on the file. The
// format's structures are hyparquet's to parse; what they claim is checked first, since the file may come from anywhere.
import { parquetMetadata } from "hyparquet";
import { parquetHeader } from "hyparquet/src/column.js";
import type { ColumnMetaData, FileMetaData, PageHeader, SchemaElement } from "hyparquet";
import { messageOf, ShoalError } from "../../peer/wire/errors.ts";
import { dictionaryOf, PAGE_BYTES_MAX, type PageColumn, valuesOf } from "./parquet_page.ts";
import { walkThrift } from "./thrift_walk.ts";
import { badCorpus, firstInvalid, quoted } from "./utf8.ts";

/** Bytes of a file's description; files with thousands of row groups stay far below. */
const METADATA_BYTES_MAX = 32 << 20;
/** A page's head holds its least and greatest text, which may be long. */
const HEAD_BYTES_MAX = 4 << 20;
const HEAD_BYTES_FIRST = 16 << 10;
/** Rows of one page; their numbers alone take four bytes each. */
const PAGE_ROWS_MAX = 1 << 24;
/** Names of columns that an error lists. */
const SHOWN_MAX = 8;

/** A file that can be read anywhere. */
export interface RandomAccess {
  size: number;
  /** Fewer bytes only at the end. */
  read(at: number, length: number): Promise<Uint8Array>;
}

export interface ParquetOptions {
  name: string;
  column: string;
}

/** One text per row that has one. `done` is how far into the file it lies. @throws {ShoalError} bad-corpus with the row. */
export async function* parquetDocuments(
  file: RandomAccess,
  options: ParquetOptions,
): AsyncGenerator<{ text: string; done: number }> {
  const metadata = await readMetadata(file, options.name);
  const element = columnOf(metadata, options);
  let row = 0;
  for (const group of metadata.row_groups) {
    const rows = Number(group.num_rows);
    const chunk = group.columns.find(({ meta_data: meta }) => {
      return meta?.path_in_schema.length === 1 && meta.path_in_schema[0] === options.column;
    });
    if (rows > 0 && (chunk?.meta_data === undefined || chunk.file_path !== undefined)) {
      throw damaged(options.name, `a row group has no column ${quoted(options.column)}`);
    }
    if (rows <= 0 || chunk?.meta_data === undefined) continue;
    const optional = element.repetition_type !== "REQUIRED";
    yield* chunkTexts(file, { meta: chunk.meta_data, optional, rows, firstRow: row, ...options });
    row += rows;
  }
}

async function readMetadata(file: RandomAccess, name: string): Promise<FileMetaData> {
  const end = await file.read(Math.max(0, file.size - 8), 8);
  const magic = new TextDecoder().decode(end.subarray(4));
  if (magic === "PARE") {
    throw badCorpus(`${quoted(name)} is an encrypted Parquet file; write it without encryption`);
  }
  if (end.length < 8 || magic !== "PAR1") {
    throw badCorpus(`${quoted(name)} is no Parquet file, or its end is missing; copy it again`);
  }
  const length = viewOf(end).getUint32(0, true);
  if (length > file.size - 12) throw damaged(name, `its description has ${length} bytes, more than the file`);
  if (length > METADATA_BYTES_MAX) {
    throw damaged(name, `its description has ${length} bytes; at most ${METADATA_BYTES_MAX} are read`);
  }
  const footer = await file.read(file.size - 8 - length, length + 8);
  if (walkThrift(viewOf(footer.subarray(0, length)), 0) === null) {
    throw damaged(name, "its description does not hold together");
  }
  try {
    // A copy: the parser takes a whole buffer.
    return parquetMetadata(footer.slice().buffer, { geoparquet: false });
  } catch (error) {
    throw damaged(name, messageOf(error).slice(0, 100));
  }
}

/** The column's description. @throws {ShoalError} bad-corpus with the columns that could be meant. */
function columnOf({ schema }: FileMetaData, { name, column }: ParquetOptions): SchemaElement {
  const top = topLevel(schema);
  const found = top.find((it) => it.name === column);
  const isText = (it: SchemaElement) => it.type === "BYTE_ARRAY" && it.repetition_type !== "REPEATED";
  if (found !== undefined && isText(found)) return found;
  const texts = top.filter(isText).map((it) => quoted(it.name));
  const more = texts.length > SHOWN_MAX ? ` and ${texts.length - SHOWN_MAX} more` : "";
  const known = texts.length === 0
    ? "it has no column of texts"
    : `its columns of texts are ${texts.slice(0, SHOWN_MAX).join(", ")}${more}: name one as the column`;
  const what = found === undefined ? "has no column" : "has no texts in the column";
  throw badCorpus(`${quoted(name)} ${what} ${quoted(column)}; ${known}`);
}

/** Columns that are no part of another: the list is a tree written in order. */
function topLevel(schema: readonly SchemaElement[]): SchemaElement[] {
  const top: SchemaElement[] = [];
  let inside = 0;
  for (const element of schema.slice(1)) {
    if (inside === 0) top.push(element);
    else inside--;
    inside += element.num_children ?? 0;
  }
  return top;
}

interface Chunk extends ParquetOptions {
  meta: ColumnMetaData;
  optional: boolean;
  rows: number;
  /** Rows of the groups before. */
  firstRow: number;
}

async function* chunkTexts(
  file: RandomAccess,
  chunk: Chunk,
): AsyncGenerator<{ text: string; done: number }> {
  const { meta, name, column, optional } = chunk;
  const from = Number(meta.dictionary_page_offset || meta.data_page_offset);
  const end = from + Number(meta.total_compressed_size);
  if (!(from >= 4 && end > from && end <= file.size - 8)) {
    throw damaged(name, "a column lies outside of the file");
  }
  const shape: PageColumn = { codec: meta.codec, optional };
  let dictionary: Uint8Array[] | null = null, row = 0;
  for (let at = from; row < chunk.rows;) {
    const page = await readPage(file, { at, end, name });
    at = page.end;
    const rows = rowsOf(page.header);
    if (rows !== null && !(rows >= 0 && rows <= Math.min(chunk.rows - row, PAGE_ROWS_MAX))) {
      throw damaged(name, `a page claims ${rows} rows, but ${chunk.rows - row} are left`);
    }
    const where = `column ${quoted(column)}, row ${chunk.firstRow + row + 1}`;
    const values = decoded(name, where, () => {
      if (page.header.type === "DICTIONARY_PAGE") dictionary = dictionaryOf(page.header, page.body, shape);
      return rows === null
        ? []
        : valuesOf(page.header, page.body, { count: rows, column: shape, dictionary });
    });
    for (const [i, value] of values.entries()) {
      if (value !== null) yield { text: textOf(value, chunk, chunk.firstRow + row + i + 1), done: at };
    }
    row += values.length;
  }
}

/** Rows of a page of data; null for any other page. */
function rowsOf({ data_page_header: v1, data_page_header_v2: v2 }: PageHeader): number | null {
  return v2?.num_values ?? v1?.num_values ?? null;
}

interface PageAt {
  at: number;
  /** Where the column chunk ends. */
  end: number;
  name: string;
}

async function readPage(file: RandomAccess, { at, end, name }: PageAt) {
  if (at >= end) throw damaged(name, "a column ends before its last row");
  for (let size = HEAD_BYTES_FIRST;; size *= 16) {
    const head = await file.read(at, Math.min(size, end - at, HEAD_BYTES_MAX));
    const length = walkThrift(viewOf(head), 0);
    if (length === null) {
      if (size < HEAD_BYTES_MAX && size < end - at) continue;
      throw damaged(name, `the page at byte ${at} has no head`);
    }
    const header = decoded(
      name,
      `the page at byte ${at}`,
      () => parquetHeader({ view: viewOf(head), offset: 0 }),
    );
    const { compressed_page_size: packed, uncompressed_page_size: unpacked } = header;
    const next = at + length + packed;
    if (!(packed >= 0 && unpacked >= 0 && next <= end)) {
      throw damaged(name, `the page at byte ${at} claims ${packed} bytes, more than its column has`);
    }
    if (Math.max(packed, unpacked) > PAGE_BYTES_MAX) {
      const most = `${PAGE_BYTES_MAX >> 20} MiB`;
      throw badCorpus(
        `${quoted(name)} has a page of ${unpacked} bytes; write it again with pages of at most ${most}`,
      );
    }
    const inHead = head.subarray(length, length + packed);
    const body = inHead.length === packed ? inHead : await file.read(at + length, packed);
    if (body.length !== packed) throw damaged(name, "it is cut short");
    return { header, body, end: next };
  }
}

/** What a decoder throws at broken bytes, as an error of the file. */
function decoded<T>(name: string, where: string, decode: () => T): T {
  try {
    return decode();
  } catch (error) {
    if (error instanceof ShoalError) throw error;
    throw damaged(name, `${where}: ${messageOf(error).slice(0, 160)}`);
  }
}

function textOf(bytes: Uint8Array, { name, column }: ParquetOptions, row: number): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    const at = firstInvalid(bytes);
    const byte = at < 0 ? "its end" : `byte ${at}`;
    throw badCorpus(`${quoted(name)}, column ${quoted(column)}, row ${row}: ${byte} is not UTF-8`);
  }
}

function damaged(name: string, what: string): ShoalError {
  return badCorpus(`${quoted(name)} cannot be read as Parquet: ${what}`);
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
