// out = x, f32 [N, 4] both: how many bytes a second an adapter reads and writes. One invocation copies four vectors of
// four; nothing is accumulated.

// #import lib/dispatch.wgsl

struct Params {
  N: u32,
}

override workgroupSize: u32 = 64u;

const VECTORS = 4u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4f>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let width = groups.x * workgroupSize;
  let first = linearIndex(id, width) * VECTORS;
  for (var i = first; i < min(first + VECTORS, params.N); i++) {
    out[i] = x[i];
  }
}
