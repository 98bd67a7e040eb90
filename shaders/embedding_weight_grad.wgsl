// dtable[v, c] = (accumulate ? dtable[v, c] : 0) + sum over rows r with tokens[r] == v of dout[r, c]
// tokens u32 [R], dout f32 [R, C], dtable f32 [V, C].
// One invocation owns one vocabulary entry and sixteen columns and scans all rows in order, so two rows with
// the same token never race and the sum has one order. Accumulates in f32.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
  V: u32,
  accumulate: u32,
}

override workgroupSize: u32 = 32u;

const COLUMNS = 16u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read> dout: array<f32>;
@group(0) @binding(3) var<storage, read_write> dtable: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let perEntry = (params.C + COLUMNS - 1u) / COLUMNS;
  let v = index / perEntry;
  if (v >= params.V) {
    return;
  }
  let first = (index % perEntry) * COLUMNS;
  let count = min(COLUMNS, params.C - first);
  var sum: array<f32, COLUMNS>;
  for (var r = 0u; r < params.R; r++) {
    if (tokens[r] == v) {
      for (var i = 0u; i < count; i++) {
        sum[i] += dout[r * params.C + first + i];
      }
    }
  }
  let base = v * params.C + first;
  for (var i = 0u; i < count; i++) {
    if (params.accumulate != 0u) {
      dtable[base + i] += sum[i];
    } else {
      dtable[base + i] = sum[i];
    }
  }
}
