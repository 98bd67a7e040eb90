// dtable[t, c] = sum over sequences b of dout[b T + t, c], the gradient of positions_add's table
// dout f32 [R, C], R = B T rows; dtable f32 [T, C]. One invocation per element of the table adds its rows in the order of the
// sequences, so the sum has one order. Accumulates in f32.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  T: u32,
  C: u32,
}

override workgroupSize: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dout: array<f32>;
@group(0) @binding(2) var<storage, read_write> dtable: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let size = params.T * params.C;
  if (index >= size) {
    return;
  }
  var sum = 0.0;
  for (var i = index; i < params.R * params.C; i += size) {
    sum += dout[i];
  }
  dtable[index] = sum;
}
