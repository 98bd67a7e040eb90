// The CPU twins of the boundary codecs: byte-identical with the GPU kernels, and the judge of what a stranger
// sent. Not a transport: frames carry the result. f32 subnormals count as zero everywhere, because GPUs may
// flush them.
import { refuse, type Result, ShoalError } from "../wire/errors.ts";
import { EXPONENT_MAX, FRAME_PAYLOAD_BYTES_MAX, framePayloadBytes, I8_BLOCK } from "../wire/frame.ts";
import type { CodecId, Encoded } from "../wire/run.ts";
import { fromHalf, powerOfTwo, toHalf } from "./f16.ts";

/** Halves hold y * 2^14: |y| < 1 then stays far from overflow, and small values keep all their bits. */
export const F16S_SHIFT = 14;
/** Largest magnitude an honest f16s encoder writes: 1 * 2^14, as the bits of a half. */
const F16S_BITS_MAX = 0x7400;
/** Largest scale an honest i8b64 encoder writes is just above 1/127; 2^-6 as the bits of a half bounds it. */
const SCALE_BITS_MAX = 0x2400;
/** Largest code; -128 is never written, so that codes are symmetric. */
const Q_MAX = 127;
/** Exponent bits of f32 infinity. */
const BIASED_INFINITY = 255;
const NORMAL_MIN = 2 ** -126;

/** Bytes of the payload of `rows` x `cols` values in `codec`, padding included. */
export function payloadBytes(codec: CodecId, rows: number, cols: number): number {
  return framePayloadBytes(codec, rows, cols);
}

/**
 * Encodes `rows` x `cols` row-major values. Throws ShoalError internal for a NaN, an infinity, or a magnitude
 * of 2^100 and more in a scaled codec: these come from our own arithmetic and mean that training diverged.
 */
export function encodeTensor(codec: CodecId, values: Float32Array, ...shape: [number, number]): Encoded {
  const [rows, cols] = shape;
  if (!(rows >= 1 && cols >= 1) || values.length !== rows * cols) {
    throw new ShoalError("internal", `cannot encode ${values.length} values as ${rows} x ${cols}`);
  }
  const exponent = checkedExponent(codec, values);
  const payload = new Uint8Array(payloadBytes(codec, rows, cols));
  if (codec === "raw32") encodeRaw(values, payload);
  else if (codec === "f16s") encodeHalves(values, exponent, payload);
  else encodeBlocks(values, exponent, payload);
  return { codec, exponent, rows, cols, payload };
}

/**
 * e such that max|x| * 2^-e lies in [0.5, 1), clamped to -100..100; 0 for a tensor of zeros and for raw32.
 */
function checkedExponent(codec: CodecId, values: Float32Array): number {
  const max = maxMagnitudeBits(values);
  const biased = max >>> 23;
  if (biased === BIASED_INFINITY) {
    const at = values.findIndex((x) => !Number.isFinite(x));
    throw new ShoalError(
      "internal",
      `value ${at} of the tensor is ${values[at]}: the arithmetic before it diverged`,
    );
  }
  if (codec === "raw32" || max === 0) return 0;
  const exponent = biased - 126;
  if (exponent > EXPONENT_MAX) {
    throw new ShoalError(
      "internal",
      `magnitude 2^${exponent} is too large for codec ${codec}: training diverged`,
    );
  }
  return Math.max(exponent, -EXPONENT_MAX);
}

/**
 * Magnitudes of f32 sort like their bits, so the largest bits are the largest magnitude (and NaN is larger
 * still).
 */
function maxMagnitudeBits(values: Float32Array): number {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  let max = 0;
  for (let i = 0; i < bits.length; i++) {
    const b = bits[i]! & 0x7fffffff;
    if (b > max) max = b;
  }
  return max;
}

/**
 * x * factor for a power of two: exact, except that subnormal inputs and results are zero (of the same sign).
 */
function scaled(x: number, factor: number): number {
  const y = Math.abs(x) < NORMAL_MIN ? x * 0 : x * factor;
  return Math.abs(y) < NORMAL_MIN ? y * 0 : y;
}

function encodeRaw(values: Float32Array, payload: Uint8Array): void {
  const view = new DataView(payload.buffer);
  for (let i = 0; i < values.length; i++) view.setFloat32(i * 4, values[i]!, true);
}

function encodeHalves(values: Float32Array, exponent: number, payload: Uint8Array): void {
  const view = new DataView(payload.buffer);
  const down = powerOfTwo(-exponent);
  for (let i = 0; i < values.length; i++) {
    view.setUint16(i * 2, toHalf(scaled(values[i]!, down) * 2 ** F16S_SHIFT), true);
  }
}

