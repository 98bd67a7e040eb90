// As attention_query_grad.wgsl, in 4 x 4 register tiles with 16-byte loads, for CPUs that emulate a GPU; D divides by 8
// and is at most 64: with p = exp(q . k[j] / sqrt(D) - lse) and delta[r, h] = dout[r, h] . out[r, h]
//   dq[r, h] = sum over keys j <= r of p * (dout . v[j] - delta) * k[j] / sqrt(D), turned back by the row's position
// qkv kept [R, (H + 2 Hk) * D], rotated; dqkv the same, before rotation (writes only the first H * D columns);
// out kept, dout f32 [R, H * D]; angles f32 [T, D/2, 2] = (cos, sin); lse, delta f32 [R, H].
// One invocation per (four rows, head) recomputes p four keys at a time. Its rows of q, dout and dq stay in private memory,
// where SwiftShader and llvmpipe reach them without a gather. Accumulates in f32.

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
@group(0) @binding(2) var<storage, read> out: array<kept>;
@group(0) @binding(3) var<storage, read> dout: array<vec4f>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> angles: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> delta: array<f32>;
@group(0) @binding(7) var<storage, read_write> dqkv: array<kept>;

fn load(at: vec4u) -> mat4x4f {
  return mat4x4f(wide(qkv[at.x]), wide(qkv[at.y]), wide(qkv[at.z]), wide(qkv[at.w]));
}

fn loadUpstream(at: vec4u) -> mat4x4f {
  return mat4x4f(dout[at.x], dout[at.y], dout[at.z], dout[at.w]);
}

// dout . out of four rows.
fn rowDeltas(at: vec4u, D4: u32) -> vec4f {
  var sum = vec4f(0.0);
  for (var d = 0u; d < D4; d++) {
    let i = at + d;
    sum += vec4f(
      dot(dout[i.x], wide(out[i.x])),
      dot(dout[i.y], wide(out[i.y])),
      dot(dout[i.z], wide(out[i.z])),
      dot(dout[i.w], wide(out[i.w])),
    );
  }
  return sum;
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

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let T = params.T;
  let H = params.H;
  let tiles = (T + 3u) / 4u;
  if (index >= params.R / T * tiles * H) {
    return;
  }
  let D4 = params.D / 4u;
  let first = index % tiles * 4u;
  let count = min(4u, T - first);
  let h = (index / tiles) % H;
  let start = index / (tiles * H) * T;
  let t = first + FOUR;
  // Surplus rows repeat the last one and are not stored.
  let last = first + count - 1u;
  let rows = start + min(t, vec4u(last));
  let stride = (H + 2u * params.Hk) * D4;
  let q = rows * stride + h * D4;
  let k = start * stride + (H + h * params.Hk / H) * D4;
  let v = k + params.Hk * D4;
  let s = rows * H + h;
  let upstream = s * D4;
  let rowLse = vec4f(lse[s.x], lse[s.y], lse[s.z], lse[s.w]);
  let rowDelta = rowDeltas(upstream, D4);
  for (var i = 0u; i < count; i++) {
    delta[s[i]] = rowDelta[i];
  }
  let scale = 1.0 / sqrt(f32(params.D));
  let half = D4 / 2u;
  let angle = min(t, vec4u(last)) * D4;

  var queries: array<mat4x4f, QUADS>;
  var upstreams: array<mat4x4f, QUADS>;
  var sum: array<mat4x4f, QUADS>;
  for (var d = 0u; d < D4; d++) {
    queries[d] = load(q + d);
    upstreams[d] = loadUpstream(upstream + d);
  }
  for (var j = 0u; j <= last; j += 4u) {
    // Past the diagonal a key's weight is set to zero; past the tile its last key is read again.
    let ids = j + FOUR;
    let key = min(ids, vec4u(last)) * stride;
    var score = mat4x4f();
    var dp = mat4x4f();
    for (var d = 0u; d < D4; d++) {
      score += transpose(load(k + key + d)) * queries[d];
      dp += transpose(load(v + key + d)) * upstreams[d];
    }
    let p0 = select(vec4f(0.0), exp(score[0] * scale - rowLse.x), ids <= vec4u(t.x));
    let p1 = select(vec4f(0.0), exp(score[1] * scale - rowLse.y), ids <= vec4u(t.y));
    let p2 = select(vec4f(0.0), exp(score[2] * scale - rowLse.z), ids <= vec4u(t.z));
    let p3 = select(vec4f(0.0), exp(score[3] * scale - rowLse.w), ids <= vec4u(t.w));
    let ds = mat4x4f(
      p0 * (dp[0] - rowDelta.x) * scale,
      p1 * (dp[1] - rowDelta.y) * scale,
      p2 * (dp[2] - rowDelta.z) * scale,
      p3 * (dp[3] - rowDelta.w) * scale,
    );
    for (var d = 0u; d < D4; d++) {
      sum[d] += load(k + key + d) * ds;
    }
  }
  for (var d = 0u; d < half; d++) {
    let turned = turnBack(sum[d], sum[d + half], angle + 2u * d);
    store(q + d, count, turned.low);
    store(q + d + half, count, turned.high);
  }
}
