// values[k] = code[k] * scale[k / 64] * 2^e; results below the smallest normal f32 are zero, with their sign
// encoded u32 [1 + ceil(blocks / 2) + 16 * blocks], blocks = ceil(n / 64): word 0 holds e as i32, then two f16 scales a
// word, then four int8 codes a word; scales checked on the CPU to be sane (checkEncoded). values: the bits of f32 [n].
// A code times a scale is exact (8 + 11 bits), so all adapters decode the same bits. One invocation per word of codes.

// #import lib/dispatch.wgsl
// #import lib/half.wgsl
// #import lib/scaled.wgsl

struct Params {
  n: u32,
}

override workgroupSize: u32 = 64u;

const BLOCK = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> encoded: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= (params.n + 3u) / 4u) {
    return;
  }
  let blockIndex = index / (BLOCK / 4u);
  let scaleWords = ((params.n + BLOCK - 1u) / BLOCK + 1u) / 2u;
  let s = fromHalf((encoded[1u + blockIndex / 2u] >> (16u * (blockIndex & 1u))) & 0xffffu);
  let up = powerOfTwo(bitcast<i32>(encoded[0]));
  let codes = encoded[1u + scaleWords + index];
  let end = min(4u * index + 4u, params.n);
  for (var k = 4u * index; k < end; k++) {
    // Moving the byte to the top and back down extends its sign.
    let code = bitcast<i32>(codes << (24u - 8u * (k & 3u))) >> 24u;
    let magnitude = f32(abs(code)) * s * up;
    values[k] = signedBits(magnitude, bitcast<u32>(code) & SIGN);
  }
}
