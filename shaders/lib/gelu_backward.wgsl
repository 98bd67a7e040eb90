// The body of gelu_backward.wgsl and its vec4 twin; the importer chooses `lanes`.

// #import lib/dispatch.wgsl
// #import lib/gelu.wgsl

struct Params {
  R: u32,
  I: u32,
}

override workgroupSize: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> bias: array<lanes>;
@group(0) @binding(2) var<storage, read_write> up: array<kept>;
@group(0) @binding(3) var<storage, read_write> act: array<kept>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let width = params.I / LANES;
  if (index >= params.R * width) {
    return;
  }
  let z = wide(up[index]) + bias[index % width];
  let upstream = wide(act[index]);
  let argument = geluArgument(z);
  let s = sigmoid(argument);
  // sigmoid of the negative argument is 1 - s without the cancellation for a large positive one.
  let slope = s + z * s * sigmoid(-argument) * geluArgumentSlope(z);
  up[index] = narrow(upstream * slope);
  act[index] = narrow(z * s);
}
