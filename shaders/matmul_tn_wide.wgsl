// out[M,N] = a[K,M]ᵀ · b[K,N], plus residual[M,N] if epilogue = 1, plus the old out if epilogue = 2; all row-major f32.
// As matmul_tn.wgsl where K, M and N are multiples of 4. One invocation computes 8 rows x 16 columns in
// registers, as 4 x 4 matrices without an index that varies, for CPUs that emulate a GPU with scalar loads; a GPU has too
// few registers for it. Sums in f32, four k at a time: not always the bits of the other kernels.

// #import lib/matmul_tile.wgsl

struct Params {
  M: u32,
  N: u32,
  K: u32,
  epilogue: u32,
}

override columnGroups: u32 = 4u;
override rowGroups: u32 = 2u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<vec4f>;
@group(0) @binding(2) var<storage, read> b: array<vec4f>;
@group(0) @binding(3) var<storage, read> residual: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4f>;

// Four k of four columns of a, turned so that a column holds one row of out.
fn loadA(at: u32) -> mat4x4f {
  let M4 = params.M / 4u;
  return transpose(mat4x4f(a[at], a[at + M4], a[at + 2u * M4], a[at + 3u * M4]));
}

// Four k of b, four columns of each.
fn loadB(at: u32) -> mat4x4f {
  let N4 = params.N / 4u;
  return mat4x4f(b[at], b[at + N4], b[at + 2u * N4], b[at + 3u * N4]);
}

@compute @workgroup_size(columnGroups, rowGroups)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let M4 = params.M / 4u;
  let N4 = params.N / 4u;
  let row = id.y * 8u;
  let column = id.x * 4u;
  if (row >= params.M || column >= N4) {
    return;
  }
  // Surplus rows and columns read the last valid ones; only the stores below leave them out.
  let low = row / 4u;
  let high = min(low + 1u, M4 - 1u);
  let columns = min(column + FOUR, vec4u(N4 - 1u));
  var sum00 = mat4x4f();
  var sum01 = mat4x4f();
  var sum02 = mat4x4f();
  var sum03 = mat4x4f();
  var sum10 = mat4x4f();
  var sum11 = mat4x4f();
  var sum12 = mat4x4f();
  var sum13 = mat4x4f();
  for (var k = 0u; k < params.K; k += 4u) {
    let a0 = loadA(k * M4 + low);
    let a1 = loadA(k * M4 + high);
    let at = columns + k * N4;
    let b0 = loadB(at.x);
    sum00 += b0 * a0;
    sum10 += b0 * a1;
    let b1 = loadB(at.y);
    sum01 += b1 * a0;
    sum11 += b1 * a1;
    let b2 = loadB(at.z);
    sum02 += b2 * a0;
    sum12 += b2 * a1;
    let b3 = loadB(at.w);
    sum03 += b3 * a0;
    sum13 += b3 * a1;
  }
  store(row, column, sum00);
  store(row, column + 1u, sum01);
  store(row, column + 2u, sum02);
  store(row, column + 3u, sum03);
  store(row + 4u, column, sum10);
  store(row + 4u, column + 1u, sum11);
  store(row + 4u, column + 2u, sum12);
  store(row + 4u, column + 3u, sum13);
}
