// The store of a product whose sums are the gradient of GELU's output: dact[M,N] = a · b, never stored. In its place
//   up[M,N] becomes its gradient, and act[M,N] becomes gelu(up + bias) (see gelu_backward.wgsl).

// #import lib/lanes_vec4.wgsl
// #import lib/gelu.wgsl
// #import lib/matmul_whole.wgsl
// #import lib/tile.wgsl

struct Params {
  M: u32,
  N: u32,
  K: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<fourOfA>;
@group(0) @binding(2) var<storage, read> b: array<fourOfB>;
@group(0) @binding(3) var<storage, read> bias: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> up: array<fourOfOut>;
@group(0) @binding(5) var<storage, read_write> act: array<fourOfOut>;

// Rows row .. row + 3 are the tile's columns; what lies outside the output is left out.
fn store(row: u32, column: u32, slice: u32, tile: mat4x4f) {
  if (column >= params.N) {
    return;
  }
  let place = column / 4u;
  let end = min(4u, params.M - min(row, params.M));
  for (var i = 0u; i < end; i++) {
    let at = (row + i) * (params.N / 4u) + place;
    let z = wideOut(up[at]) + bias[place];
    let argument = geluArgument(z);
    let s = sigmoid(argument);
    // sigmoid of the negative argument is 1 - s without the cancellation for a large positive one.
    let slope = s + z * s * sigmoid(-argument) * geluArgumentSlope(z);
    up[at] = narrowOut(tile[i] * slope);
    act[at] = narrowOut(z * s);
  }
}
