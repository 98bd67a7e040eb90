// Parameters, bindings and the store of a matrix product in vectors of four; a layout file (matmul_nn_vec4.wgsl and its
// like) adds the loads, a tile file the loop, an operands file (matmul_floats.wgsl and its like) how each tensor is stored.
// Everything is row-major; slices of K are stored one after the other.

// #import lib/matmul_params.wgsl
// #import lib/tile.wgsl

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<fourOfA>;
@group(0) @binding(2) var<storage, read> b: array<fourOfB>;
@group(0) @binding(3) var<storage, read> residual: array<fourOfOut>;
@group(0) @binding(4) var<storage, read_write> out: array<fourOfOut>;

// Which columns of the product a tile's four at `column` are.
fn columnsOf(column: u32) -> vec4u {
  return column + FOUR;
}

fn storeRow(row: u32, column: u32, slice: u32, sum: vec4f) {
  if (row >= params.M) {
    return;
  }
  let at = (slice * params.M + row) * (params.N / 4u) + column / 4u;
  var value = sum;
  if (params.epilogue == 1u) {
    value += wideOut(residual[at]);
  } else if (params.epilogue == 2u) {
    value += wideOut(out[at]);
  }
  out[at] = narrowOut(value);
}

// Rows row .. row + 3 are the tile's columns; what lies outside the output is left out.
fn store(row: u32, column: u32, slice: u32, tile: mat4x4f) {
  if (column >= params.N) {
    return;
  }
  for (var i = 0u; i < 4u; i++) {
    storeRow(row + i, column, slice, tile[i]);
  }
}
