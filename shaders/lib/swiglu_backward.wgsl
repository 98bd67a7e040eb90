// The body of swiglu_backward.wgsl and its vec4 twin; the importer chooses `lanes`.

// #import lib/dispatch.wgsl
// #import lib/sigmoid.wgsl

struct Params {
  R: u32,
  I: u32,
}

override workgroupSize: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> gate_up: array<kept>;
@group(0) @binding(2) var<storage, read_write> act: array<kept>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let width = params.I / LANES;
  let r = index / width;
  if (r >= params.R) {
    return;
  }
  let at = r * 2u * width + index % width;
  let gate = wide(gate_up[at]);
  let up = wide(gate_up[at + width]);
  let upstream = wide(act[index]);
  let s = sigmoids(gate);
  let silu = gate * s.plain;
  gate_up[at] = narrow(upstream * up * s.plain * (1.0 + gate * s.opposite));
  gate_up[at + width] = narrow(upstream * silu);
  act[index] = narrow(silu * up);
}
