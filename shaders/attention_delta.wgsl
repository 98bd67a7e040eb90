// delta[r, h] = dout[r, h] . out[r, h], the row term of the softmax gradient (FlashAttention, arXiv 2205.14135, B.4)
// dout, out f32 [R, H * D], delta f32 [R, H]. One invocation per (row, head); accumulates in f32.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  H: u32,
  D: u32,
}

override workgroupSize: u32 = 32u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dout: array<f32>;
@group(0) @binding(2) var<storage, read> out: array<f32>;
@group(0) @binding(3) var<storage, read_write> delta: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= params.R * params.H) {
    return;
  }
  let first = index * params.D;
  var sum = 0.0;
  for (var d = 0u; d < params.D; d++) {
    sum += dout[first + d] * out[first + d];
  }
  delta[index] = sum;
}
