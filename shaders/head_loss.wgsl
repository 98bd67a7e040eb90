// Folds the logits of one tile of the vocabulary, entries [vocabOffset, vocabOffset + tile), into each row's cross-entropy:
//   lse[r] = log sum over all v so far of exp(l[r, v]),  loss[r] = lse[r] - l[r, targets[r]] once the last tile ends
// logits f32 [R, tile], targets u32 [R] below V, loss and lse f32 [R] (nats). Between tiles lse is that of the entries so
// far and loss holds the target's logit, or 0 before its tile; begins = 1 starts from nothing, ends = 1 makes the loss.
// One invocation takes one row, four entries at a time, with an online softmax. Sums in f32, entries in order.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  tile: u32,
  vocabOffset: u32,
  begins: u32,
  ends: u32,
}

override workgroupSize: u32 = 8u;

// Below any logit; finite, since infinities are undefined in WGSL.
const LOWEST = -1e30;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> loss: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let r = linearIndex(id, groups.x * workgroupSize);
  if (r >= params.R) {
    return;
  }
  // The largest logit, the sum of exponentials relative to it, the target's logit.
  var highest = LOWEST;
  var sum = 0.0;
  var wanted = 0.0;
  if (params.begins == 0u) {
    highest = lse[r];
    sum = 1.0;
    wanted = loss[r];
  }
  let base = r * params.tile;
  for (var v = 0u; v < params.tile; v += 4u) {
    var l = vec4f(LOWEST);
    for (var i = 0u; i < min(4u, params.tile - v); i++) {
      l[i] = logits[base + v + i];
    }
    let next = max(highest, max(max(l.x, l.y), max(l.z, l.w)));
    let e = exp(l - next);
    sum = sum * exp(highest - next) + ((e.x + e.y) + (e.z + e.w));
    highest = next;
  }
  // A target before the tile wraps round to a large number.
  let target_entry = targets[r] - params.vocabOffset;
  if (target_entry < params.tile) {
    wanted = logits[base + target_entry];
  }
  let total = highest + log(sum);
  lse[r] = total;
  loss[r] = select(wanted, total - wanted, params.ends == 1u);
}
