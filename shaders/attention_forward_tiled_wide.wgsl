// As attention_forward.wgsl, in 4 x 4 register tiles with 16-byte loads, for CPUs that emulate a GPU; D divides by 4
// and is at most 64:
//   out[r, h] = sum over keys j <= r of softmax(q[r, h] . k[j, g] / sqrt(D)) v[j, g],  g = h * Hk / H
//   lse[r, h] = log sum over j of exp(q[r, h] . k[j, g] / sqrt(D)); rows of one sequence of T see only each other.
// qkv kept [R, (H + 2 Hk) * D] with rotary applied; out kept [R, H * D]; lse f32 [R, H].
// One invocation per (four rows, head) takes four keys at a time with an online softmax (arXiv 2205.14135). Its rows of q
// and out stay in private memory, where SwiftShader and llvmpipe reach them without a gather. Accumulates in f32.

// #import lib/dispatch.wgsl
// #import lib/lanes_vec4.wgsl
// #import lib/tile.wgsl

struct Params {
  R: u32,
  T: u32,
  H: u32,
  Hk: u32,
  D: u32,
}

override workgroupSize: u32 = 16u;

// Below any score; finite, since infinities are undefined in WGSL.
const LOWEST = -1e30;
// Four columns each of the widest head that fits: 64.
const QUADS = 16u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<kept>;
@group(0) @binding(2) var<storage, read_write> out: array<kept>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;

fn load(at: vec4u) -> mat4x4f {
  return mat4x4f(wide(qkv[at.x]), wide(qkv[at.y]), wide(qkv[at.z]), wide(qkv[at.w]));
}

// Four columns of the first `count` rows.
fn store(at: vec4u, count: u32, tile: mat4x4f) {
  out[at.x] = narrow(tile[0]);
  if (count > 1u) {
    out[at.y] = narrow(tile[1]);
  }
  if (count > 2u) {
    out[at.z] = narrow(tile[2]);
  }
  if (count > 3u) {
    out[at.w] = narrow(tile[3]);
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
  let to = (rows * H + h) * D4;
  let scale = 1.0 / sqrt(f32(params.D));

  var queries: array<mat4x4f, QUADS>;
  var sum: array<mat4x4f, QUADS>;
  for (var d = 0u; d < D4; d++) {
    queries[d] = load(q + d);
  }
  var highest = vec4f(LOWEST);
  var weight = vec4f(0.0);
  for (var j = 0u; j <= last; j += 4u) {
    // Past the diagonal a key's weight is set to zero; past the tile its last key is read again.
    let ids = j + FOUR;
    let key = min(ids, vec4u(last)) * stride;
    var score = mat4x4f();
    for (var d = 0u; d < D4; d++) {
      score += transpose(load(k + key + d)) * queries[d];
    }
    let s0 = select(vec4f(LOWEST), score[0] * scale, ids <= vec4u(t.x));
    let s1 = select(vec4f(LOWEST), score[1] * scale, ids <= vec4u(t.y));
    let s2 = select(vec4f(LOWEST), score[2] * scale, ids <= vec4u(t.z));
    let s3 = select(vec4f(LOWEST), score[3] * scale, ids <= vec4u(t.w));
    let next = max(highest, vec4f(largest(s0), largest(s1), largest(s2), largest(s3)));
    let keep = exp(highest - next);
    // Selected again, because an adapter's exp may stop above zero.
    let p = mat4x4f(
      select(vec4f(0.0), exp(s0 - next.x), ids <= vec4u(t.x)),
      select(vec4f(0.0), exp(s1 - next.y), ids <= vec4u(t.y)),
      select(vec4f(0.0), exp(s2 - next.z), ids <= vec4u(t.z)),
      select(vec4f(0.0), exp(s3 - next.w), ids <= vec4u(t.w)),
    );
    weight = weight * keep + vec4f(total(p[0]), total(p[1]), total(p[2]), total(p[3]));
    highest = next;
    for (var d = 0u; d < D4; d++) {
      sum[d] = scaleColumns(sum[d], keep) + load(v + key + d) * p;
    }
  }
  let inverse = 1.0 / weight;
  for (var d = 0u; d < D4; d++) {
    store(to + d, count, scaleColumns(sum[d], inverse));
  }
  let logSum = highest + log(weight);
  for (var i = 0u; i < count; i++) {
    lse[rows[i] * H + h] = logSum[i];
  }
}
