// values[k] = f32(payload half k) * 2^(e - 14); results below the smallest normal f32 are zero, with their sign
// encoded u32 [1 + ceil(n / 2)]: word 0 holds e as i32, then the halves, checked on the CPU to be finite
// (checkEncoded); values: the bits of f32 [n]. Powers of two are built from bits: exp2 differs between adapters.
// One invocation per payload word.

// #import lib/dispatch.wgsl
// #import lib/half.wgsl
// #import lib/scaled.wgsl

struct Params {
  n: u32,
}

override workgroupSize: u32 = 64u;

const SHIFT = 14;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> encoded: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= (params.n + 1u) / 2u) {
    return;
  }
  let scale = powerOfTwo(bitcast<i32>(encoded[0]) - SHIFT);
  let word = encoded[1u + index];
  let end = min(2u * index + 2u, params.n);
  for (var k = 2u * index; k < end; k++) {
    let half = word >> (16u * (k & 1u));
    let magnitude = fromHalf(half & 0x7fffu) * scale;
    values[k] = signedBits(magnitude, (half & 0x8000u) << 16u);
  }
}
