// The body of rmsnorm_forward_group.wgsl; the importer chooses `lanes` and `kept`.

struct Params {
  R: u32,
  C: u32,
  eps: f32,
}

const ROWS = 16u;
const SIZE = 256u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<kept>;
@group(0) @binding(2) var<storage, read> gain: array<lanes>;
@group(0) @binding(3) var<storage, read_write> y: array<kept>;
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
  let width = params.C / LANES;
  let count = min(ROWS, params.R - first);
  // Surplus invocations repeat the last row.
  let row = (first + min(own / ROWS, count - 1u)) * width;
  var squares = lanes();
  for (var c = own % ROWS; c < width; c += ROWS) {
    let value = wide(x[row + c]);
    squares += value * value;
  }
  sums[own] = totalOf(squares);
  workgroupBarrier();
  if (own < count) {
    var total = 0.0;
    for (var k = 0u; k < ROWS; k++) {
      total += sums[own * ROWS + k];
    }
    let scale = 1.0 / sqrt(total / f32(params.C) + params.eps);
    scales[own] = scale;
    rstd[first + own] = scale;
  }
  workgroupBarrier();
  for (var c = own; c < width; c += SIZE) {
    let weight = gain[c];
    for (var k = 0u; k < count; k++) {
      let i = (first + k) * width + c;
      y[i] = narrow(wide(x[i]) * scales[k] * weight);
    }
  }
}
