// As attention_keyvalue_grad.wgsl, in 4 x 4 register tiles with 16-byte loads, for CPUs that emulate a GPU; D divides by
// 8 and is at most 64. With p = exp(q[i] . k / sqrt(D) - lse[i]), summed over the query heads h of the key head's group
// and rows i >= r:
//   dv[r, g] = sum of p * dout[i, h];  dk[r, g] = sum of p * (dout[i, h] . v - delta[i, h]) * q[i, h] / sqrt(D),
// the latter turned back by the row's position. qkv kept [R, (H + 2 Hk) * D], rotated; dqkv the same, before rotation
// (writes only the last 2 Hk * D columns); dout f32 [R, H * D]; lse, delta f32 [R, H]; angles f32 [T, D/2, 2] = (cos, sin).
// One invocation per (four rows, key head) reads four queries at a time, heads outside, rows ascending inside: one fixed
// order, no atomics. Its rows of k, v, dk and dv stay in private memory, where SwiftShader and llvmpipe reach them without
// a gather. Accumulates in f32.

// #import lib/dispatch.wgsl
// #import lib/lanes_vec4.wgsl
// #import lib/tile.wgsl
// #import lib/turn_tile.wgsl

struct Params {
  R: u32,
  T: u32,
  H: u32,
  Hk: u32,
  D: u32,
}

override workgroupSize: u32 = 16u;

// Four columns each of the widest head that fits: 64.
const QUADS = 16u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<kept>;
@group(0) @binding(2) var<storage, read> dout: array<vec4f>;
@group(0) @binding(3) var<storage, read> lse: array<f32>;
@group(0) @binding(4) var<storage, read> delta: array<f32>;
@group(0) @binding(5) var<storage, read> angles: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> dqkv: array<kept>;

fn load(at: vec4u) -> mat4x4f {
  return mat4x4f(wide(qkv[at.x]), wide(qkv[at.y]), wide(qkv[at.z]), wide(qkv[at.w]));
}

fn loadUpstream(at: vec4u) -> mat4x4f {
  return mat4x4f(dout[at.x], dout[at.y], dout[at.z], dout[at.w]);
}

// Four columns of the first `count` rows.
fn store(at: vec4u, count: u32, tile: mat4x4f) {
  dqkv[at.x] = narrow(tile[0]);
  if (count > 1u) {
    dqkv[at.y] = narrow(tile[1]);
  }
  if (count > 2u) {
    dqkv[at.z] = narrow(tile[2]);
  }
  if (count > 3u) {
    dqkv[at.w] = narrow(tile[3]);
  }
}

// exp(score * scale - lse) for the queries `ids` that exist and see the key at `t`.
fn weights(score: vec4f, lse4: vec4f, ids: vec4u, t: u32) -> vec4f {
  let seen = (ids >= vec4u(t)) & (ids < vec4u(params.T));
  return select(vec4f(0.0), exp(score - lse4), seen);
}

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let T = params.T;
  let H = params.H;
  let Hk = params.Hk;
  let tiles = (T + 3u) / 4u;
  if (index >= params.R / T * tiles * Hk) {
    return;
  }
  let D4 = params.D / 4u;
  let first = index % tiles * 4u;
  let count = min(4u, T - first);
  let keyHead = (index / tiles) % Hk;
  let start = index / (tiles * Hk) * T;
  let t = first + FOUR;
  let last = T - 1u;
  let stride = (H + 2u * Hk) * D4;
  // Surplus rows repeat the last one and are not stored.
  let k = (start + min(t, vec4u(last))) * stride + (H + keyHead) * D4;
  let v = k + Hk * D4;
  let perGroup = H / Hk;
  let half = D4 / 2u;
  let angle = min(t, vec4u(last)) * D4;
  let scale = 1.0 / sqrt(f32(params.D));

  var keys: array<mat4x4f, QUADS>;
  var values: array<mat4x4f, QUADS>;
  var dk: array<mat4x4f, QUADS>;
  var dv: array<mat4x4f, QUADS>;
  for (var d = 0u; d < D4; d++) {
    keys[d] = load(k + d);
    values[d] = load(v + d);
  }
  for (var h = keyHead * perGroup; h < (keyHead + 1u) * perGroup; h++) {
    for (var i = first; i < T; i += 4u) {
      let ids = i + FOUR;
      let row = start + min(ids, vec4u(last));
      let q = row * stride + h * D4;
      let s = row * H + h;
      let o = s * D4;
      var score = mat4x4f();
      var dp = mat4x4f();
      for (var d = 0u; d < D4; d++) {
        score += transpose(load(q + d)) * keys[d];
        dp += transpose(loadUpstream(o + d)) * values[d];
      }
      let rowLse = vec4f(lse[s.x], lse[s.y], lse[s.z], lse[s.w]);
      let rowDelta = vec4f(delta[s.x], delta[s.y], delta[s.z], delta[s.w]);
      let p = mat4x4f(
        weights(score[0] * scale, rowLse, ids, t.x),
        weights(score[1] * scale, rowLse, ids, t.y),
        weights(score[2] * scale, rowLse, ids, t.z),
        weights(score[3] * scale, rowLse, ids, t.w),
      );
      let ds = mat4x4f(
        p[0] * (dp[0] - rowDelta) * scale,
        p[1] * (dp[1] - rowDelta) * scale,
        p[2] * (dp[2] - rowDelta) * scale,
        p[3] * (dp[3] - rowDelta) * scale,
      );
      for (var d = 0u; d < D4; d++) {
        dv[d] += loadUpstream(o + d) * p;
        dk[d] += load(q + d) * ds;
      }
    }
  }
  for (var d = 0u; d < half; d++) {
    let turned = turnBack(dk[d], dk[d + half], angle + 2u * d);
    store(k + d, count, turned.low);
    store(k + d + half, count, turned.high);
    store(v + d, count, dv[d]);
    store(v + d + half, count, dv[d + half]);
  }
}
