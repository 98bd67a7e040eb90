// With p = exp(q[i] . k / sqrt(D) - lse[i]), summed over the query heads h of the key head's group and rows i >= r:
//   dv[r, g] = sum of p * dout[i, h];  dk[r, g] = sum of p * (dout[i, h] . v - delta[i, h]) * q[i, h] / sqrt(D),
// the latter turned back by the row's position. qkv f32 [R, (H + 2 Hk) * D], rotated; dqkv the same, before rotation
// (writes only the last 2 Hk * D columns); dout f32 [R, H * D]; lse, delta f32 [R, H]; angles f32 [T, D/2, 2] = (cos, sin);
// D even, <= 128.
// One invocation per (row, key head) reads four queries at a time, heads outside, rows ascending inside: one fixed
// order, no atomics. Accumulates in f32.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  T: u32,
  H: u32,
  Hk: u32,
  D: u32,
}

override workgroupSize: u32 = 32u;
// Set to D, the loops over a head unroll into registers; 0 takes D from the parameters. A driver that compiles for
// the CPU gains nothing from the former and may need many seconds for it.
override headDim: u32 = 0u;

const D_MAX = 128u;
const QUERIES = 4u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> dout: array<f32>;
@group(0) @binding(3) var<storage, read> lse: array<f32>;
@group(0) @binding(4) var<storage, read> delta: array<f32>;
@group(0) @binding(5) var<storage, read> angles: array<f32>;
@group(0) @binding(6) var<storage, read_write> dqkv: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= params.R * params.Hk) {
    return;
  }
  let D = select(headDim, params.D, headDim == 0u);
  let t = index % params.T;
  let keyHead = (index / params.T) % params.Hk;
  let start = index / (params.T * params.Hk) * params.T;
  let stride = (params.H + 2u * params.Hk) * D;
  let k = (start + t) * stride + (params.H + keyHead) * D;
  let v = k + params.Hk * D;
  let perGroup = params.H / params.Hk;
  let scale = 1.0 / sqrt(f32(D));
  let last = params.T - 1u;

  var dk: array<f32, D_MAX>;
  var dv: array<f32, D_MAX>;
  for (var d = 0u; d < D; d++) {
    dk[d] = 0.0;
    dv[d] = 0.0;
  }
  for (var h = keyHead * perGroup; h < (keyHead + 1u) * perGroup; h++) {
    for (var i = t; i < params.T; i += QUERIES) {
      // Past the end of the sequence its last row is read again and its weight is set to zero.
      let row = start + min(vec4u(i, i + 1u, i + 2u, i + 3u), vec4u(last));
      let inside = vec4u(i, i + 1u, i + 2u, i + 3u) <= vec4u(last);
      let q = row * stride + h * D;
      let s = row * params.H + h;
      let o = s * D;
      var score = vec4f(0.0);
      var dp = vec4f(0.0);
      for (var d = 0u; d < D; d++) {
        score += qkv[k + d] * vec4f(qkv[q.x + d], qkv[q.y + d], qkv[q.z + d], qkv[q.w + d]);
        dp += qkv[v + d] * vec4f(dout[o.x + d], dout[o.y + d], dout[o.z + d], dout[o.w + d]);
      }
      let rowLse = vec4f(lse[s.x], lse[s.y], lse[s.z], lse[s.w]);
      let rowDelta = vec4f(delta[s.x], delta[s.y], delta[s.z], delta[s.w]);
      let p = select(vec4f(0.0), exp(score * scale - rowLse), inside);
      let ds = p * (dp - rowDelta) * scale;
      for (var d = 0u; d < D; d++) {
        dv[d] += dot(p, vec4f(dout[o.x + d], dout[o.y + d], dout[o.z + d], dout[o.w + d]));
        dk[d] += dot(ds, vec4f(qkv[q.x + d], qkv[q.y + d], qkv[q.z + d], qkv[q.w + d]));
      }
    }
  }
  let half = D / 2u;
  for (var d = 0u; d < half; d++) {
    let cosine = angles[t * D + 2u * d];
    let sine = angles[t * D + 2u * d + 1u];
    dqkv[k + d] = dk[d] * cosine + dk[d + half] * sine;
    dqkv[k + d + half] = dk[d + half] * cosine - dk[d] * sine;
  }
  for (var d = 0u; d < D; d++) {
    dqkv[v + d] = dv[d];
  }
}
