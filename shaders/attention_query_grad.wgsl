// With p = exp(q . k[j] / sqrt(D) - lse) and delta[r, h] = dout[r, h] . out[r, h] (FlashAttention, arXiv 2205.14135, B.4):
//   dq[r, h] = sum over keys j <= r of p * (dout . v[j] - delta) * k[j] / sqrt(D), turned back by the row's position
// qkv f32 [R, (H + 2 Hk) * D], rotated; dqkv the same, before rotation (writes only the first H * D columns);
// out, dout f32 [R, H * D]; angles f32 [T, D/2, 2] = (cos, sin); lse f32 [R, H]; delta f32 [R, H], written for the key and
// value gradient; D even, <= 128. One invocation per (row, head) recomputes p four keys at a time; accumulates in f32.

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
const KEYS = 4u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> out: array<f32>;
@group(0) @binding(3) var<storage, read> dout: array<f32>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> angles: array<f32>;
@group(0) @binding(6) var<storage, read_write> delta: array<f32>;
@group(0) @binding(7) var<storage, read_write> dqkv: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= params.R * params.H) {
    return;
  }
  let D = select(headDim, params.D, headDim == 0u);
  let t = index % params.T;
  let h = (index / params.T) % params.H;
  let start = index / (params.T * params.H) * params.T;
  let r = start + t;
  let stride = (params.H + 2u * params.Hk) * D;
  let q = r * stride + h * D;
  let keyHead = h * params.Hk / params.H;
  let k = start * stride + (params.H + keyHead) * D;
  let v = k + params.Hk * D;
  let upstream = (r * params.H + h) * D;
  let rowLse = lse[r * params.H + h];
  let scale = 1.0 / sqrt(f32(D));

  var sum: array<f32, D_MAX>;
  var rowDelta = 0.0;
  for (var d = 0u; d < D; d++) {
    sum[d] = 0.0;
    rowDelta += dout[upstream + d] * out[upstream + d];
  }
  delta[r * params.H + h] = rowDelta;
  for (var j = 0u; j <= t; j += KEYS) {
    // Past the diagonal the last visible key is read again and its weight is set to zero.
    let key = min(vec4u(j, j + 1u, j + 2u, j + 3u), vec4u(t)) * stride;
    let visible = vec4u(j, j + 1u, j + 2u, j + 3u) <= vec4u(t);
    var score = vec4f(0.0);
    var dp = vec4f(0.0);
    for (var d = 0u; d < D; d++) {
      let i = k + d;
      let o = v + d;
      score += qkv[q + d] * vec4f(qkv[i + key.x], qkv[i + key.y], qkv[i + key.z], qkv[i + key.w]);
      dp += dout[upstream + d] * vec4f(qkv[o + key.x], qkv[o + key.y], qkv[o + key.z], qkv[o + key.w]);
    }
    let p = select(vec4f(0.0), exp(score * scale - rowLse), visible);
    let ds = p * (dp - rowDelta) * scale;
    for (var d = 0u; d < D; d++) {
      let i = k + d;
      sum[d] += dot(ds, vec4f(qkv[i + key.x], qkv[i + key.y], qkv[i + key.z], qkv[i + key.w]));
    }
  }
  let half = D / 2u;
  for (var d = 0u; d < half; d++) {
    let cosine = angles[t * D + 2u * d];
    let sine = angles[t * D + 2u * d + 1u];
    dqkv[q + d] = sum[d] * cosine + sum[d + half] * sine;
    dqkv[q + d + half] = sum[d + half] * cosine - sum[d] * sine;
  }
}
