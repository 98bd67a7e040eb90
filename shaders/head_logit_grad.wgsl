// Gradient of the mean loss with respect to one tile of the logits, for v in [vocabOffset, vocabOffset + tile):
//   dlogits[r, v - vocabOffset] = (exp(x[r] . W[v] - lse[r]) - (v == targets[r] ? 1 : 0)) / R
// x f32 [R, C], weight f32 [V, C] (the whole matrix), targets u32 [R], lse f32 [R] from head_loss,
// dlogits f32 [R, tile]; vocabOffset + tile <= V, so the last tile may be narrower.
// One invocation per four rows x eight entries recomputes its logits; dot products in f32, columns in order.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
  vocabOffset: u32,
  tile: u32,
}

override workgroupSize: u32 = 8u;

const ROWS = 4u;
const ENTRIES = 8u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> targets: array<u32>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read_write> dlogits: array<f32>;

// Writes the gradient of four neighbouring logits of one row, leaving out those past the tile.
fn store(r: u32, column: u32, logits: vec4f) {
  if (r >= params.R) {
    return;
  }
  let columns = vec4u(column, column + 1u, column + 2u, column + 3u);
  let hit = (columns + params.vocabOffset) == vec4u(targets[r]);
  let value = (exp(logits - lse[r]) - select(vec4f(0.0), vec4f(1.0), hit)) / f32(params.R);
  for (var i = 0u; i < 4u && column + i < params.tile; i++) {
    dlogits[r * params.tile + column + i] = value[i];
  }
}

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let perRow = (params.tile + ENTRIES - 1u) / ENTRIES;
  let first = index / perRow * ROWS;
  if (first >= params.R) {
    return;
  }
  let column = (index % perRow) * ENTRIES;
  let C = params.C;
  // Rows and entries past the end repeat the last one; what they give is dropped.
  let xs = min(vec4u(first, first + 1u, first + 2u, first + 3u), vec4u(params.R - 1u)) * C;
  let last = vec4u(params.tile - 1u);
  let ids = vec4u(column, column + 1u, column + 2u, column + 3u);
  let a = (params.vocabOffset + min(ids, last)) * C;
  let b = (params.vocabOffset + min(ids + 4u, last)) * C;
  var a0 = vec4f(0.0);
  var a1 = vec4f(0.0);
  var a2 = vec4f(0.0);
  var a3 = vec4f(0.0);
  var b0 = vec4f(0.0);
  var b1 = vec4f(0.0);
  var b2 = vec4f(0.0);
  var b3 = vec4f(0.0);
  for (var c = 0u; c < C; c++) {
    let low = vec4f(weight[a.x + c], weight[a.y + c], weight[a.z + c], weight[a.w + c]);
    let high = vec4f(weight[b.x + c], weight[b.y + c], weight[b.z + c], weight[b.w + c]);
    let value = vec4f(x[xs.x + c], x[xs.y + c], x[xs.z + c], x[xs.w + c]);
    a0 += value.x * low;
    b0 += value.x * high;
    a1 += value.y * low;
    b1 += value.y * high;
    a2 += value.z * low;
    b2 += value.z * high;
    a3 += value.w * low;
    b3 += value.w * high;
  }
  store(first, column, a0);
  store(first, column + 4u, b0);
  store(first + 1u, column, a1);
  store(first + 1u, column + 4u, b1);
  store(first + 2u, column, a2);
  store(first + 2u, column + 4u, b2);
  store(first + 3u, column, a3);
  store(first + 3u, column + 4u, b3);
}
