// The body of layernorm_backward.wgsl and its vec4 twin; the importer chooses `lanes`.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
  residual: u32,
}

override workgroupSize: u32 = 8u;

// Rows of one invocation, and so of one partial sum of the gradients of gain and bias.
const ROWS = 16u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<lanes>;
@group(0) @binding(2) var<storage, read> affine: array<lanes>;
@group(0) @binding(3) var<storage, read> stats: array<f32>;
@group(0) @binding(4) var<storage, read> dres: array<kept>;
@group(0) @binding(5) var<storage, read_write> x: array<kept>;
@group(0) @binding(6) var<storage, read_write> dx: array<kept>;
@group(0) @binding(7) var<storage, read_write> partial: array<lanes>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let first = index * ROWS;
  if (first >= params.R) {
    return;
  }
  let count = min(ROWS, params.R - first);
  let width = params.C / LANES;
  var plain: array<f32, ROWS>;
  var along: array<f32, ROWS>;
  for (var k = 0u; k < count; k++) {
    let row = (first + k) * width;
    let mean = stats[2u * (first + k)];
    let scale = stats[2u * (first + k) + 1u];
    var sum = lanes();
    var product = lanes();
    for (var c = 0u; c < width; c++) {
      let g = dy[row + c] * affine[c];
      sum += g;
      product += g * (wide(x[row + c]) - mean);
    }
    plain[k] = totalOf(sum) / f32(params.C);
    along[k] = totalOf(product) * scale / f32(params.C);
  }
  for (var c = 0u; c < width; c++) {
    let gain = affine[c];
    let bias = affine[width + c];
    var sum = lanes();
    var biasSum = lanes();
    for (var k = 0u; k < count; k++) {
      let i = (first + k) * width + c;
      let up = dy[i];
      let scale = stats[2u * (first + k) + 1u];
      let h = (wide(x[i]) - stats[2u * (first + k)]) * scale;
      var value = scale * (up * gain - plain[k] - h * along[k]);
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
