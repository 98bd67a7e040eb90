// The body of rmsnorm_backward_group.wgsl; the importer chooses `lanes` and `kept`.

struct Params {
  R: u32,
  C: u32,
  residual: u32,
}

const ROWS = 16u;
const SIZE = 256u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<lanes>;
@group(0) @binding(2) var<storage, read> gain: array<lanes>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read> dres: array<kept>;
@group(0) @binding(5) var<storage, read_write> x: array<kept>;
@group(0) @binding(6) var<storage, read_write> dx: array<kept>;
@group(0) @binding(7) var<storage, read_write> partial: array<lanes>;

var<workgroup> sums: array<f32, SIZE>;
var<workgroup> scales: array<f32, ROWS>;
var<workgroup> means: array<f32, ROWS>;

@compute @workgroup_size(SIZE)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) own: u32,
) {
  let index = group.y * groups.x + group.x;
  let first = index * ROWS;
  if (first >= params.R) {
    return;
  }
  let width = params.C / LANES;
  let count = min(ROWS, params.R - first);
  // Surplus invocations repeat the last row.
  let row = (first + min(own / ROWS, count - 1u)) * width;
  var along = lanes();
  for (var c = own % ROWS; c < width; c += ROWS) {
    along += dy[row + c] * gain[c] * wide(x[row + c]);
  }
  sums[own] = totalOf(along);
  workgroupBarrier();
  if (own < count) {
    var total = 0.0;
    for (var k = 0u; k < ROWS; k++) {
      total += sums[own * ROWS + k];
    }
    let scale = rstd[first + own];
    scales[own] = scale;
    means[own] = total * scale / f32(params.C);
  }
  workgroupBarrier();
  for (var c = own; c < width; c += SIZE) {
    let weight = gain[c];
    var sum = lanes();
    for (var k = 0u; k < count; k++) {
      let i = (first + k) * width + c;
      let up = dy[i];
      let scale = scales[k];
      let h = wide(x[i]) * scale;
      var value = scale * (up * weight - h * means[k]);
      if (params.residual != 0u) {
        value += wide(dres[i]);
      }
      sum += up * h;
      dx[i] = narrow(value);
      x[i] = narrow(h * weight);
    }
    partial[index * width + c] = sum;
  }
}
