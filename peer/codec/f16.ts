// Conversions between f32 and IEEE half precision by integer arithmetic only, bit for bit what the WGSL
// kernels do. Not a Float16Array: engines round that differently in old versions, and a stranger's half must
// be judged as bits.

const SCRATCH = new DataView(new ArrayBuffer(4));
/** All finite halves, decoded once: half patterns are 16 bits, so a table is the cheapest exact decoder. */
const HALVES = buildHalves();

/** The 32 bits of the f32 nearest to `value`. */
export function f32Bits(value: number): number {
  SCRATCH.setFloat32(0, value);
  return SCRATCH.getUint32(0);
}

/** 2^e as an exact number, -126 <= e <= 127. */
export function powerOfTwo(e: number): number {
  SCRATCH.setUint32(0, (e + 127) << 23);
  return SCRATCH.getFloat32(0);
}

/** Nearest half, ties to even; subnormal halves are kept; overflow gives infinity. NaN is not expected. */
export function toHalf(value: number): number {
  const bits = f32Bits(value);
  const sign = (bits >>> 16) & 0x8000;
  const biased = (bits >>> 23) & 0xff;
  // Below 2^-25 (biased 102) everything rounds to zero, and so do f32 subnormals.
  if (biased < 102) return sign;
  const significand = (bits & 0x7fffff) | 0x800000;
  if (biased < 113) return sign | shiftRoundEven(significand, 126 - biased);
  // A carry out of the rounded significand moves into the exponent, which is exactly the next half.
  const half = ((biased - 113) << 10) + shiftRoundEven(significand, 13);
  return sign | Math.min(half, 0x7c00);
}

/** `value` >> `shift`, rounded to nearest with ties to even; 1 <= shift <= 31. */
function shiftRoundEven(value: number, shift: number): number {
  const kept = value >>> shift;
  const rest = value & ((1 << shift) - 1);
  const half = 1 << (shift - 1);
  return rest > half || (rest === half && (kept & 1) === 1) ? kept + 1 : kept;
}

/** Exact value of a half; infinities and NaN decode as themselves. */
export function fromHalf(half: number): number {
  return HALVES[half & 0xffff]!;
}

function buildHalves(): Float32Array {
  const table = new Float32Array(65536);
  for (let h = 0; h < 65536; h++) {
    const exponent = (h >> 10) & 31;
    const fraction = h & 1023;
    const magnitude = exponent === 31
      ? (fraction === 0 ? Infinity : NaN)
      : exponent === 0
      ? fraction * 2 ** -24
      : (1024 + fraction) * 2 ** (exponent - 25);
    table[h] = h & 0x8000 ? -magnitude : magnitude;
  }
  return table;
}
