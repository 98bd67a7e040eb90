// Stores a 4 x 4 tile of a product into `out` with the epilogue that the parameters ask for; for kernels with the
// bindings `params`, `residual` and `out` of a matrix product, the latter two in vectors of four.

// #import lib/tile.wgsl

fn storeRow(row: u32, column: u32, sum: vec4f) {
  if (row >= params.M) {
    return;
  }
  let at = row * (params.N / 4u) + column;
  var value = sum;
  if (params.epilogue == 1u) {
    value += residual[at];
  } else if (params.epilogue == 2u) {
    value += out[at];
  }
  out[at] = value;
}

// Rows row .. row + 3 are the tile's columns, `column` counts vectors; what lies outside the output is left out.
fn store(row: u32, column: u32, tile: mat4x4f) {
  if (column >= params.N / 4u) {
    return;
  }
  storeRow(row, column, tile[0]);
  storeRow(row + 1u, column, tile[1]);
  storeRow(row + 2u, column, tile[2]);
  storeRow(row + 3u, column, tile[3]);
}
