// Rotates queries and keys in place by their position (RoFormer, arXiv 2104.09864, in the rotate-half layout):
//   low' = low * cos - high * sin,  high' = high * cos + low * sin,  low = i, high = i + D/2, i in [0, D/2)
// qkv f32 [R, (H + 2 Hk) * D]: H query heads, then Hk key heads, then Hk value heads (left alone);
// angles f32 [T, D/2, 2] = (cos, sin), position = r mod T. direction +1 rotates, -1 rotates back (the gradient).
// The table comes from the CPU in double precision because sin and cos differ between adapters.
// One invocation per (row, head); nothing is accumulated.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  T: u32,
  H: u32,
  Hk: u32,
  D: u32,
  direction: f32,
}

override workgroupSize: u32 = 32u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> angles: array<f32>;
@group(0) @binding(2) var<storage, read_write> qkv: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let rotated = params.H + params.Hk;
  let r = index / rotated;
  if (r >= params.R) {
    return;
  }
  let half = params.D / 2u;
  let head = r * (rotated + params.Hk) * params.D + (index % rotated) * params.D;
  let angle = (r % params.T) * params.D;
  for (var i = 0u; i < half; i++) {
    let cosine = angles[angle + 2u * i];
    let sine = angles[angle + 2u * i + 1u] * params.direction;
    let low = qkv[head + i];
    let high = qkv[head + half + i];
    qkv[head + i] = low * cosine - high * sine;
    qkv[head + half + i] = high * cosine + low * sine;
  }
}
