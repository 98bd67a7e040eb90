// Integer sums packed for the wire and the log, without loss: blocks of 64 values, each as wide as its largest needs.
// Not a quantiser (exact/quantise.ts) and not a frame. One array has one packing, so that equal sums are equal bytes;
// a stranger's bytes are judged whole before anything of their claimed size is allocated.
import { refuse, type Result, ShoalError } from "../wire/errors.ts";
import { FRAME_PAYLOAD_BYTES_MAX, PACK_BLOCK, packedPayloadBytes } from "../wire/frame.ts";

/** A value has 32 bits at most. */
const WIDTH_MAX = 32;

/** -1, 1, -2, 2, ... become 1, 2, 3, 4, ...: small magnitudes have few bits, whatever their sign. */
function zigzag(value: number): number {
  return (value << 1) ^ (value >> 31);
}

/** Bits that the widest of values[first..end) needs, 0 for zeros. */
function widthOf(values: Int32Array, first: number, end: number): number {
  let all = 0;
  for (let i = first; i < end; i++) all |= zigzag(values[i]!);
  return WIDTH_MAX - Math.clz32(all);
}

/** Where the blocks begin: one byte of width per block, padded to a whole word. */
function headBytes(values: number): number {
  return packedPayloadBytes(values).min;
}

/**
 * Payload of codec "packed" (docs/protocol.md): a byte per block of 64 values with its width w, zeros up to a multiple of
 * 4, then 8w bytes per block. Throws ShoalError internal for more values than a frame can hold.
 */
export function packInts(values: Int32Array): Uint8Array<ArrayBuffer> {
  const most = packedPayloadBytes(values.length).max;
  if (most > FRAME_PAYLOAD_BYTES_MAX) {
    throw new ShoalError("internal", `${values.length} values may need ${most} bytes, a frame holds less`);
  }
  const widths = new Uint8Array(Math.ceil(values.length / PACK_BLOCK));
  let bytes = headBytes(values.length);
  for (let block = 0; block < widths.length; block++) {
    const first = block * PACK_BLOCK;
    widths[block] = widthOf(values, first, Math.min(first + PACK_BLOCK, values.length));
    bytes += 8 * widths[block]!;
  }
  const packed = new Uint8Array(bytes);
  packed.set(widths);
  writeBlocks(values, widths, new DataView(packed.buffer, headBytes(values.length)));
  return packed;
}

/** Little-endian words filled from their lowest bit; a block of 64 values of w bits ends with a whole word. */
function writeBlocks(values: Int32Array, widths: Uint8Array, view: DataView): void {
  let at = 0;
  for (let block = 0; block < widths.length; block++) {
    const w = widths[block]!;
    if (w === 0) continue;
    const first = block * PACK_BLOCK;
    const end = at + 8 * w;
    let [word, used] = [0, 0];
    for (let i = first; at < end; i++) {
      const z = i < values.length ? zigzag(values[i]!) : 0;
      word |= z << used;
      used += w;
      if (used < 32) continue;
      view.setInt32(at, word, true);
      at += 4;
      used -= 32;
      word = used === 0 ? 0 : z >>> (w - used);
    }
  }
}

/**
 * The `count` values that packInts packed. Refuses with bad-frame what packInts would not have written for that many
 * values: another length, a width above 32 or larger than needed, padding that is not zero. Never throws, and allocates
 * nothing before the length fits the widths.
 */
export function unpackInts(bytes: Uint8Array, count: number): Result<Int32Array> {
  if (!(Number.isInteger(count) && count >= 0 && packedPayloadBytes(count).max <= FRAME_PAYLOAD_BYTES_MAX)) {
    return refuse("bad-frame", `${count} is not a number of values that a frame holds`);
  }
  const problem = headProblem(bytes, count);
  if (problem !== null) return refuse("bad-frame", problem);
  const values = new Int32Array(count);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = headBytes(count);
  for (let block = 0; block * PACK_BLOCK < count; block++) {
    const w = bytes[block]!;
    if (!readBlock(view, { at, w, first: block * PACK_BLOCK }, values)) {
      return refuse("bad-frame", `block ${block} of packed integers is not packed as it should be`);
    }
    at += 8 * w;
  }
  return { ok: true, value: values };
}

/** Why widths and length cannot belong to `count` values, or null. */
function headProblem(bytes: Uint8Array, count: number): string | null {
  const head = headBytes(count);
  if (bytes.length < head) return `${count} packed integers in ${bytes.length} bytes, ${head} are the least`;
  const blocks = Math.ceil(count / PACK_BLOCK);
  let needed = head;
  for (let i = 0; i < blocks; i++) {
    if (bytes[i]! > WIDTH_MAX) return `block ${i} of packed integers has width ${bytes[i]}`;
    needed += 8 * bytes[i]!;
  }
  for (let i = blocks; i < head; i++) if (bytes[i] !== 0) return "padding of packed widths is not zero";
  return needed === bytes.length ? null : `packed integers need ${needed} bytes, ${bytes.length} came`;
}

/** Reads one block; false if its width is larger than needed or a value beyond the last is not zero. */
function readBlock(
  view: DataView,
  block: { at: number; w: number; first: number },
  values: Int32Array,
): boolean {
  const { w, first } = block;
  if (w === 0) return true;
  const mask = w === WIDTH_MAX ? -1 : (1 << w) - 1;
  const end = Math.min(first + PACK_BLOCK, values.length);
  let { at } = block;
  let [word, used, all, beyond] = [view.getInt32(at, true), 0, 0, 0];
  for (let i = first; i < first + PACK_BLOCK; i++) {
    let z = word >>> used;
    used += w;
    if (used >= 32) {
      at += 4;
      used -= 32;
      // A block's last word ends with its last value; the payload may end there too.
      word = i + 1 < first + PACK_BLOCK ? view.getInt32(at, true) : 0;
      if (used > 0) z |= word << (w - used);
    }
    z &= mask;
    all |= z;
    if (i < end) values[i] = (z >>> 1) ^ -(z & 1);
    else beyond |= z;
  }
  return beyond === 0 && WIDTH_MAX - Math.clz32(all) === w;
}
