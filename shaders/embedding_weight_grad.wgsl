// dtable[v - vocabOffset, c] += sum over rows r with token v of dout[r, c], for v in [vocabOffset, vocabOffset + count)
// lookup u32: rows [R] sorted by token and then by number, tokens [E], starts [E + 1]; token e has the rows
// lookup[starts[e] .. starts[e + 1]]. dout f32 [R, C], dtable f32 [count, C].
// One invocation owns one token and sixteen columns and adds its rows in order, so nothing races and the sum has one
// order. Accumulates in f32. Tokens that do not occur cost nothing: their rows of dtable are not touched.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
  E: u32,
  vocabOffset: u32,
  count: u32,
}

override workgroupSize: u32 = 32u;

const COLUMNS = 16u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> lookup: array<u32>;
@group(0) @binding(2) var<storage, read> dout: array<f32>;
@group(0) @binding(3) var<storage, read_write> dtable: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let perEntry = (params.C + COLUMNS - 1u) / COLUMNS;
  let e = index / perEntry;
  if (e >= params.E) {
    return;
  }
  // A token before the part wraps round to a large number.
  let v = lookup[params.R + e] - params.vocabOffset;
  let start = lookup[params.R + params.E + e];
  let end = lookup[params.R + params.E + e + 1u];
  if (v >= params.count || start >= end) {
    return;
  }
  let first = (index % perEntry) * COLUMNS;
  let count = min(COLUMNS, params.C - first);
  var sum: array<f32, COLUMNS>;
  for (var i = start; i < end; i++) {
    let source = lookup[i] * params.C + first;
    for (var c = 0u; c < count; c++) {
      sum[c] += dout[source + c];
    }
  }
  let base = v * params.C + first;
  for (var c = 0u; c < count; c++) {
    dtable[base + c] += sum[c];
  }
}
