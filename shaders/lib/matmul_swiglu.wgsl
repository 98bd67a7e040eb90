// The store of a product whose columns are gate, then up: gate_up[M,N] = a · bᵀ, and of the same sums
// act[M,N/2] = silu(gate) * up (see swiglu_forward.wgsl).
// Instead of four neighbours a tile's four columns are i, i + 1 of the gate and the same of up, so that the invocation that
// has the sums has all that the activation takes. N is a multiple of 4.

// #import lib/lanes_vec2.wgsl
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
@group(0) @binding(3) var<storage, read_write> gate_up: array<twoOfOut>;
@group(0) @binding(4) var<storage, read_write> act: array<twoOfOut>;

fn columnsOf(column: u32) -> vec4u {
  let gate = column / 2u;
  let up = gate + params.N / 2u;
  return vec4u(gate, gate + 1u, up, up + 1u);
}

// Rows row .. row + 3 are the tile's columns; what lies outside the output is left out.
fn store(row: u32, column: u32, slice: u32, tile: mat4x4f) {
  if (column >= params.N) {
    return;
  }
  let width = params.N / 4u;
  let place = column / 4u;
  let end = min(4u, params.M - min(row, params.M));
  for (var i = 0u; i < end; i++) {
    let gate = tile[i].xy;
    let up = tile[i].zw;
    let at = (row + i) * 2u * width + place;
    gate_up[at] = narrowTwo(gate);
    gate_up[at + width] = narrowTwo(up);
    act[(row + i) * width + place] = narrowTwo(gate * sigmoid(gate) * up);
  }
}
