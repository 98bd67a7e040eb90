// values[i] = halves[i] * scales[factor], with `dtype` f16: what leaves a stage, or goes to a kernel that knows f32 only.
// halves: two words for four values (lib/halves.wgsl), values f32 [4 count], scales f32 [4] = (1, 2^s, 2^-s, 0) of the loss
// scale s. With guard = 1 a value that is not finite becomes 0, and overflow u32 [1] becomes 1: whoever reads a gradient
// gets a sane one, and the slot's own weight gradient tells of it (unscale_gradient.wgsl). One invocation per four values.

// #import lib/dispatch.wgsl
// #import lib/halves.wgsl

struct Params {
  count: u32,
  factor: u32,
  guard: u32,
}

override workgroupSize: u32 = 64u;

const HALF_INFINITE = 0x7c00u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> halves: array<vec2u>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
@group(0) @binding(3) var<storage, read_write> values: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> overflow: array<atomic<u32>>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let i = linearIndex(id, groups.x * workgroupSize);
  if (i >= params.count) {
    return;
  }
  let pair = halves[i];
  let exponents = vec4u(pair.x, pair.x >> 16u, pair.y, pair.y >> 16u) & vec4u(HALF_INFINITE);
  let lost = (exponents == vec4u(HALF_INFINITE)) & vec4<bool>(params.guard == 1u);
  if (any(lost)) {
    atomicMax(&overflow[0], 1u);
  }
  values[i] = select(fromHalves(pair) * scales[params.factor], vec4f(), lost);
}
