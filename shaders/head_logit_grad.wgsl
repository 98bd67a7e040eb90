// Turns one tile of the logits, entries v in [vocabOffset, vocabOffset + tile), into the gradient of the mean loss, in place:
//   logits[r, v - vocabOffset] = (exp(logits[r, v - vocabOffset] - lse[r]) - (v == targets[r] ? 1 : 0)) / R
// targets u32 [R], lse f32 [R] from head_loss, logits f32 [R, tile]; the last tile may be narrower.
// Times the loss scale with `dtype` f16 (lib/loss_scaled.wgsl). One invocation changes four neighbouring entries of one
// row; nothing is accumulated.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  tile: u32,
  vocabOffset: u32,
}

override workgroupSize: u32 = 64u;

const ENTRIES = 4u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> lse: array<f32>;
@group(0) @binding(3) var<storage, read_write> logits: array<f32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let perRow = (params.tile + ENTRIES - 1u) / ENTRIES;
  let r = index / perRow;
  if (r >= params.R) {
    return;
  }
  let first = (index % perRow) * ENTRIES;
  let wanted = targets[r] - params.vocabOffset;
  let total = lse[r];
  let scale = lossFactor() / f32(params.R);
  for (var v = first; v < min(first + ENTRIES, params.tile); v++) {
    let at = r * params.tile + v;
    logits[at] = (exp(logits[at] - total) - select(0.0, 1.0, v == wanted)) * scale;
  }
}
