// norms[c] = sum of squares[b, l] over blocks b in [chunks[c], chunks[c + 1]) and all lanes l
// chunks u32 [count + 1], squares f32 [*, LANES], norms f32 [count]. Chunks are short, so that a rounding error grows with
// their length only; the caller adds them up in doubles. One invocation per chunk, so the order is fixed; f32.

// #import lib/dispatch.wgsl
// #import lib/optimizer.wgsl

struct Params {
  count: u32,
}

override workgroupSize: u32 = 32u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> chunks: array<u32>;
@group(0) @binding(2) var<storage, read> squares: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> norms: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= params.count) {
    return;
  }
  var total = vec4f();
  let end = chunks[index + 1u] * (LANES / 4u);
  for (var i = chunks[index] * (LANES / 4u); i < end; i++) {
    total += squares[i];
  }
  norms[index] = (total.x + total.y) + (total.z + total.w);
}
