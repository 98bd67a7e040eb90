// As matmul_vec4.wgsl for any M, N and K: single floats, and zeros for what lies beyond the end of K.

// #import lib/matmul_params.wgsl
// #import lib/tile.wgsl

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// Four neighbours of one row of a or b whose first index is `at`, k counting along the row.
fn alongA(at: u32, k: vec4u) -> vec4f {
  let i = at + min(k, vec4u(params.K - 1u));
  return select(vec4f(), vec4f(a[i.x], a[i.y], a[i.z], a[i.w]), k < vec4u(params.K));
}

fn alongB(at: u32, k: vec4u) -> vec4f {
  let i = at + min(k, vec4u(params.K - 1u));
  return select(vec4f(), vec4f(b[i.x], b[i.y], b[i.z], b[i.w]), k < vec4u(params.K));
}

// Four places of row k of a or b; a row beyond the end is zero.
fn acrossA(at: vec4u, k: u32) -> vec4f {
  let i = min(k, params.K - 1u) * params.M + at;
  return select(vec4f(), vec4f(a[i.x], a[i.y], a[i.z], a[i.w]), k < params.K);
}

fn acrossB(at: vec4u, k: u32) -> vec4f {
  let i = min(k, params.K - 1u) * params.N + at;
  return select(vec4f(), vec4f(b[i.x], b[i.y], b[i.z], b[i.w]), k < params.K);
}

fn storeRow(row: u32, column: u32, slice: u32, sum: vec4f) {
  if (row >= params.M) {
    return;
  }
  let first = (slice * params.M + row) * params.N;
  let end = min(4u, params.N - column);
  for (var j = 0u; j < end; j++) {
    let at = first + column + j;
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
fn store(row: u32, column: u32, slice: u32, tile: mat4x4f) {
  if (column >= params.N) {
    return;
  }
  for (var i = 0u; i < 4u; i++) {
    storeRow(row + i, column, slice, tile[i]);
  }
}
