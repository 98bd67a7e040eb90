// halves[i] = the nearest halves of values[i] * scales[factor], with `dtype` f16: what a stage's first operation keeps.
// values f32 [4 count], halves: two words for four values (lib/halves.wgsl), scales f32 [4] = (1, 2^s, 2^-s, 0) of the loss
// scale s. What is beyond a half's range becomes no finite number. One invocation per four values.

// #import lib/dispatch.wgsl
// #import lib/halves.wgsl

struct Params {
  count: u32,
  factor: u32,
}

override workgroupSize: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<vec4f>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
@group(0) @binding(3) var<storage, read_write> halves: array<vec2u>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let i = linearIndex(id, groups.x * workgroupSize);
  if (i >= params.count) {
    return;
  }
  halves[i] = toHalves(values[i] * scales[params.factor]);
}
