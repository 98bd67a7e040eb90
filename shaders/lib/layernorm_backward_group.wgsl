// The body of layernorm_backward_group.wgsl; the importer chooses `lanes` and `kept`.

struct Params {
  R: u32,
  C: u32,
  residual: u32,
}

const ROWS = 16u;
const SIZE = 256u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<lanes>;
@group(0) @binding(2) var<storage, read> affine: array<lanes>;
@group(0) @binding(3) var<storage, read> stats: array<f32>;
@group(0) @binding(4) var<storage, read> dres: array<kept>;
@group(0) @binding(5) var<storage, read_write> x: array<kept>;
@group(0) @binding(6) var<storage, read_write> dx: array<kept>;
@group(0) @binding(7) var<storage, read_write> partial: array<lanes>;

var<workgroup> sums: array<vec2f, SIZE>;
// Of each row: mean, rstd, and the means of the output's gradient times the gain, plain and along h.
var<workgroup> rows: array<vec4f, ROWS>;

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
  let k = min(own / ROWS, count - 1u);
  let row = (first + k) * width;
  let mean = stats[2u * (first + k)];
  var plain = lanes();
  var along = lanes();
  for (var c = own % ROWS; c < width; c += ROWS) {
    let g = dy[row + c] * affine[c];
    plain += g;
    along += g * (wide(x[row + c]) - mean);
  }
  sums[own] = vec2f(totalOf(plain), totalOf(along));
  workgroupBarrier();
  if (own < count) {
    var total = vec2f();
    for (var i = 0u; i < ROWS; i++) {
      total += sums[own * ROWS + i];
    }
    let scale = stats[2u * (first + own) + 1u];
    let means = total / f32(params.C);
    rows[own] = vec4f(stats[2u * (first + own)], scale, means.x, means.y * scale);
  }
  workgroupBarrier();
  for (var c = own; c < width; c += SIZE) {
    let gain = affine[c];
    let bias = affine[width + c];
    var sum = lanes();
    var biasSum = lanes();
    for (var k = 0u; k < count; k++) {
      let i = (first + k) * width + c;
      let up = dy[i];
      let known = rows[k];
      let h = (wide(x[i]) - known.x) * known.y;
      var value = known.y * (up * gain - known.z - h * known.w);
      if (params.residual != 0u) {
        value += wide(dres[i]);
      }
      sum += up * h;
      biasSum += up;
      dx[i] = narrow(value);
      x[i] = narrow(h * gain + bias);
    }
    partial[index * 2u * width + c] = sum;
    partial[index * 2u * width + width + c] = biasSum;
  }
}
