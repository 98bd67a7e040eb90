// dgain[c] = sum over r of dy[r, c] * x[r, c] * rstd[r]
// dy, x f32 [R, C], rstd f32 [R], dgain f32 [C].
// One invocation per column, so neighbours read neighbouring addresses. Rows are summed in blocks first: a
// rounding error then grows with R / 32 + 32 additions instead of R. Accumulates in f32.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
}

override workgroupSize: u32 = 32u;

const ROWS = 32u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read_write> dgain: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let c = linearIndex(id, groups.x * workgroupSize);
  if (c >= params.C) {
    return;
  }
  var total = 0.0;
  for (var first = 0u; first < params.R; first += ROWS) {
    let end = min(first + ROWS, params.R);
    var part = 0.0;
    for (var r = first; r < end; r++) {
      let i = r * params.C + c;
      part += dy[i] * (x[i] * rstd[r]);
    }
    total += part;
  }
  dgain[c] = total;
}
