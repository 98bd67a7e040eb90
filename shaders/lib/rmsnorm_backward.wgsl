// The body of rmsnorm_backward.wgsl and its vec4 twin; the importer chooses `lanes`.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
  residual: u32,
}

override workgroupSize: u32 = 8u;

// Rows of one invocation, and so of one partial sum of the gain's gradient.
const ROWS = 16u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<lanes>;
@group(0) @binding(2) var<storage, read> gain: array<lanes>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
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
  var scale: array<f32, ROWS>;
  var mean: array<f32, ROWS>;
  for (var k = 0u; k < count; k++) {
    let row = (first + k) * width;
    var along = lanes();
    for (var c = 0u; c < width; c++) {
      along += dy[row + c] * gain[c] * wide(x[row + c]);
    }
    scale[k] = rstd[first + k];
    mean[k] = totalOf(along) * scale[k] / f32(params.C);
  }
  for (var c = 0u; c < width; c++) {
    let weight = gain[c];
    var sum = lanes();
    for (var k = 0u; k < count; k++) {
      let i = (first + k) * width + c;
      let up = dy[i];
      let h = wide(x[i]) * scale[k];
      var value = scale[k] * (up * weight - h * mean[k]);
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
