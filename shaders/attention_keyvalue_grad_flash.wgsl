// As attention_keyvalue_grad.wgsl for GPUs, with queries in workgroup memory; D divides by 8 and is at most 128.
// With p = exp(q[i] . k / sqrt(D) - lse[i]), summed over the query heads h of the key head's group and rows i >= r:
//   dv[r, g] = sum of p * dout[i, h];  dk[r, g] = sum of p * (dout[i, h] . v - delta[i, h]) * q[i, h] / sqrt(D),
// the latter turned back by the row's position. qkv kept [R, (H + 2 Hk) * D], rotated; dqkv the same, before rotation
// (writes only the last 2 Hk * D columns); dout f32 [R, H * D]; lse, delta f32 [R, H]; angles f32 [T, D/2, 2] = (cos, sin).
// One workgroup of 8 x 8 per (32 keys, key head), the longest first, takes 32 queries at a time, heads outside, rows
// ascending inside: one fixed order, no atomics. Accumulates in f32.

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
@group(0) @binding(2) var<storage, read> dout: array<vec4f>;
@group(0) @binding(3) var<storage, read> lse: array<f32>;
@group(0) @binding(4) var<storage, read> delta: array<f32>;
@group(0) @binding(5) var<storage, read> angles: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> dqkv: array<kept>;

fn packed(row: u32, column: Column) -> vec4f {
  return select(vec4f(0.0), wide(qkv[row + column.at]), column.inside);
}

fn upstream(row: u32, column: Column) -> vec4f {
  return select(vec4f(0.0), dout[row + column.at], column.inside);
}

fn stageLeft(local: vec3u, rows: vec4u, column: Column) {
  let at = (local.y + STEP) * PITCH + local.x;
  left[at.x] = packed(rows.x, column);
  left[at.y] = packed(rows.y, column);
  left[at.z] = packed(rows.z, column);
  left[at.w] = packed(rows.w, column);
}

fn stageQueries(local: vec3u, rows: vec4u, column: Column) {
  let at = (local.y + STEP) * PITCH + local.x;
  right[at.x] = packed(rows.x, column);
  right[at.y] = packed(rows.y, column);
  right[at.z] = packed(rows.z, column);
  right[at.w] = packed(rows.w, column);
}

fn stageUpstream(local: vec3u, rows: vec4u, column: Column) {
  let at = (local.y + STEP) * PITCH + local.x;
  right[at.x] = upstream(rows.x, column);
  right[at.y] = upstream(rows.y, column);
  right[at.z] = upstream(rows.z, column);
  right[at.w] = upstream(rows.w, column);
}

@compute @workgroup_size(8, 8)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_id) local: vec3u,
) {
  let T = params.T;
  let H = params.H;
  let Hk = params.Hk;
  let tiles = (T + TILE - 1u) / TILE;
  let index = group.y * groups.x + group.x;
  if (index >= params.R / T * Hk * tiles) {
    return;
  }
  let D = select(headDim, params.D, headDim == 0u);
  let D4 = D / 4u;
  let half = D4 / 2u;
  let chunks = (half + 3u) / 4u;
  let width = bound(8u, headDim != 0u, params.R);
  let tileRows = bound(TILE, headDim != 0u, params.R);
  let sequences = params.R / T;
  let first = index / (sequences * Hk) * TILE;
  let keyHead = index % Hk;
  let start = (index / Hk) % sequences * T;
  let t = first + local.y + STEP;
  let stride = (H + 2u * Hk) * D4;
  // Rows past the sequence's end repeat its last one and are not stored.
  let k = (start + min(t, vec4u(T - 1u))) * stride + (H + keyHead) * D4;
  let v = k + Hk * D4;
  let perGroup = H / Hk;
  let scale = 1.0 / sqrt(f32(D));

  var dk: array<mat4x4f, CHUNKS_MAX>;
  var dv: array<mat4x4f, CHUNKS_MAX>;
  for (var h = keyHead * perGroup; h < (keyHead + 1u) * perGroup; h++) {
    for (var j = first; j < T; j += TILE) {
      let rows = start + min(j + local.y + STEP, vec4u(T - 1u));
      let q = rows * stride + h * D4;
      let o = (rows * H + h) * D4;
      var score = mat4x4f();
      var dp = mat4x4f();
      // First k . q, then v . dout: one piece of code, because drivers inline every call.
      for (var step = 0u; step < 2u * chunks; step++) {
        let second = step >= chunks;
        let column = columnOf(step % chunks, local.x, half);
        workgroupBarrier();
        stageLeft(local, select(k, v, vec4<bool>(second)), column);
        if (second) {
          stageUpstream(local, o, column);
        } else {
          stageQueries(local, q, column);
        }
        workgroupBarrier();
        let part = tileScores(local, width);
        if (second) {
          dp += part;
        } else {
          score += part;
        }
      }
      let query = j + local.x + STEP;
      let s = (start + min(query, vec4u(T - 1u))) * H + h;
      let rowLse = vec4f(lse[s.x], lse[s.y], lse[s.z], lse[s.w]);
      let rowDelta = vec4f(delta[s.x], delta[s.y], delta[s.z], delta[s.w]);
      var p = mat4x4f();
      var ds = mat4x4f();
      for (var i = 0u; i < 4u; i++) {
        let seen = (query >= vec4u(t[i])) & (query < vec4u(T));
        p[i] = select(vec4f(0.0), exp(score[i] * scale - rowLse), seen);
        ds[i] = p[i] * (dp[i] - rowDelta) * scale;
      }
      // First what dout adds to dv, then what q adds to dk.
      for (var step = 0u; step < 2u * chunks; step++) {
        let second = step >= chunks;
        let c = step % chunks;
        let column = columnOf(c, local.x, half);
        workgroupBarrier();
        if (second) {
          stageQueries(local, q, column);
        } else {
          stageUpstream(local, o, column);
        }
        if (step == 0u) {
          keepWeights(local, p);
        } else if (step == chunks) {
          keepWeights(local, ds);
        }
        workgroupBarrier();
        let part = tileProduct(local, tileRows);
        if (second) {
          dk[c] += part;
        } else {
          dv[c] += part;
        }
      }
    }
  }
  for (var c = 0u; c < chunks; c++) {
    let column = columnOf(c, local.x, half);
    let at = (local.y + STEP) * PITCH;
    // The columns that rotate with these belong to the lane four further or before.
    workgroupBarrier();
    left[at.x + local.x] = dk[c][0];
    left[at.y + local.x] = dk[c][1];
    left[at.z + local.x] = dk[c][2];
    left[at.w + local.x] = dk[c][3];
    workgroupBarrier();
    if (column.inside) {
      let low = local.x % 4u;
      let angle = 2u * (column.at % half);
      for (var i = 0u; i < 4u; i++) {
        if (t[i] < T) {
          let pairs = Pairs(left[at[i] + low], left[at[i] + low + 4u]);
          let turned = turn(pairs, angles[t[i] * D4 + angle], angles[t[i] * D4 + angle + 1u], -1.0);
          dqkv[k[i] + column.at] = narrow(select(turned.high, turned.low, local.x < 4u));
          dqkv[v[i] + column.at] = narrow(dv[c][i]);
        }
      }
    }
  }
}
