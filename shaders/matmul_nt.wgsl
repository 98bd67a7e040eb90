// out[M,N] = a[M,K] · b[N,K]ᵀ, plus residual[M,N] if epilogue = 1, plus the old out if epilogue = 2; all row-major f32, any M, N, K.
// Forward: y = x · Wᵀ, with weights stored [out, in]. One invocation computes 8 rows x 4 columns in registers, without workgroup memory or
// barriers, which is quickest where a CPU emulates the GPU. Sums run in k order in f32.
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

const ROWS = 8u;

@compute @workgroup_size(columnGroups, rowGroups)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let M = params.M;
  let N = params.N;
  let K = params.K;
  let row = id.y * ROWS;
  let col = id.x * 4u;
  if (row >= M || col >= N) {
    return;
  }
  // Surplus rows and columns read the last valid one; only the stores below leave them out.
  var rows: array<u32, ROWS>;
  for (var i = 0u; i < ROWS; i++) {
    rows[i] = min(row + i, M - 1u);
  }
  let cols = min(vec4u(col, col + 1u, col + 2u, col + 3u), vec4u(N - 1u));
  var sums: array<vec4f, ROWS>;
  for (var k = 0u; k < K; k++) {
    let bk = vec4f(b[cols.x * K + k], b[cols.y * K + k], b[cols.z * K + k], b[cols.w * K + k]);
    for (var i = 0u; i < ROWS; i++) {
      sums[i] += a[rows[i] * K + k] * bk;
    }
  }
  let rowEnd = min(ROWS, M - row);
  let colEnd = min(4u, N - col);
  for (var i = 0u; i < rowEnd; i++) {
    for (var j = 0u; j < colEnd; j++) {
      let at = (row + i) * N + col + j;
      var value = sums[i][j];
      if (params.epilogue == 1u) {
        value += residual[at];
      } else if (params.epilogue == 2u) {
        value += out[at];
      }
      out[at] = value;
    }
  }
}
