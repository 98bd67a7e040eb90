// gradient[i] *= scales[factor], in place: takes the loss scale out of a slot's weight gradient, with `dtype` f16.
// gradient: the bits of f32 [4 count], scales f32 [4] = (1, 2^s, 2^-s, 0), overflow u32 [1] of the slot. What is not finite
// keeps its bits, and with first = 1 and an overflow so does the first value get such bits: a gradient of which anything,
// also what left the stage, was beyond a half's range has at least one value that is not finite. One invocation takes up to
// four vectors, a whole dispatch apart.

// #import lib/dispatch.wgsl

struct Params {
  count: u32,
  factor: u32,
  first: u32,
}

override workgroupSize: u32 = 64u;

// Vectors of one invocation.
const TURNS = 4u;
const SIGNLESS = 0x7fffffffu;
const INFINITE = 0x7f800000u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read> overflow: array<u32>;
@group(0) @binding(3) var<storage, read_write> gradient: array<vec4u>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let apart = (params.count + TURNS - 1u) / TURNS;
  if (index >= apart) {
    return;
  }
  let scale = scales[params.factor];
  for (var turn = 0u; turn < TURNS; turn++) {
    let i = index + turn * apart;
    if (i < params.count) {
      let bits = gradient[i];
      let scaled = bitcast<vec4u>(bitcast<vec4f>(bits) * scale);
      var kept = select(scaled, bits, (bits & vec4u(SIGNLESS)) >= vec4u(INFINITE));
      if (params.first == 1u && i == 0u && overflow[0] != 0u) {
        kept.x = INFINITE;
      }
      gradient[i] = kept;
    }
  }
}
