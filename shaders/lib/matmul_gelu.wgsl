// The store of a product that GELU follows: up[M,N] = a · bᵀ, which the backward needs, and of the same sums
// act[M,N] = gelu(up + bias) (see gelu_forward.wgsl).

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

fn columnsOf(column: u32) -> vec4u {
  return column + FOUR;
}

// Rows row .. row + 3 are the tile's columns; what lies outside the output is left out.
fn store(row: u32, column: u32, slice: u32, tile: mat4x4f) {
  if (column >= params.N) {
    return;
  }
  let place = column / 4u;
  let end = min(4u, params.M - min(row, params.M));
  for (var i = 0u; i < end; i++) {
    let at = (row + i) * (params.N / 4u) + place;
    let z = tile[i] + bias[place];
    up[at] = narrowOut(tile[i]);
    act[at] = narrowOut(z * sigmoid(geluArgument(z)));
  }
}
