// As rotary.wgsl with 16-byte accesses; D divides by 8:
//   low' = low * cos - high * sin,  high' = high * cos + low * sin,  low = i, high = i + D/2, i in [0, D/2)
// qkv kept [R, (H + 2 Hk) * D]: H query heads, then Hk key heads, then Hk value heads (left alone);
// angles f32 [T, D/2, 2] = (cos, sin), position = r mod T. direction +1 rotates, -1 rotates back (the gradient).
// One invocation per (row, head); nothing is accumulated.

// #import lib/dispatch.wgsl
// #import lib/lanes_vec4.wgsl
// #import lib/rotary.wgsl

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
@group(0) @binding(1) var<storage, read> angles: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> qkv: array<kept>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let rotated = params.H + params.Hk;
  let r = index / rotated;
  if (r >= params.R) {
    return;
  }
  let width = params.D / 4u;
  let half = width / 2u;
  let head = r * (rotated + params.Hk) * width + (index % rotated) * width;
  let angle = (r % params.T) * width;
  for (var i = 0u; i < half; i++) {
    let low = head + i;
    let high = low + half;
    let a = angles[angle + 2u * i];
    let b = angles[angle + 2u * i + 1u];
    let turned = turn(Pairs(wide(qkv[low]), wide(qkv[high])), a, b, params.direction);
    qkv[low] = narrow(turned.low);
    qkv[high] = narrow(turned.high);
  }
}
