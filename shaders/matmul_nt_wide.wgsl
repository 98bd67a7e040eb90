// out[M,N] = a[M,K] · b[N,K]ᵀ, plus residual[M,N] if epilogue = 1, plus the old out if epilogue = 2; all row-major f32.
// As matmul_nt.wgsl where K and N are multiples of 4. One invocation computes 8 rows x 16 columns in
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

// Four rows of a, four k of each.
fn loadA(at: vec4u) -> mat4x4f {
  return mat4x4f(a[at.x], a[at.y], a[at.z], a[at.w]);
}

// Four k of four rows of b, turned so that a column holds one k.
fn loadB(at: vec4u) -> mat4x4f {
  return transpose(mat4x4f(b[at.x], b[at.y], b[at.z], b[at.w]));
}

@compute @workgroup_size(columnGroups, rowGroups)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let N4 = params.N / 4u;
  let K4 = params.K / 4u;
  let row = id.y * 8u;
  let column = id.x * 4u;
  if (row >= params.M || column >= N4) {
    return;
  }
  // Surplus rows and columns read the last valid ones; only the stores below leave them out.
  let low = min(row + FOUR, vec4u(params.M - 1u)) * K4;
  let high = min(row + 4u + FOUR, vec4u(params.M - 1u)) * K4;
  let last = vec4u(params.N - 1u);
  let c0 = min(column * 4u + FOUR, last) * K4;
  let c1 = min(column * 4u + 4u + FOUR, last) * K4;
  let c2 = min(column * 4u + 8u + FOUR, last) * K4;
  let c3 = min(column * 4u + 12u + FOUR, last) * K4;
  var sum00 = mat4x4f();
  var sum01 = mat4x4f();
  var sum02 = mat4x4f();
  var sum03 = mat4x4f();
  var sum10 = mat4x4f();
  var sum11 = mat4x4f();
  var sum12 = mat4x4f();
  var sum13 = mat4x4f();
  for (var k = 0u; k < K4; k++) {
    let a0 = loadA(low + k);
    let a1 = loadA(high + k);
    let b0 = loadB(c0 + k);
    sum00 += b0 * a0;
    sum10 += b0 * a1;
    let b1 = loadB(c1 + k);
    sum01 += b1 * a0;
    sum11 += b1 * a1;
    let b2 = loadB(c2 + k);
    sum02 += b2 * a0;
    sum12 += b2 * a1;
    let b3 = loadB(c3 + k);
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
