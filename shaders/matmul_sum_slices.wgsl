// out[i] = sum over s of parts[s,i], plus residual[i] if epilogue = 1, plus the old out if epilogue = 2; count values.
// The second pass of a product whose K was summed in slices: always in the order of s, so the bits repeat. One
// invocation per value; f32.

// #import lib/dispatch.wgsl

struct Params {
  count: u32,
  slices: u32,
  epilogue: u32,
}

override workgroupSize: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> parts: array<f32>;
@group(0) @binding(2) var<storage, read> residual: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let i = linearIndex(id, groups.x * workgroupSize);
  if (i >= params.count) {
    return;
  }
  var sum = 0.0;
  for (var s = 0u; s < params.slices; s++) {
    sum += parts[s * params.count + i];
  }
  if (params.epilogue == 1u) {
    sum += residual[i];
  } else if (params.epilogue == 2u) {
    sum += out[i];
  }
  out[i] = sum;
}
