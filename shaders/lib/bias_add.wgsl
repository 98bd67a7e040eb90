// The body of bias_add.wgsl and its vec4 twin; the importer chooses `lanes`.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  N: u32,
}

override workgroupSize: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> bias: array<lanes>;
@group(0) @binding(2) var<storage, read_write> x: array<kept>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let width = params.N / LANES;
  if (index >= params.R * width) {
    return;
  }
  x[index] = narrow(wide(x[index]) + bias[index % width]);
}
