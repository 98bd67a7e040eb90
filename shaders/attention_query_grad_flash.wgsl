// As attention_query_grad.wgsl for GPUs, with keys and values in workgroup memory; D divides by 8 and is at most 128:
// with p = exp(q . k[j] / sqrt(D) - lse) and delta[r, h] = dout[r, h] . out[r, h]
//   dq[r, h] = sum over keys j <= r of p * (dout . v[j] - delta) * k[j] / sqrt(D), turned back by the row's position
// qkv kept [R, (H + 2 Hk) * D], rotated; dqkv the same, before rotation (writes only the first H * D columns);
// out kept, dout f32 [R, H * D]; angles f32 [T, D/2, 2] = (cos, sin); lse, delta f32 [R, H].
// One workgroup of 8 x 8 per (32 rows, head), the longest first, takes 32 keys at a time. Accumulates in f32.

// #import lib/flash_tile.wgsl
// #import lib/lanes_vec4.wgsl
// #import lib/rotary.wgsl

struct Params {
  R: u32,
  T: u32,
  H: u32,
  Hk: u32,
  D: u32,
}

// Set to D, the loops over a head's chunks unroll and its sums become registers; 0 takes D from the parameters.
override headDim: u32 = 0u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<kept>;
@group(0) @binding(2) var<storage, read> out: array<kept>;
@group(0) @binding(3) var<storage, read> dout: array<vec4f>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> angles: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> delta: array<f32>;
@group(0) @binding(7) var<storage, read_write> dqkv: array<kept>;

// lse and delta of the workgroup's rows.
var<workgroup> rowLse: array<f32, 32>;
var<workgroup> rowDelta: array<f32, 32>;

fn packed(row: u32, column: Column) -> vec4f {
  return select(vec4f(0.0), wide(qkv[row + column.at]), column.inside);
}

fn upstream(row: u32, column: Column) -> vec4f {
  return select(vec4f(0.0), dout[row + column.at], column.inside);
}

fn stageQueries(local: vec3u, rows: vec4u, column: Column) {
  let at = (local.y + STEP) * PITCH + local.x;
  left[at.x] = packed(rows.x, column);
  left[at.y] = packed(rows.y, column);
  left[at.z] = packed(rows.z, column);
  left[at.w] = packed(rows.w, column);
}

fn stageUpstream(local: vec3u, rows: vec4u, column: Column) {
  let at = (local.y + STEP) * PITCH + local.x;
  left[at.x] = upstream(rows.x, column);
  left[at.y] = upstream(rows.y, column);
  left[at.z] = upstream(rows.z, column);
  left[at.w] = upstream(rows.w, column);
}

fn stageRight(local: vec3u, rows: vec4u, column: Column) {
  let at = (local.y + STEP) * PITCH + local.x;
  right[at.x] = packed(rows.x, column);
  right[at.y] = packed(rows.y, column);
  right[at.z] = packed(rows.z, column);
  right[at.w] = packed(rows.w, column);
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
  let rows = start + min(t, vec4u(T - 1u));
  let q = rows * stride + h * D4;
  let o = (rows * H + h) * D4;
  let k = start * stride + (H + h * params.Hk / H) * D4;
  let v = k + params.Hk * D4;
  let scale = 1.0 / sqrt(f32(D));

  let own = local.y * 8u + local.x;
  if (own < TILE) {
    let row = (start + min(first + own, T - 1u)) * H + h;
    var total = 0.0;
    for (var d = 0u; d < D4; d++) {
      total += dot(dout[row * D4 + d], wide(out[row * D4 + d]));
    }
    rowLse[own] = lse[row];
    rowDelta[own] = total;
    if (first + own < T) {
      delta[row] = total;
    }
  }

  var sum: array<mat4x4f, CHUNKS_MAX>;
  for (var j = 0u; j <= last; j += TILE) {
    let staged = min(j + local.y + STEP, vec4u(T - 1u)) * stride;
    var score = mat4x4f();
    var dp = mat4x4f();
    // First q . k, then dout . v: one piece of code, because drivers inline every call.
    for (var step = 0u; step < 2u * chunks; step++) {
      let second = step >= chunks;
      let column = columnOf(step % chunks, local.x, half);
      workgroupBarrier();
      if (second) {
        stageUpstream(local, o, column);
      } else {
        stageQueries(local, q, column);
      }
      stageRight(local, select(k, v, second) + staged, column);
      workgroupBarrier();
      let part = tileScores(local, width);
      if (second) {
        dp += part;
      } else {
        score += part;
      }
    }
    let key = j + local.x + STEP;
    var ds = mat4x4f();
    for (var i = 0u; i < 4u; i++) {
      let own = local.y + 8u * i;
      let p = select(vec4f(0.0), exp(score[i] * scale - rowLse[own]), key <= vec4u(t[i]));
      ds[i] = p * (dp[i] - rowDelta[own]) * scale;
    }
    keepWeights(local, ds);
    for (var c = 0u; c < chunks; c++) {
      workgroupBarrier();
      stageRight(local, k + staged, columnOf(c, local.x, half));
      workgroupBarrier();
      sum[c] += tileProduct(local, tileRows);
    }
  }
  for (var c = 0u; c < chunks; c++) {
    let column = columnOf(c, local.x, half);
    let at = (local.y + STEP) * PITCH;
    // The columns that rotate with these belong to the lane four further or before.
    workgroupBarrier();
    left[at.x + local.x] = sum[c][0];
    left[at.y + local.x] = sum[c][1];
    left[at.z + local.x] = sum[c][2];
    left[at.w + local.x] = sum[c][3];
    workgroupBarrier();
    if (column.inside) {
      let low = local.x % 4u;
      let angle = 2u * (column.at % half);
      for (var i = 0u; i < 4u; i++) {
        if (t[i] < T) {
          let pairs = Pairs(left[at[i] + low], left[at[i] + low + 4u]);
          let turned = turn(pairs, angles[t[i] * D4 + angle], angles[t[i] * D4 + angle + 1u], -1.0);
          dqkv[q[i] + column.at] = narrow(select(turned.high, turned.low, local.x < 4u));
        }
      }
    }
  }
}
