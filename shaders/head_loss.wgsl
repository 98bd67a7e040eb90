// Cross-entropy of the vocabulary head, the logits never stored: l[v] = x[r] . W[v],
//   lse[r] = log sum over v of exp(l[v]),  loss[r] = lse[r] - l[targets[r]]
// x f32 [R, C], weight f32 [V, C], targets u32 [R] below V, loss and lse f32 [R] (nats).
// One invocation takes four rows through the vocabulary, eight entries at a time, with an online softmax: 12 loads
// for 32 multiply-adds. Dot products and sums in f32, columns in order.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  C: u32,
  V: u32,
}

override workgroupSize: u32 = 8u;

const ROWS = 4u;
const ENTRIES = 8u;
// Below any logit; finite, since infinities are undefined in WGSL.
const LOWEST = -1e30;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> targets: array<u32>;
@group(0) @binding(4) var<storage, read_write> loss: array<f32>;
@group(0) @binding(5) var<storage, read_write> lse: array<f32>;

// One row's running softmax: the largest logit, the sum of exponentials relative to it, the target's logit.
struct Running {
  highest: f32,
  sum: f32,
  target_logit: f32,
}

fn fold(state: Running, logits: array<vec4f, 2>, first: u32, wanted: u32) -> Running {
  let ids = vec4u(first, first + 1u, first + 2u, first + 3u);
  let low = select(vec4f(LOWEST), logits[0], ids < vec4u(params.V));
  let high = select(vec4f(LOWEST), logits[1], ids + 4u < vec4u(params.V));
  let peak = max(low, high);
  let next = max(state.highest, max(max(peak.x, peak.y), max(peak.z, peak.w)));
  let e = exp(low - next) + exp(high - next);
  let hit = select(vec4f(0.0), low, ids == vec4u(wanted)) +
    select(vec4f(0.0), high, ids + 4u == vec4u(wanted));
  let sum = state.sum * exp(state.highest - next) + ((e.x + e.y) + (e.z + e.w));
  return Running(next, sum, state.target_logit + ((hit.x + hit.y) + (hit.z + hit.w)));
}

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let first = linearIndex(id, groups.x * workgroupSize) * ROWS;
  if (first >= params.R) {
    return;
  }
  let C = params.C;
  // Rows and entries past the end repeat the last one; what they give is dropped.
  let rows = min(vec4u(first, first + 1u, first + 2u, first + 3u), vec4u(params.R - 1u));
  let xs = rows * C;
  let last = vec4u(params.V - 1u);
  let start = Running(LOWEST, 0.0, 0.0);
  var state = array<Running, ROWS>(start, start, start, start);
  for (var v = 0u; v < params.V; v += ENTRIES) {
    let ids = vec4u(v, v + 1u, v + 2u, v + 3u);
    let a = min(ids, last) * C;
    let b = min(ids + 4u, last) * C;
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
    state[0] = fold(state[0], array<vec4f, 2>(a0, b0), v, targets[rows.x]);
    state[1] = fold(state[1], array<vec4f, 2>(a1, b1), v, targets[rows.y]);
    state[2] = fold(state[2], array<vec4f, 2>(a2, b2), v, targets[rows.z]);
    state[3] = fold(state[3], array<vec4f, 2>(a3, b3), v, targets[rows.w]);
  }
  for (var i = 0u; i < min(ROWS, params.R - first); i++) {
    let total = state[i].highest + log(state[i].sum);
    lse[first + i] = total;
    loss[first + i] = total - state[i].target_logit;
  }
}
