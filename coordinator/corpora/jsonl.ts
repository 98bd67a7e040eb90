// JSON Lines -> documents: one object a line, one of its fields is the text. Pure. A line that does not fit ends the reading with
// its number: leaving it out silently would train on less than the organizer believes.
import { badCorpus, decodeUtf8, quoted, refuseMagic } from "./utf8.ts";

/** Bytes of one line; a longer one is no line of documents but a whole file in one piece. */
export const LINE_BYTES_MAX = 32 << 20;
/** Arrays and objects inside one another; deeper ones are an attack on whoever reads them. */
export const DEPTH_MAX = 100;

const LINE_FEED = 0x0a;

export interface JsonlOptions {
  name: string;
  /** The field that holds the text. */
  field: string;
}

/** One document per line that is not blank. `bytes` are the line's. @throws {ShoalError} bad-corpus with the line. */
export async function* jsonlDocuments(
  chunks: AsyncIterable<Uint8Array>,
  options: JsonlOptions,
): AsyncGenerator<{ text: string; bytes: number }> {
  let line = 0, byte = 0;
  for await (const bytes of linesOf(chunks, options.name)) {
    line++;
    if (line === 1) refuseMagic(options.name, bytes);
    let text = decodeUtf8(bytes, { name: options.name, line, byte });
    if (line === 1 && text.startsWith("\ufeff")) text = text.slice(1);
    byte += bytes.length + 1;
    if (text.trim() !== "") yield { text: textOf(text, line, options), bytes: bytes.length + 1 };
  }
}

/** Lines without their ends. */
async function* linesOf(chunks: AsyncIterable<Uint8Array>, name: string): AsyncGenerator<Uint8Array> {
  let parts: Uint8Array[] = [], size = 0, line = 1;
  for await (const chunk of chunks) {
    let from = 0;
    for (let to = chunk.indexOf(LINE_FEED); to >= 0; to = chunk.indexOf(LINE_FEED, from)) {
      yield together([...parts, chunk.subarray(from, to)], size + to - from);
      parts = [];
      size = 0;
      from = to + 1;
      line++;
    }
    if (from < chunk.length) parts.push(chunk.slice(from));
    size += chunk.length - from;
    if (size > LINE_BYTES_MAX) {
      const most = `${LINE_BYTES_MAX >> 20} MiB`;
      throw badCorpus(`${quoted(name)}, line ${line}: it has more than ${most}; a line is one JSON object`);
    }
  }
  if (size > 0) yield together(parts, size);
}

function together(parts: readonly Uint8Array[], size: number): Uint8Array {
  if (parts.length === 1) return parts[0]!;
  const all = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function textOf(json: string, line: number, { name, field }: JsonlOptions): string {
  const wrong = (what: string) => badCorpus(`${quoted(name)}, line ${line}: ${what}`);
  if (isDeep(json)) throw wrong(`it nests more than ${DEPTH_MAX} levels deep`);
  const value = parsed(json, wrong);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    const example = JSON.stringify({ [field]: "..." });
    throw wrong(`it is ${kindOf(value)}; each line is an object such as ${example}`);
  }
  if (!Object.hasOwn(value, field)) throw wrong(`it has no field ${quoted(field)}${others(value)}`);
  const text = (value as Record<string, unknown>)[field];
  if (typeof text !== "string") throw wrong(`its field ${quoted(field)} is ${kindOf(text)}, not text`);
  if (!text.isWellFormed()) throw wrong("its text contains half of a surrogate pair, which is no character");
  return text;
}

function parsed(json: string, wrong: (what: string) => Error): unknown {
  try {
    return JSON.parse(json);
  } catch (error) {
    // V8 quotes the whole text; only its first sentence is of use.
    const reason = error instanceof Error ? error.message.replace(/, ?\.{0,3}".*$/s, "").slice(0, 100) : "";
    throw wrong(`it is not JSON: ${reason}; it begins with ${quoted(json.slice(0, 40))}`);
  }
}

function others(value: object): string {
  const names = Object.keys(value).slice(0, 8).map(quoted).join(", ");
  return names === "" ? "" : `; it has ${names}: name one as the column`;
}

function kindOf(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "a list";
  return typeof value === "object" ? "an object" : `a ${typeof value}`;
}

/** Counts brackets outside of texts, so that a parser is never given what would exhaust it. */
function isDeep(json: string): boolean {
  let depth = 0, inText = false;
  for (let i = 0; i < json.length; i++) {
    const code = json.charCodeAt(i);
    if (inText) {
      if (code === 0x5c) i++;
      else if (code === 0x22) inText = false;
    } else if (code === 0x22) inText = true;
    else if (code === 0x5b || code === 0x7b) {
      if (++depth > DEPTH_MAX) return true;
    } else if (code === 0x5d || code === 0x7d) depth--;
  }
  return false;
}
