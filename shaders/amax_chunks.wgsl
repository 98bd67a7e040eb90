// maxima[i] = largest |values[k]| for k in [i * chunk, (i + 1) * chunk), as f32 bits without the sign
// values: the bits of f32 [n], maxima u32 [ceil(n / chunk)]. First pass of the tensor's exponent (amax_exponent).
// Magnitudes sort like their bits, so the comparison is on integers: no subnormal is flushed and a NaN stays the
// largest of all instead of being assumed away. One invocation per chunk.

// #import lib/dispatch.wgsl

struct Params {
  n: u32,
  chunk: u32,
}

override workgroupSize: u32 = 32u;

const SIGNLESS = 0x7fffffffu;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read_write> maxima: array<u32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= (params.n + params.chunk - 1u) / params.chunk) {
    return;
  }
  let first = index * params.chunk;
  let end = min(first + params.chunk, params.n);
  var highest = 0u;
  for (var k = first; k < end; k++) {
    highest = max(highest, values[k] & SIGNLESS);
  }
  maxima[index] = highest;
}
