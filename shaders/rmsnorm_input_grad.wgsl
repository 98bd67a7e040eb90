// dx[r, c] = (residual ? dres[r, c] : 0) + rstd[r] * (g[c] - h[c] * mean over k of g[k] * h[k])
// with g[c] = dy[r, c] * gain[c] and h[c] = x[r, c] * rstd[r].
// dy, x, dres, dx f32 [R, C], gain f32 [C], rstd f32 [R]. With residual = 0, dres is not read: bind any
// read-only buffer there (x will do). One invocation per row; accumulates in f32.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
  residual: u32,
}

override workgroupSize: u32 = 32u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> gain: array<f32>;
@group(0) @binding(4) var<storage, read> rstd: array<f32>;
@group(0) @binding(5) var<storage, read> dres: array<f32>;
@group(0) @binding(6) var<storage, read_write> dx: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let r = linearIndex(id, groups.x * workgroupSize);
  if (r >= params.R) {
    return;
  }
  let C = params.C;
  let row = r * C;
  let scale = rstd[r];
  let whole = C - C % 4u;
  var partial = vec4f(0.0);
  for (var c = 0u; c < whole; c += 4u) {
    let i = row + c;
    let g = vec4f(dy[i] * gain[c], dy[i + 1u] * gain[c + 1u], dy[i + 2u] * gain[c + 2u], dy[i + 3u] * gain[c + 3u]);
    partial += g * vec4f(x[i], x[i + 1u], x[i + 2u], x[i + 3u]);
  }
  var total = (partial.x + partial.y) + (partial.z + partial.w);
  for (var c = whole; c < C; c++) {
    total += dy[row + c] * gain[c] * x[row + c];
  }
  let mean = total * scale / f32(C);
  for (var c = 0u; c < C; c++) {
    let i = row + c;
    var value = scale * (dy[i] * gain[c] - x[i] * scale * mean);
    if (params.residual != 0u) {
      value += dres[i];
    }
    dx[i] = value;
  }
}
