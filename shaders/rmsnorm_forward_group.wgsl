// As rmsnorm_forward.wgsl for GPUs, with neighbouring invocations at neighbouring columns:
//   rstd[r] = 1 / sqrt(mean over c of x[r, c]^2 + eps); y[r, c] = x[r, c] * rstd[r] * gain[c]
// x f32 [R, C], gain f32 [C], y f32 [R, C], rstd f32 [R].
// One workgroup per 16 rows: 16 invocations sum a row's squares, then all take columns. Accumulates in f32.

struct Params {
  R: u32,
  C: u32,
  eps: f32,
}

const ROWS = 16u;
const SIZE = 256u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read_write> rstd: array<f32>;

var<workgroup> sums: array<f32, SIZE>;
var<workgroup> scales: array<f32, ROWS>;

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) own: u32,
) {
  let first = (group.y * groups.x + group.x) * ROWS;
  if (first >= params.R) {
    return;
  }
  let C = params.C;
  let count = min(ROWS, params.R - first);
  // Surplus invocations repeat the last row.
  let row = (first + min(own / ROWS, count - 1u)) * C;
  var squares = 0.0;
  for (var c = own % ROWS; c < C; c += ROWS) {
    squares += x[row + c] * x[row + c];
  }
  sums[own] = squares;
  workgroupBarrier();
  if (own < count) {
    var total = 0.0;
    for (var k = 0u; k < ROWS; k++) {
      total += sums[own * ROWS + k];
    }
    let scale = 1.0 / sqrt(total / f32(C) + params.eps);
    scales[own] = scale;
    rstd[first + own] = scale;
  }
  workgroupBarrier();
  for (var c = own; c < C; c += SIZE) {
    let weight = gain[c];
    for (var k = 0u; k < count; k++) {
      let i = (first + k) * C + c;
      y[i] = x[i] * scales[k] * weight;
    }
  }
}
