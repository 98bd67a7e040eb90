// The body of layernorm_forward.wgsl and its vec4 twin; the importer chooses `lanes`.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
  eps: f32,
}

override workgroupSize: u32 = 32u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<kept>;
@group(0) @binding(2) var<storage, read> affine: array<lanes>;
@group(0) @binding(3) var<storage, read_write> y: array<kept>;
@group(0) @binding(4) var<storage, read_write> stats: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let r = linearIndex(id, groups.x * workgroupSize);
  if (r >= params.R) {
    return;
  }
  let width = params.C / LANES;
  let row = r * width;
  var sum = lanes();
  for (var c = 0u; c < width; c++) {
    sum += wide(x[row + c]);
  }
  let mean = totalOf(sum) / f32(params.C);
  var squares = lanes();
  for (var c = 0u; c < width; c++) {
    let value = wide(x[row + c]) - mean;
    squares += value * value;
  }
  let scale = 1.0 / sqrt(totalOf(squares) / f32(params.C) + params.eps);
  stats[2u * r] = mean;
  stats[2u * r + 1u] = scale;
  for (var c = 0u; c < width; c++) {
    y[row + c] = narrow((wide(x[row + c]) - mean) * scale * affine[c] + affine[width + c]);
  }
}
