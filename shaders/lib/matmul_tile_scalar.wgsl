// As matmul_tile.wgsl for kernels whose `residual` and `out` are scalars: any N, `column` counts scalars.

// #import lib/tile.wgsl

fn storeRow(row: u32, column: u32, sum: vec4f) {
  if (row >= params.M) {
    return;
  }
  let end = min(4u, params.N - column);
  for (var j = 0u; j < end; j++) {
    let at = row * params.N + column + j;
    var value = sum[j];
    if (params.epilogue == 1u) {
      value += residual[at];
    } else if (params.epilogue == 2u) {
      value += out[at];
    }
    out[at] = value;
  }
}

// Rows row .. row + 3 are the tile's columns; what lies outside the output is left out.
fn store(row: u32, column: u32, tile: mat4x4f) {
  storeRow(row, column, tile[0]);
  storeRow(row + 1u, column, tile[1]);
  storeRow(row + 2u, column, tile[2]);
  storeRow(row + 3u, column, tile[3]);
}
