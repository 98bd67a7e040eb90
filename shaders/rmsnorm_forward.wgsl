// rstd[r] = 1 / sqrt(mean over c of x[r, c]^2 + eps); y[r, c] = x[r, c] * rstd[r] * gain[c]
// x f32 [R, C], gain f32 [C], y f32 [R, C], rstd f32 [R].
// One invocation per row: on adapters that run a workgroup serially a barrier tree is far slower.
// Accumulates in f32 over four interleaved partial sums.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
  eps: f32,
}

override workgroupSize: u32 = 32u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read_write> rstd: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let r = linearIndex(id, groups.x * workgroupSize);
  if (r >= params.R) {
    return;
  }
  let C = params.C;
  let row = r * C;
  let whole = C - C % 4u;
  var partial = vec4f(0.0);
  for (var c = 0u; c < whole; c += 4u) {
    let value = vec4f(x[row + c], x[row + c + 1u], x[row + c + 2u], x[row + c + 3u]);
    partial += value * value;
  }
  var total = (partial.x + partial.y) + (partial.z + partial.w);
  for (var c = whole; c < C; c++) {
    total += x[row + c] * x[row + c];
  }
  let scale = 1.0 / sqrt(total / f32(C) + params.eps);
  rstd[r] = scale;
  for (var c = 0u; c < C; c++) {
    y[row + c] = x[row + c] * scale * gain[c];
  }
}
