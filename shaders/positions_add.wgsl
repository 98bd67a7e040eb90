// x[r, c] += table[r mod T, c], the learned vector of the row's position in its sequence
// x f32 [R, C], table f32 [T, C]. One invocation per element; nothing is accumulated.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  T: u32,
  C: u32,
}

override workgroupSize: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> table: array<f32>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= params.R * params.C) {
    return;
  }
  x[index] += table[index % (params.T * params.C)];
}
