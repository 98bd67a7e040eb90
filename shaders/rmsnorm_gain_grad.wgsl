// dgain[c] = sum over blocks b of partial[b, c], the second pass of the gain's gradient (rmsnorm_backward.wgsl)
// partial f32 [blocks, C], dgain f32 [C]. One invocation per column, so neighbours read neighbouring addresses and the
// sum has one order. Accumulates in f32.

// #import lib/dispatch.wgsl

struct Params {
  blocks: u32,
  C: u32,
}

override workgroupSize: u32 = 32u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partial: array<f32>;
@group(0) @binding(2) var<storage, read_write> dgain: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let c = linearIndex(id, groups.x * workgroupSize);
  if (c >= params.C) {
    return;
  }
  var sum = 0.0;
  for (var b = 0u; b < params.blocks; b++) {
    sum += partial[b * params.C + c];
  }
  dgain[c] = sum;
}
