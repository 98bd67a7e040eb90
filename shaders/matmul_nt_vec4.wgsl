// out[M,N] = a[M,K] · b[N,K]ᵀ, plus residual[M,N] if epilogue = 1, plus the old out if epilogue = 2; all row-major f32.
// As matmul_nt.wgsl, with 16-byte loads: K is a multiple of 4. One invocation computes 8 rows x 4 columns in
// registers. Sums run in k order in f32, so the bits equal the scalar kernel's on an adapter that does not fuse.

// #import lib/matmul_tile_scalar.wgsl

struct Params {
  M: u32,
  N: u32,
  K: u32,
  epilogue: u32,
}

override columnGroups: u32 = 8u;
override rowGroups: u32 = 4u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<vec4f>;
@group(0) @binding(2) var<storage, read> b: array<vec4f>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

const ROWS = 8u;

@compute @workgroup_size(columnGroups, rowGroups)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let M = params.M;
  let N = params.N;
  let K4 = params.K / 4u;
  let row = id.y * ROWS;
  let col = id.x * 4u;
  if (row >= M || col >= N) {
    return;
  }
  // Surplus rows and columns read the last valid one; only the stores below leave them out.
  var rows: array<u32, ROWS>;
  for (var i = 0u; i < ROWS; i++) {
    rows[i] = min(row + i, M - 1u) * K4;
  }
  let cols = min(col + FOUR, vec4u(N - 1u)) * K4;
  var sums: array<vec4f, ROWS>;
  for (var k = 0u; k < K4; k++) {
    let b4 = transpose(mat4x4f(b[cols.x + k], b[cols.y + k], b[cols.z + k], b[cols.w + k]));
    for (var i = 0u; i < ROWS; i++) {
      let a4 = a[rows[i] + k];
      sums[i] += a4.x * b4[0];
      sums[i] += a4.y * b4[1];
      sums[i] += a4.z * b4[2];
      sums[i] += a4.w * b4[3];
    }
  }
  for (var i = 0u; i < ROWS; i++) {
    storeRow(row + i, col, sums[i]);
  }
}
