// payload half k = f16(values[k] * 2^-e * 2^14), round to nearest even; two halves in a word, the first one low
// values: the bits of f32 [n]; encoded u32 [1 + ceil(n / 2)]: word 0 holds e (amax_exponent), the payload follows.
// Integer arithmetic only, because adapters pack halves differently; f32 subnormals, on the way in or after the
// scaling, count as zero (with their sign). Byte-identical with peer/codec/codec.ts. One invocation per word.

// #import lib/dispatch.wgsl
// #import lib/scaled.wgsl

struct Params {
  n: u32,
}

override workgroupSize: u32 = 64u;

// Exponent of the payload's scale, in place of an f32 exponent field.
const SHIFT = 14u << 23u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read_write> encoded: array<u32>;

// value >> shift, to nearest with ties to even; 1 <= shift <= 24.
fn shiftRoundEven(value: u32, shift: u32) -> u32 {
  let kept = value >> shift;
  let rest = value & ((1u << shift) - 1u);
  let half = 1u << (shift - 1u);
  return kept + select(0u, 1u, rest > half || (rest == half && (kept & 1u) == 1u));
}

// Nearest half of a finite f32 below 2^15, given as bits.
fn toHalf(bits: u32) -> u32 {
  let sign = (bits >> 16u) & 0x8000u;
  let biased = (bits >> 23u) & 0xffu;
  // Below 2^-25 (biased 102) everything rounds to zero.
  if (biased < 102u) {
    return sign;
  }
  let significand = (bits & 0x7fffffu) | 0x800000u;
  if (biased < 113u) {
    return sign | shiftRoundEven(significand, 126u - biased);
  }
  // The significand's leading bit adds the missing 1 to the exponent, and so does a carry out of rounding.
  return sign | (((biased - 113u) << 10u) + shiftRoundEven(significand, 13u));
}

fn encodedHalf(k: u32, e: i32) -> u32 {
  if (k >= params.n) {
    return 0u;
  }
  let y = scaledBits(values[k], e);
  return select(toHalf(y + SHIFT), y >> 16u, (y & ~SIGN) == 0u);
}

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= (params.n + 1u) / 2u) {
    return;
  }
  let e = bitcast<i32>(encoded[0]);
  encoded[1u + index] = encodedHalf(2u * index, e) | (encodedHalf(2u * index + 1u, e) << 16u);
}
