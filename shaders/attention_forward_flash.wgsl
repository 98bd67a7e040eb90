// As attention_forward.wgsl for GPUs, with keys and values in workgroup memory; D divides by 8 and is at most 128:
//   out[r, h] = sum over keys j <= r of softmax(q[r, h] . k[j, g] / sqrt(D)) v[j, g],  g = h * Hk / H
//   lse[r, h] = log sum over j of exp(q[r, h] . k[j, g] / sqrt(D)); rows of one sequence of T see only each other.
// qkv kept [R, (H + 2 Hk) * D] with rotary applied; out kept [R, H * D]; lse f32 [R, H].
// One workgroup of 8 x 8 per (32 rows, head), the longest first, takes 32 keys at a time with an online softmax
// (arXiv 2205.14135). Accumulates in f32.

// #import lib/flash_tile.wgsl
// #import lib/lanes_vec4.wgsl

struct Params {
  R: u32,
  T: u32,
  H: u32,
  Hk: u32,
  D: u32,
}

// Set to D, the loops over a head's chunks unroll and its sums become registers; 0 takes D from the parameters.
override headDim: u32 = 0u;

// Below any score; finite, since infinities are undefined in WGSL.
const LOWEST = -1e30;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<kept>;
@group(0) @binding(2) var<storage, read_write> out: array<kept>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;

// The highest scores that each x has seen of the rows of each y.
var<workgroup> highs: array<vec4f, 64>;

fn valueAt(row: u32, column: Column) -> vec4f {
  return select(vec4f(0.0), wide(qkv[row + column.at]), column.inside);
}

fn stageLeft(local: vec3u, rows: vec4u, column: Column) {
  let at = (local.y + STEP) * PITCH + local.x;
  left[at.x] = valueAt(rows.x, column);
  left[at.y] = valueAt(rows.y, column);
  left[at.z] = valueAt(rows.z, column);
  left[at.w] = valueAt(rows.w, column);
}

fn stageRight(local: vec3u, rows: vec4u, column: Column) {
  let at = (local.y + STEP) * PITCH + local.x;
  right[at.x] = valueAt(rows.x, column);
  right[at.y] = valueAt(rows.y, column);
  right[at.z] = valueAt(rows.z, column);
  right[at.w] = valueAt(rows.w, column);
}

@compute @workgroup_size(8, 8)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_id) local: vec3u,
) {
  let T = params.T;
  let H = params.H;
  let tiles = (T + TILE - 1u) / TILE;
  let index = group.y * groups.x + group.x;
  if (index >= params.R / T * H * tiles) {
    return;
  }
  let D = select(headDim, params.D, headDim == 0u);
  let D4 = D / 4u;
  let half = D4 / 2u;
  let chunks = (half + 3u) / 4u;
  let width = bound(8u, headDim != 0u, params.R);
  let tileRows = bound(TILE, headDim != 0u, params.R);
  let sequences = params.R / T;
  let first = (tiles - 1u - index / (sequences * H)) * TILE;
  let h = index % H;
  let start = (index / H) % sequences * T;
  let last = min(first + TILE, T) - 1u;
  let t = first + local.y + STEP;
  let stride = (H + 2u * params.Hk) * D4;
  // Rows past the sequence's end repeat its last one and are not stored.
  let q = (start + min(t, vec4u(T - 1u))) * stride + h * D4;
  let k = start * stride + (H + h * params.Hk / H) * D4;
  let v = k + params.Hk * D4;
  let scale = 1.0 / sqrt(f32(D));

  var sum: array<mat4x4f, CHUNKS_MAX>;
  var highest = vec4f(LOWEST);
  var weight = vec4f(0.0);
  for (var j = 0u; j <= last; j += TILE) {
    let staged = min(j + local.y + STEP, vec4u(T - 1u)) * stride;
    var score = mat4x4f();
    for (var c = 0u; c < chunks; c++) {
      let column = columnOf(c, local.x, half);
      workgroupBarrier();
      if (j == 0u || chunks > 1u) {
        stageLeft(local, q, column);
      }
      stageRight(local, k + staged, column);
      workgroupBarrier();
      score += tileScores(local, width);
    }
    let key = j + local.x + STEP;
    let s0 = select(vec4f(LOWEST), score[0] * scale, key <= vec4u(t.x));
    let s1 = select(vec4f(LOWEST), score[1] * scale, key <= vec4u(t.y));
    let s2 = select(vec4f(LOWEST), score[2] * scale, key <= vec4u(t.z));
    let s3 = select(vec4f(LOWEST), score[3] * scale, key <= vec4u(t.w));
    let turned = transpose(mat4x4f(s0, s1, s2, s3));
    highs[local.x * 8u + local.y] = max(max(turned[0], turned[1]), max(turned[2], turned[3]));
    workgroupBarrier();
    var next = highest;
    for (var x = 0u; x < 8u; x++) {
      next = max(next, highs[x * 8u + local.y]);
    }
    let keep = exp(highest - next);
    highest = next;
    // Selected again, because an adapter's exp may stop above zero.
    let p = mat4x4f(
      select(vec4f(0.0), exp(s0 - next.x), key <= vec4u(t.x)),
      select(vec4f(0.0), exp(s1 - next.y), key <= vec4u(t.y)),
      select(vec4f(0.0), exp(s2 - next.z), key <= vec4u(t.z)),
      select(vec4f(0.0), exp(s3 - next.w), key <= vec4u(t.w)),
    );
    keepWeights(local, p);
    weight *= keep;
    for (var c = 0u; c < chunks; c++) {
      workgroupBarrier();
      stageRight(local, v + staged, columnOf(c, local.x, half));
      workgroupBarrier();
      let old = sum[c];
      sum[c] = mat4x4f(old[0] * keep.x, old[1] * keep.y, old[2] * keep.z, old[3] * keep.w) + tileProduct(local, tileRows);
    }
    for (var b = 0u; b < tileRows; b++) {
      weight += weights[b * PITCH + local.y];
    }
  }
  let inverse = 1.0 / weight;
  let logSum = highest + log(weight);
  for (var i = 0u; i < 4u; i++) {
    if (t[i] >= T) {
      break;
    }
    let row = (start + t[i]) * H + h;
    if (local.x == 0u) {
      lse[row] = logSum[i];
    }
    for (var c = 0u; c < chunks; c++) {
      let column = columnOf(c, local.x, half);
      if (column.inside) {
        out[row * D4 + column.at] = narrow(sum[c][i] * inverse[i]);
      }
    }
  }
}