function encodeBlocks(values: Float32Array, exponent: number, payload: Uint8Array): void {
  const view = new DataView(payload.buffer);
  const blocks = Math.ceil(values.length / I8_BLOCK);
  const codes = payload.length - blocks * I8_BLOCK;
  const down = powerOfTwo(-exponent);
  for (let block = 0; block < blocks; block++) {
    const first = block * I8_BLOCK;
    const end = Math.min(first + I8_BLOCK, values.length);
    let m = 0;
    for (let i = first; i < end; i++) m = Math.max(m, Math.abs(scaled(values[i]!, down)));
    const half = scaleHalf(m);
    view.setUint16(block * 2, half, true);
    if (half === 0) continue;
    const s = fromHalf(half);
    for (let i = first; i < end; i++) view.setInt8(codes + i, quantise(scaled(values[i]!, down), s));
  }
}

/**
 * Smallest half s with 127 * s >= m, that is m / 127 rounded up. The products are exact in f32 (11 + 7 bits),
 * so the comparison does not depend on how a GPU rounds its division.
 */
function scaleHalf(m: number): number {
  if (m === 0) return 0;
  let half = toHalf(m / Q_MAX);
  while (fromHalf(half) * Q_MAX < m) half++;
  while (half > 0 && fromHalf(half - 1) * Q_MAX >= m) half--;
  return half;
}

/** Nearest code, ties to even. y / s as f32 never lands on a tie that the exact quotient misses. */
function quantise(y: number, s: number): number {
  const ratio = Math.fround(y / s);
  const floor = Math.floor(ratio);
  const rest = ratio - floor;
  const q = rest > 0.5 || (rest === 0.5 && floor % 2 !== 0) ? floor + 1 : floor;
  return Math.min(Math.max(q, -Q_MAX), Q_MAX);
}

/**
 * Judges an encoded tensor without decoding it: shape, length, exponent, and every scale (or value). After it
 * passes, any decoder, the GPU's included, yields finite values only. Refuses with "bad-frame".
 */
export function checkEncoded(e: Encoded): Result<Encoded> {
  const { codec, exponent, rows, cols, payload } = e;
  if (codec !== "raw32" && codec !== "f16s" && codec !== "i8b64") {
    return refuse("bad-frame", `unknown codec ${codec}`);
  }
  if (!isCount(rows) || !isCount(cols)) return refuse("bad-frame", `shape ${rows} x ${cols} is not a shape`);
  const needed = payloadBytes(codec, rows, cols);
  if (needed > FRAME_PAYLOAD_BYTES_MAX || needed !== payload.length) {
    return refuse("bad-frame", `${rows} x ${cols} in ${codec} needs ${needed} bytes, ${payload.length} came`);
  }
  const limit = codec === "raw32" ? 0 : EXPONENT_MAX;
  if (!Number.isInteger(exponent) || Math.abs(exponent) > limit) {
    return refuse("bad-frame", `exponent ${exponent} is outside -${limit}..${limit}`);
  }
  const bad = firstBadWord(codec, rows * cols, payload);
  return bad < 0
    ? { ok: true, value: e }
    : refuse("bad-frame", `word ${bad} of the ${codec} payload is not a sane number`);
}

function isCount(n: number): boolean {
  return Number.isInteger(n) && n >= 1;
}

/** Index of the first value or scale that no honest encoder writes; -1 if there is none. */
function firstBadWord(codec: CodecId, n: number, payload: Uint8Array): number {
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  if (codec === "raw32") {
    for (let i = 0; i < n; i++) {
      if (((view.getUint32(i * 4, true) >>> 23) & 0xff) === BIASED_INFINITY) return i;
    }
    return -1;
  }
  // A scale has no sign, so its whole pattern is compared; that refuses negative ones, infinities and NaN at
  // once.
  const [count, mask, max] = codec === "f16s"
    ? [n, 0x7fff, F16S_BITS_MAX]
    : [Math.ceil(n / I8_BLOCK), 0xffff, SCALE_BITS_MAX];
  for (let i = 0; i < count; i++) {
    if ((view.getUint16(i * 2, true) & mask) > max) return i;
  }
  return -1;
}

/**
 * Decodes to row-major values, all finite; refuses with "bad-frame" what checkEncoded refuses. Never throws.
 */
export function decodeTensor(e: Encoded): Result<Float32Array> {
  const checked = checkEncoded(e);
  if (!checked.ok) return checked;
  const values = new Float32Array(e.rows * e.cols);
  const view = new DataView(e.payload.buffer, e.payload.byteOffset, e.payload.byteLength);
  if (e.codec === "raw32") {
    for (let i = 0; i < values.length; i++) values[i] = view.getFloat32(i * 4, true);
  } else if (e.codec === "f16s") {
    const up = powerOfTwo(e.exponent - F16S_SHIFT);
    for (let i = 0; i < values.length; i++) values[i] = scaled(fromHalf(view.getUint16(i * 2, true)), up);
  } else decodeBlocks(view, e.exponent, values);
  return { ok: true, value: values };
}

function decodeBlocks(view: DataView, exponent: number, values: Float32Array): void {
  const codes = view.byteLength - Math.ceil(values.length / I8_BLOCK) * I8_BLOCK;
  const up = powerOfTwo(exponent);
  for (let i = 0; i < values.length; i++) {
    const s = fromHalf(view.getUint16(Math.floor(i / I8_BLOCK) * 2, true));
    values[i] = scaled(view.getInt8(codes + i) * s, up);
  }
}
