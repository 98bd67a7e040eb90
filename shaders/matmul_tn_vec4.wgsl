// out[M,N] = a[K,M]ᵀ · b[K,N], plus residual[M,N] if epilogue = 1, plus the old out if epilogue = 2; all row-major f32.
// As matmul_tn.wgsl, with 16-byte loads: M and N are multiples of 4. One invocation computes 8 rows x 4 columns in
// registers. Sums run in k order in f32, so the bits equal the scalar kernel's on an adapter that does not fuse.

// #import lib/matmul_tile.wgsl

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
@group(0) @binding(3) var<storage, read> residual: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4f>;

const ROWS = 8u;

@compute @workgroup_size(columnGroups, rowGroups)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let M = params.M;
  let N = params.N;
  let N4 = N / 4u;
  let M4 = M / 4u;
  let row = id.y * ROWS;
  if (row >= M || id.x >= N4) {
    return;
  }
  // Eight rows of out are two vectors of a; a surplus second one reads the last valid vector.
  let low = row / 4u;
  let high = min(low + 1u, M4 - 1u);
  var sums: array<vec4f, ROWS>;
  for (var k = 0u; k < params.K; k++) {
    let b4 = b[k * N4 + id.x];
    let a0 = a[k * M4 + low];
    let a1 = a[k * M4 + high];
    sums[0] += a0.x * b4;
    sums[1] += a0.y * b4;
    sums[2] += a0.z * b4;
    sums[3] += a0.w * b4;
    sums[4] += a1.x * b4;
    sums[5] += a1.y * b4;
    sums[6] += a1.z * b4;
    sums[7] += a1.w * b4;
  }
  for (var i = 0u; i < ROWS; i++) {
    storeRow(row + i, id.x, sums[i]);
  }
}
