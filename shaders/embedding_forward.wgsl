// out[r, c] = table[tokens[r] - vocabOffset, c] where tokens[r] lies in [vocabOffset, vocabOffset + count)
// tokens u32 [R], table f32 [count, C], a part of the vocabulary's rows, out f32 [R, C]; other rows of out are left alone.
// One invocation copies four neighbouring columns of one row; nothing is accumulated.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
  vocabOffset: u32,
  count: u32,
}

override workgroupSize: u32 = 64u;

const COLUMNS = 4u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read> table: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let perRow = (params.C + COLUMNS - 1u) / COLUMNS;
  let r = index / perRow;
  if (r >= params.R) {
    return;
  }
  // A token before the part wraps round to a large number.
  let v = tokens[r] - params.vocabOffset;
  if (v >= params.count) {
    return;
  }
  let first = (index % perRow) * COLUMNS;
  let end = min(first + COLUMNS, params.C);
  for (var c = first; c < end; c++) {
    out[r * params.C + c] = table[v * params.C + c];
  }
}
