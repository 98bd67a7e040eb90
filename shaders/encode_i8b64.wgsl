// Blocks of 64 values y = values * 2^-e: scale s = max|y| / 127 rounded up to f16, code q = round(y / s) in -127..127
// values: the bits of f32 [n]; encoded u32 [1 + ceil(blocks / 2) + 16 * blocks], blocks = ceil(n / 64): word 0 holds e
// (amax_exponent), then two f16 scales a word, then four int8 codes a word, the last block padded with zeros.
// Scales use integer arithmetic only, so they are byte-identical with peer/codec/codec.ts; a code comes from one f32
// division, which an adapter may round differently, so next to a tie it may differ by one. f32 subnormals, on the way
// in or after the scaling, count as zero. One invocation per two blocks, that is per whole word of scales.

// #import lib/dispatch.wgsl
// #import lib/half.wgsl
// #import lib/scaled.wgsl

struct Params {
  n: u32,
}

override workgroupSize: u32 = 16u;

const BLOCK = 64u;
const CODES_MAX = 127.0;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read_write> encoded: array<u32>;

// Smallest half that is at least m / 127, for m = significand * 2^(biased - 150) below 1, given as f32 bits.
fn scaleHalf(bits: u32) -> u32 {
  if (bits == 0u) {
    return 0u;
  }
  let biased = i32(bits >> 23u);
  let significand = (bits & 0x7fffffu) | 0x800000u;
  let quotient = significand / 127u;
  // The quotient has 17 or 18 bits, a half keeps 11; a field below 1 means a subnormal half, in units of 2^-24.
  let surplus = select(6, 7, quotient >= 0x20000u);
  let field = biased - 125 + surplus;
  let shift = u32(min(select(126 - biased, surplus, field >= 1), 31));
  let inexact = (quotient & ((1u << shift) - 1u)) != 0u || significand % 127u != 0u;
  let kept = (quotient >> shift) + select(0u, 1u, inexact);
  return select(kept, (u32(max(field, 1) - 1) << 10u) + kept, field >= 1);
}

// Codes the block and returns its scale.
fn encodeBlock(blockIndex: u32, e: i32, codes: u32) -> u32 {
  let first = blockIndex * BLOCK;
  let end = min(first + BLOCK, params.n);
  var highest = 0u;
  for (var k = first; k < end; k++) {
    highest = max(highest, scaledBits(values[k], e) & 0x7fffffffu);
  }
  let half = scaleHalf(highest);
  let s = fromHalf(max(half, 1u));
  for (var word = 0u; word < BLOCK / 4u; word++) {
    var packed = 0u;
    for (var i = 0u; i < 4u; i++) {
      let k = first + word * 4u + i;
      if (k < end) {
        let q = i32(clamp(round(bitcast<f32>(scaledBits(values[k], e)) / s), -CODES_MAX, CODES_MAX));
        packed |= (bitcast<u32>(q) & 0xffu) << (8u * i);
      }
    }
    encoded[codes + word] = packed;
  }
  return half;
}

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let blocks = (params.n + BLOCK - 1u) / BLOCK;
  let scaleWords = (blocks + 1u) / 2u;
  if (index >= scaleWords) {
    return;
  }
  let e = bitcast<i32>(encoded[0]);
  let codes = 1u + scaleWords + 2u * index * (BLOCK / 4u);
  var scales = encodeBlock(2u * index, e, codes);
  if (2u * index + 1u < blocks) {
    scales |= encodeBlock(2u * index + 1u, e, codes + BLOCK / 4u) << 16u;
  }
  encoded[1u + index] = scales;
}
