// sum[i] += gradient[i], where a NaN or an infinity counts as 0 and a magnitude above 2^40 as 2^40
// gradient and sum f32 [4 count], counters u32 [2]: values cut, and values that were not finite.
// One invocation takes up to four vectors, a whole dispatch apart, so that neighbours read neighbours. f32; each value is
// added by one invocation. The counters are integers, so that their order does not matter.

// #import lib/dispatch.wgsl

struct Params {
  count: u32,
}

override workgroupSize: u32 = 64u;

// Vectors of one invocation.
const TURNS = 4u;
const SIGN = 0x80000000u;
const SIGNLESS = 0x7fffffffu;
const INFINITE = 0x7f800000u;
// Bits of 2^40: the squares of its sums over 256 micro-batches, added up over any stage, stay far below f32's largest.
const LARGEST = 0x53800000u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gradient: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> sum: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> counters: array<atomic<u32>>;

fn countOf(those: vec4<bool>) -> u32 {
  let ones = select(vec4u(), vec4u(1u), those);
  return (ones.x + ones.y) + (ones.z + ones.w);
}

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let apart = (params.count + TURNS - 1u) / TURNS;
  if (index >= apart) {
    return;
  }
  var cut = 0u;
  var notFinite = 0u;
  for (var turn = 0u; turn < TURNS; turn++) {
    let i = index + turn * apart;
    if (i < params.count) {
      let bits = bitcast<vec4u>(gradient[i]);
      let magnitude = bits & vec4u(SIGNLESS);
      let bad = magnitude >= vec4u(INFINITE);
      cut += countOf(magnitude > vec4u(LARGEST));
      notFinite += countOf(bad);
      let limited = bitcast<vec4f>((bits & vec4u(SIGN)) | min(magnitude, vec4u(LARGEST)));
      sum[i] += select(limited, vec4f(), bad);
    }
  }
  if (cut > 0u) {
    // What is not finite is above any limit too, and is counted as that only.
    atomicAdd(&counters[0], cut - notFinite);
    atomicAdd(&counters[1], notFinite);
  }
}
