// out[r, i] = silu(gate[r, i]) * up[r, i], silu(g) = g / (1 + exp(-g))   (GLU variants, arXiv 2002.05202)
// gate_up f32 [R, 2 I], the gate in the first half of each row; out f32 [R, I].
// One invocation computes four neighbouring columns of one row; nothing is accumulated.

// #import lib/dispatch.wgsl
// #import lib/sigmoid.wgsl

struct Params {
  R: u32,
  I: u32,
}

override workgroupSize: u32 = 64u;

const COLUMNS = 4u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> gate_up: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let perRow = (params.I + COLUMNS - 1u) / COLUMNS;
  let r = index / perRow;
  if (r >= params.R) {
    return;
  }
  let first = (index % perRow) * COLUMNS;
  let end = min(first + COLUMNS, params.I);
  let row = r * 2u * params.I;
  for (var i = first; i < end; i++) {
    let gate = gate_up[row + i];
    out[r * params.I + i] = gate * sigmoid(gate) * gate_up[row + params.I + i];
  }
}
