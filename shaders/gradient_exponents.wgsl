// exponents[b] = max(ceil(log2(peak)) + 3, exponents[b] - 1) within [factors[LEAST_EXPONENT], 60]; peak is the largest
// peaks[b, l]. With factors[FALLS_FREELY] = 1 the old exponent was a guess: the least one takes the place of e - 1.
// peaks u32 [count, LANES] (f32 bits), exponents i32 [count]. Exact: integers and bits only. One invocation per block.

// #import lib/dispatch.wgsl
// #import lib/optimizer.wgsl

struct Params {
  count: u32,
}

override workgroupSize: u32 = 64u;

const HEADROOM_BITS = 3;
const LARGEST = 60;
const MANTISSA = 0x7fffffu;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> factors: array<f32>;
@group(0) @binding(2) var<storage, read> peaks: array<u32>;
@group(0) @binding(3) var<storage, read_write> exponents: array<i32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= params.count) {
    return;
  }
  var peak = 0u;
  for (var lane = 0u; lane < LANES; lane++) {
    peak = max(peak, peaks[index * LANES + lane]);
  }
  let least = i32(factors[LEAST_EXPONENT]);
  var next = select(exponents[index] - 1, least, factors[FALLS_FREELY] != 0.0);
  // A subnormal peak is as good as none: its exponent lies below any least one.
  if (peak > MANTISSA) {
    let ceiling = i32(peak >> 23u) - 127 + select(0, 1, (peak & MANTISSA) != 0u);
    next = max(next, ceiling + HEADROOM_BITS);
  }
  exponents[index] = clamp(next, least, LARGEST);
}
