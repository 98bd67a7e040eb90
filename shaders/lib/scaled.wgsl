// Scaling f32 by powers of two on their bits: exp2 differs between adapters, and so does what they do with subnormals,
// which therefore count as zero, with their sign.

const SIGN = 0x80000000u;
const NORMAL_MIN = 0x1p-126f;

// The bits of x * 2^-e; a zero of x's sign where x or the product is subnormal. Below 1 by the choice of e.
fn scaledBits(bits: u32, e: i32) -> u32 {
  let biased = i32((bits >> 23u) & 0xffu);
  if (biased == 0 || biased <= e) {
    return bits & SIGN;
  }
  return bits - (bitcast<u32>(e) << 23u);
}

// 2^e as f32, -126 <= e <= 127.
fn powerOfTwo(e: i32) -> f32 {
  return bitcast<f32>(u32(e + 127) << 23u);
}

// The bits of a decoded value; WGSL lets an adapter drop the sign of a zero, so the sign is set as a bit.
fn signedBits(magnitude: f32, sign: u32) -> u32 {
  return sign | select(bitcast<u32>(magnitude), 0u, magnitude < NORMAL_MIN);
}
