// values[k] = f32(payload half k) * 2^(e - 14); results below the smallest normal f32 are zero, with their sign
// encoded u32 [1 + ceil(n / 2)]: word 0 holds e as i32, then the halves, checked on the CPU to be finite
// (checkEncoded); values: the bits of f32 [n]. Powers of two are built from bits: exp2 differs between adapters.
// One invocation per payload word.

// #import lib/dispatch.wgsl

struct Params {
  n: u32,
}

override workgroupSize: u32 = 64u;

const SHIFT = 14;
const NORMAL_MIN = 0x1p-126f;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> encoded: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;

// Exact value of a finite, positive half.
fn fromHalf(half: u32) -> f32 {
  let normal = bitcast<f32>((half << 13u) + (112u << 23u));
  return select(normal, f32(half) * 0x1p-24f, half < 0x400u);
}

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= (params.n + 1u) / 2u) {
    return;
  }
  let scale = bitcast<f32>(u32(bitcast<i32>(encoded[0]) - SHIFT + 127) << 23u);
  let word = encoded[1u + index];
  let end = min(2u * index + 2u, params.n);
  for (var k = 2u * index; k < end; k++) {
    let half = word >> (16u * (k & 1u));
    let magnitude = fromHalf(half & 0x7fffu) * scale;
    // The sign is set as a bit: WGSL lets an adapter drop the sign of a zero.
    let sign = (half & 0x8000u) << 16u;
    values[k] = sign | select(bitcast<u32>(magnitude), 0u, magnitude < NORMAL_MIN);
  }
}
