// With s = sigmoid(gate): dgate = dout * up * s * (1 + gate * (1 - s)), dup = dout * gate * s
// gate_up, dgate_up f32 [R, 2 I], the gate in the first half of each row; dout f32 [R, I].
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
@group(0) @binding(2) var<storage, read> dout: array<f32>;
@group(0) @binding(3) var<storage, read_write> dgate_up: array<f32>;

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
    let up = gate_up[row + params.I + i];
    let upstream = dout[r * params.I + i];
    let s = sigmoid(gate);
    // sigmoid(-gate) is 1 - s without the cancellation for a large positive gate.
    dgate_up[row + i] = upstream * up * s * (1.0 + gate * sigmoid(-gate));
    dgate_up[row + params.I + i] = upstream * gate * s;
  }
}
