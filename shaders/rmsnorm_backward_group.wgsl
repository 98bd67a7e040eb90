// As rmsnorm_backward.wgsl for GPUs, with neighbouring invocations at neighbouring columns. With h = x * rstd[r] and
// g = dy * gain[c]:
//   dx[r, c] = (residual ? dres[r, c] : 0) + rstd[r] * (g[r, c] - h[r, c] * mean over k of g[r, k] * h[r, k])
//   partial[b, c] = sum over the 16 rows r of block b of dy[r, c] * h[r, c];  x[r, c] becomes h[r, c] * gain[c]
// dy, x, dres, dx f32 [R, C], gain f32 [C], rstd f32 [R], partial f32 [ceil(R / 16), C]; dres is read if residual = 1.
// One workgroup per block of rows: 16 invocations make a row's mean, then all take columns. Accumulates in f32.

struct Params {
  R: u32,
  C: u32,
  residual: u32,
}

const ROWS = 16u;
const SIZE = 256u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read> dres: array<f32>;
@group(0) @binding(5) var<storage, read_write> x: array<f32>;
@group(0) @binding(6) var<storage, read_write> dx: array<f32>;
@group(0) @binding(7) var<storage, read_write> partial: array<f32>;

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
  let C = params.C;
  let count = min(ROWS, params.R - first);
  // Surplus invocations repeat the last row.
  let row = (first + min(own / ROWS, count - 1u)) * C;
  var along = 0.0;
  for (var c = own % ROWS; c < C; c += ROWS) {
    along += dy[row + c] * gain[c] * x[row + c];
  }
  sums[own] = along;
  workgroupBarrier();
  if (own < count) {
    var total = 0.0;
    for (var k = 0u; k < ROWS; k++) {
      total += sums[own * ROWS + k];
    }
    let scale = rstd[first + own];
    scales[own] = scale;
    means[own] = total * scale / f32(C);
  }
  workgroupBarrier();
  for (var c = own; c < C; c += SIZE) {
    let weight = gain[c];
    var sum = 0.0;
    for (var k = 0u; k < count; k++) {
      let i = (first + k) * C + c;
      let up = dy[i];
      let scale = scales[k];
      let h = x[i] * scale;
      var value = scale * (up * weight - h * means[k]);
      if (params.residual != 0u) {
        value += dres[i];
      }
      sum += up * h;
      dx[i] = value;
      x[i] = h * weight;
    }
    partial[index * C + c] = sum;
  }
}
