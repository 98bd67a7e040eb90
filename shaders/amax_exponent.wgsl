// encoded[0] = e such that max|x| * 2^-e lies in [0.5, 1), as i32; at least -100; 0 for a tensor of zeros
// maxima u32 [count] from amax_chunks; encoded u32 [1 + payload words], of which only word 0 is written.
// e above 100 is written as it is (129 for NaN and infinity): the CPU sees it in the same readback and refuses the
// tensor, whose payload then means nothing. One invocation: count is about the square root of the tensor's size.

struct Params {
  count: u32,
}

const EXPONENT_MIN = -100;
// f32 bias 127, less 1 because the result lies below 1 and not below 2.
const BIAS = 126;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> maxima: array<u32>;
@group(0) @binding(2) var<storage, read_write> encoded: array<u32>;

@compute @workgroup_size(1)
fn main() {
  var highest = 0u;
  for (var i = 0u; i < params.count; i++) {
    highest = max(highest, maxima[i]);
  }
  let exponent = max(i32(highest >> 23u) - BIAS, EXPONENT_MIN);
  encoded[0] = select(bitcast<u32>(exponent), 0u, highest == 0u);
}
