// out[M,N] = a[K,M]ᵀ · b[K,N], plus residual[M,N] if epilogue = 1, plus the old out if epilogue = 2; all row-major f32, any M, N, K.
// Weight gradients: dW = dyᵀ · x. One invocation computes 8 rows x 4 columns in registers, without workgroup memory or
// barriers, which is quickest where a CPU emulates the GPU. Sums run in k order in f32.

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
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(columnGroups, rowGroups)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let M = params.M;
  let N = params.N;
  let K = params.K;
  let row = id.y * 8u;
  let col = id.x * 4u;
  if (row >= M || col >= N) {
    return;
  }
  // Surplus rows and columns read the last valid one; only the stores below leave them out.
  let low = min(row + FOUR, vec4u(M - 1u));
  let high = min(row + 4u + FOUR, vec4u(M - 1u));
  let cols = min(col + FOUR, vec4u(N - 1u));
  var sum0 = mat4x4f();
  var sum1 = mat4x4f();
  for (var k = 0u; k < K; k++) {
    let bk = vec4f(b[k * N + cols.x], b[k * N + cols.y], b[k * N + cols.z], b[k * N + cols.w]);
    sum0 += outer(bk, vec4f(a[k * M + low.x], a[k * M + low.y], a[k * M + low.z], a[k * M + low.w]));
    sum1 += outer(bk, vec4f(a[k * M + high.x], a[k * M + high.y], a[k * M + high.z], a[k * M + high.w]));
  }
  store(row, col, sum0);
  store(row + 4u, col, sum1);
}
