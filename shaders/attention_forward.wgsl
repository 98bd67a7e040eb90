// Causal attention with grouped key/value heads and an online softmax (FlashAttention, arXiv 2205.14135):
//   out[r, h] = sum over keys j <= r of softmax(q[r, h] . k[j, g] / sqrt(D)) v[j, g],  g = h * Hk / H
//   lse[r, h] = log sum over j of exp(q[r, h] . k[j, g] / sqrt(D)); rows of one sequence of T see only each other.
// qkv f32 [R, (H + 2 Hk) * D] with rotary applied; out f32 [R, H * D]; lse f32 [R, H]; D <= 128.
// One invocation per (row, head), neighbours being rows of one head so that they read the same keys; four keys
// at a time, never a T x T matrix. Accumulates in f32.

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
// Below any score; finite, since infinities are undefined in WGSL.
const LOWEST = -1e30;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;

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
  let scale = 1.0 / sqrt(f32(D));

  var sum: array<f32, D_MAX>;
  for (var d = 0u; d < D; d++) {
    sum[d] = 0.0;
  }
  var highest = LOWEST;
  var weight = 0.0;
  for (var j = 0u; j <= t; j += KEYS) {
    // Past the diagonal the last visible key is read again and its weight is set to zero.
    let key = min(vec4u(j, j + 1u, j + 2u, j + 3u), vec4u(t)) * stride;
    let visible = vec4u(j, j + 1u, j + 2u, j + 3u) <= vec4u(t);
    var score = vec4f(0.0);
    for (var d = 0u; d < D; d++) {
      let i = k + d;
      score += qkv[q + d] * vec4f(qkv[i + key.x], qkv[i + key.y], qkv[i + key.z], qkv[i + key.w]);
    }
    score = select(vec4f(LOWEST), score * scale, visible);
    let next = max(highest, max(max(score.x, score.y), max(score.z, score.w)));
    let keep = exp(highest - next);
    let p = select(vec4f(0.0), exp(score - next), visible);
    weight = weight * keep + ((p.x + p.y) + (p.z + p.w));
    highest = next;
    for (var d = 0u; d < D; d++) {
      let i = v + d;
      sum[d] = sum[d] * keep + dot(p, vec4f(qkv[i + key.x], qkv[i + key.y], qkv[i + key.z], qkv[i + key.w]));
    }
  }
  let inverse = 1.0 / weight;
  for (var d = 0u; d < D; d++) {
    out[(r * params.H + h) * D + d] = sum[d] * inverse;
  }
  lse[r * params.H + h] = highest + log(weight);
}
