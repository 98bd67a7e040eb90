// The body of layernorm_forward_group.wgsl; the importer chooses `lanes` and `kept`.

struct Params {
  R: u32,
  C: u32,
  eps: f32,
}

const ROWS = 16u;
const SIZE = 256u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<kept>;
@group(0) @binding(2) var<storage, read> affine: array<lanes>;
@group(0) @binding(3) var<storage, read_write> y: array<kept>;
@group(0) @binding(4) var<storage, read_write> stats: array<f32>;

var<workgroup> sums: array<f32, SIZE>;
var<workgroup> means: array<f32, ROWS>;
var<workgroup> scales: array<f32, ROWS>;

// Of the 16 parts of a row's sum.
fn rowTotal(k: u32) -> f32 {
  var total = 0.0;
  for (var i = 0u; i < ROWS; i++) {
    total += sums[k * ROWS + i];
  }
  return total;
}

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
  let k = min(own / ROWS, count - 1u);
  let row = (first + k) * width;
  var sum = lanes();
  for (var c = own % ROWS; c < width; c += ROWS) {
    sum += wide(x[row + c]);
  }
  sums[own] = totalOf(sum);
  workgroupBarrier();
  if (own < count) {
    means[own] = rowTotal(own) / f32(params.C);
  }
  workgroupBarrier();
  let center = means[k];
  var squares = lanes();
  for (var c = own % ROWS; c < width; c += ROWS) {
    let value = wide(x[row + c]) - center;
    squares += value * value;
  }
  sums[own] = totalOf(squares);
  workgroupBarrier();
  if (own < count) {
    let scale = 1.0 / sqrt(rowTotal(own) / f32(params.C) + params.eps);
    scales[own] = scale;
    stats[2u * (first + own)] = means[own];
    stats[2u * (first + own) + 1u] = scale;
  }
  workgroupBarrier();
  for (var c = own; c < width; c += SIZE) {
    let gain = affine[c];
    let bias = affine[width + c];
    for (var k = 0u; k < count; k++) {
      let i = (first + k) * width + c;
      y[i] = narrow((wide(x[i]) - means[k]) * scales[k] * gain + bias);
    }
  }
}
