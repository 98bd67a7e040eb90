// Walks a Thrift compact structure without building anything, to know before it is parsed that its lists are as long as they say and
// that it is not nested for ever. Pure. The parser that follows makes a list of the length that a stranger wrote down.
// Source: Apache Thrift, compact protocol encoding.

/** Levels of structures and lists; Parquet's own need seven. */
const DEPTH_MAX = 24;

interface Cursor {
  view: DataView;
  at: number;
}

/** Where the structure that begins at `from` ends; null if it is cut short, lies about a length, or is too deep. */
export function walkThrift(view: DataView, from: number): number | null {
  const cursor = { view, at: from };
  try {
    return walkStruct(cursor, 0) ? cursor.at : null;
  } catch (error) {
    // Reading past the end.
    if (error instanceof RangeError) return null;
    throw error;
  }
}

function walkStruct(cursor: Cursor, depth: number): boolean {
  if (depth > DEPTH_MAX) return false;
  while (true) {
    const byte = cursor.view.getUint8(cursor.at++);
    if ((byte & 0x0f) === 0) return true;
    if (byte >> 4 === 0) skipVarint(cursor);
    if (!walkValue(cursor, byte & 0x0f, depth)) return false;
  }
}

function walkValue(cursor: Cursor, type: number, depth: number): boolean {
  switch (type) {
    case 1:
    case 2:
      return true;
    case 3:
      cursor.view.getUint8(cursor.at++);
      return true;
    case 4:
    case 5:
    case 6:
      skipVarint(cursor);
      return true;
    case 7:
      cursor.view.getFloat64(cursor.at);
      cursor.at += 8;
      return true;
    case 8:
      return skipBinary(cursor);
    case 9:
      return walkList(cursor, depth + 1);
    case 12:
      return walkStruct(cursor, depth + 1);
    default:
      return false;
  }
}

function walkList(cursor: Cursor, depth: number): boolean {
  if (depth > DEPTH_MAX) return false;
  const byte = cursor.view.getUint8(cursor.at++);
  const count = byte >> 4 === 15 ? readVarint(cursor) : byte >> 4;
  const type = byte & 0x0f;
  for (let i = 0; i < count; i++) {
    // Flags in a list have a byte of their own. Each element takes one at least, so a list that lies ends at the end of the bytes.
    if (!walkValue(cursor, type === 1 || type === 2 ? 3 : type, depth)) return false;
  }
  return true;
}

function skipBinary(cursor: Cursor): boolean {
  const length = readVarint(cursor);
  if (length > cursor.view.byteLength - cursor.at) return false;
  cursor.at += length;
  return true;
}

function skipVarint(cursor: Cursor): void {
  for (let i = 0; i < 10; i++) if (cursor.view.getUint8(cursor.at++) < 0x80) return;
  throw new RangeError("a number of more than ten bytes");
}

/** A length: at most 31 bits, or it is no length. */
function readVarint(cursor: Cursor): number {
  let value = 0;
  for (let i = 0; i < 5; i++) {
    const byte = cursor.view.getUint8(cursor.at++);
    value += (byte & 0x7f) * 2 ** (7 * i);
    if (byte < 0x80) {
      if (value <= 0x7fff_ffff) return value;
      break;
    }
  }
  throw new RangeError("a length beyond 31 bits");
}
