// Walks the bytes of one msgpack value without building anything, so that a stranger's few bytes cannot make the decoder
// allocate or nest without end. Not a decoder: what passes here is complete, shallow, and holds no more values than bytes.

/** Our deepest message is a view (map, view, stages, stage, replicas, replica, micro-batches); deeper is not ours. */
export const DEPTH_MAX = 16;

/** Bytes that follow each head byte from 0xc0 to 0xdf, or of its length field where it has one. */
const FIXED: Record<number, number> = {
  ...{ 0xc0: 0, 0xc2: 0, 0xc3: 0, 0xca: 4, 0xcb: 8, 0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8 },
  ...{ 0xd0: 1, 0xd1: 2, 0xd2: 4, 0xd3: 8, 0xd4: 2, 0xd5: 3, 0xd6: 5, 0xd7: 9, 0xd8: 17 },
};
/** Width of the length field, and what one unit of it stands for: bytes to skip or values to come. */
const SIZED: Record<number, { width: number; extra: number; values: number }> = {
  ...sized([0xc4, 0xc5, 0xc6], { widths: [1, 2, 4], extra: 0, values: 0 }),
  ...sized([0xc7, 0xc8, 0xc9], { widths: [1, 2, 4], extra: 1, values: 0 }),
  ...sized([0xd9, 0xda, 0xdb], { widths: [1, 2, 4], extra: 0, values: 0 }),
  ...sized([0xdc, 0xdd], { widths: [2, 4], extra: 0, values: 1 }),
  ...sized([0xde, 0xdf], { widths: [2, 4], extra: 0, values: 2 }),
};

function sized(heads: number[], of: { widths: number[]; extra: number; values: number }) {
  const { widths, extra, values } = of;
  return Object.fromEntries(heads.map((head, i) => [head, { width: widths[i]!, extra, values }]));
}

/** Why these bytes are not one complete msgpack value of bounded depth and size; null if they are. */
export function shapeProblem(bytes: Uint8Array): string | null {
  const left = [1];
  let at = 0;
  while (left.length > 0) {
    const open = left.length - 1;
    if (left[open] === 0) {
      left.pop();
      continue;
    }
    left[open]!--;
    const next = readHead(bytes, at);
    if (next === null) return `not msgpack at byte ${at} of ${bytes.length}`;
    at = next.at;
    // Every value takes a byte, so a count above what is left is a lie that the decoder would allocate for.
    if (next.values > bytes.length - at) {
      return `${next.values} values declared, ${bytes.length - at} bytes left`;
    }
    if (next.values > 0) left.push(next.values);
    if (left.length > DEPTH_MAX) return `nested deeper than ${DEPTH_MAX}`;
  }
  return at === bytes.length ? null : `${bytes.length - at} bytes after the end`;
}

/** Where the value's own bytes end and how many values belong to it; null if it does not fit. */
function readHead(bytes: Uint8Array, start: number): { at: number; values: number } | null {
  const head = bytes[start];
  if (head === undefined) return null;
  const at = start + 1;
  if (head < 0x80 || head >= 0xe0) return { at, values: 0 };
  if (head < 0x90) return { at, values: (head & 0x0f) * 2 };
  if (head < 0xa0) return { at, values: head & 0x0f };
  if (head < 0xc0) return skipped(bytes, at + (head & 0x1f));
  const sizes = SIZED[head];
  if (sizes === undefined) {
    const fixed = FIXED[head];
    return fixed === undefined ? null : skipped(bytes, at + fixed);
  }
  if (at + sizes.width > bytes.length) return null;
  let length = 0;
  for (let i = 0; i < sizes.width; i++) length = length * 256 + bytes[at + i]!;
  const end = at + sizes.width;
  if (sizes.values > 0) return { at: end, values: length * sizes.values };
  return skipped(bytes, end + sizes.extra + length);
}

function skipped(bytes: Uint8Array, at: number): { at: number; values: number } | null {
  return at <= bytes.length ? { at, values: 0 } : null;
}
