// The store of a product whose sums are the gradient of an activation: dact[M,N] = a · b, never stored. In its place
//   gate_up[M,2N], gate then up, becomes its gradient, and act[M,N] becomes silu(gate) * up (see swiglu_backward.wgsl).

// #import lib/lanes_vec4.wgsl
// #import lib/matmul_whole.wgsl
// #import lib/sigmoid.wgsl
// #import lib/tile.wgsl

struct Params {
  M: u32,
  N: u32,
  K: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<fourOfA>;
@group(0) @binding(2) var<storage, read> b: array<fourOfB>;
@group(0) @binding(3) var<storage, read_write> gate_up: array<fourOfOut>;
@group(0) @binding(4) var<storage, read_write> act: array<fourOfOut>;

// Rows row .. row + 3 are the tile's columns; what lies outside the output is left out.
fn store(row: u32, column: u32, slice: u32, tile: mat4x4f) {
  if (column >= params.N) {
    return;
  }
  let width = params.N / 4u;
  let place = column / 4u;
  let end = min(4u, params.M - min(row, params.M));
  for (var i = 0u; i < end; i++) {
    let at = (row + i) * 2u * width + place;
    let gate = wideOut(gate_up[at]);
    let up = wideOut(gate_up[at + width]);
    let upstream = tile[i];
    let s = sigmoids(gate);
    let silu = gate * s.plain;
    gate_up[at] = narrowOut(upstream * up * s.plain * (1.0 + gate * s.opposite));
    gate_up[at + width] = narrowOut(upstream * silu);
    act[(row + i) * width + place] = narrowOut(silu * up);
  }
}
