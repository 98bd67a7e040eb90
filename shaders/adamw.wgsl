// One step of AdamW (Loshchilov & Hutter 2019), the f32 twin of applyTotal in peer/exact/optimizer.ts:
//   g = sum / N * clip;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w = w - decay w - rate m / (sqrt(v) rootScale + eps); decay only where the value belongs to a matrix
// factors f32 [12] (lib/optimizer.wgsl), sum, weights, m, v f32 [4 count], a run of the flat array that begins with granule
// `granule`; decays: one bit per granule of 64 values. Padding stays 0. One invocation takes up to four vectors, a whole
// dispatch apart; f32.

// #import lib/dispatch.wgsl
// #import lib/optimizer.wgsl

struct Params {
  count: u32,
  granule: u32,
}

override workgroupSize: u32 = 64u;

// Vectors of one invocation.
const TURNS = 4u;
const GRANULE_VECTORS = 16u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> factors: array<f32>;
@group(0) @binding(2) var<storage, read> decays: array<u32>;
@group(0) @binding(3) var<storage, read> sum: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> weights: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> m: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> v: array<vec4f>;

fn update(i: u32) {
  let granule = params.granule + i / GRANULE_VECTORS;
  let isMatrix = ((decays[granule / 32u] >> (granule % 32u)) & 1u) != 0u;
  let g = sum[i] * factors[INVERSE_COUNT] * factors[CLIP];
  let first = factors[BETA1] * m[i] + factors[REST1] * g;
  let second = factors[BETA2] * v[i] + factors[REST2] * g * g;
  let direction = first / (sqrt(second) * factors[ROOT_SCALE] + factors[EPSILON]);
  let old = weights[i];
  let kept = old - select(0.0, factors[DECAY], isMatrix) * old;
  m[i] = first;
  v[i] = second;
  weights[i] = kept - factors[RATE] * direction;
}

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let apart = (params.count + TURNS - 1u) / TURNS;
  if (index >= apart) {
    return;
  }
  for (var turn = 0u; turn < TURNS; turn++) {
    let i = index + turn * apart;
    if (i < params.count) {
      update(i);
    }
  }
}
