// Folds the logits of one tile of the vocabulary, entries [vocabOffset, vocabOffset + tile), into each row's cross-entropy:
//   lse[r] = log sum over all v so far of exp(l[r, v]),  loss[r] = lse[r] - l[r, targets[r]] once the last tile ends
// logits f32 [R, tile], targets u32 [R] below V, loss and lse f32 [R] (nats). Between tiles lse is that of the entries so
// far and loss holds the target's logit, or 0 before its tile; begins = 1 starts from nothing, ends = 1 makes the loss.
// One workgroup takes one row: each lane an online softmax over every 64th entry, then a tree over the lanes. Sums in f32;
// the order is fixed by the lanes, not by the schedule.

struct Params {
  R: u32,
  tile: u32,
  vocabOffset: u32,
  begins: u32,
  ends: u32,
}

const LANES = 64u;
// Below any logit; finite, since infinities are undefined in WGSL.
const LOWEST = -1e30;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> loss: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;

var<workgroup> peaks: array<f32, LANES>;
var<workgroup> sums: array<f32, LANES>;

@compute @workgroup_size(LANES)
fn main(
  @builtin(local_invocation_id) local: vec3u,
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let r = group.y * groups.x + group.x;
  let lane = local.x;
  // The same for the whole workgroup, but a barrier may not follow a return: surplus rows read the last one and write nothing.
  let base = min(r, params.R - 1u) * params.tile;
  var highest = LOWEST;
  var sum = 0.0;
  for (var v = lane; v < params.tile; v += LANES) {
    let l = logits[base + v];
    let next = max(highest, l);
    sum = sum * exp(highest - next) + exp(l - next);
    highest = next;
  }
  peaks[lane] = highest;
  sums[lane] = sum;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) {
      let next = max(peaks[lane], peaks[lane + half]);
      sums[lane] = sums[lane] * exp(peaks[lane] - next) + sums[lane + half] * exp(peaks[lane + half] - next);
      peaks[lane] = next;
    }
  }
  if (lane != 0u || r >= params.R) {
    return;
  }
  var total = peaks[0] + log(sums[0]);
  var wanted = 0.0;
  if (params.begins == 0u) {
    let before = lse[r];
    let next = max(before, total);
    total = next + log(exp(before - next) + exp(total - next));
    wanted = loss[r];
  }
  // A target before the tile wraps round to a large number.
  let target_entry = targets[r] - params.vocabOffset;
  if (target_entry < params.tile) {
    wanted = logits[base + target_entry];
  }
  lse[r] = total;
  loss[r] = select(wanted, total - wanted, params.ends == 1u);
}
