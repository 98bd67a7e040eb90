// Tiles of 32 rows in workgroup memory for attention on a GPU (FlashAttention, arXiv 2205.14135), used by workgroups of
// 8 x 8 invocations. Invocation (x, y) has rows y + 8 i of the left tile against rows x + 8 j of the right one, i, j < 4,
// and four columns of a product. A head is cut into chunks of 32 columns, 16 from its lower half and the 16 that rotate
// with them; heads divide by 8. Rows lie nine vectors apart, so that neighbours use different banks.

const TILE = 32u;
const PITCH = 9u;
// Most chunks of a head: D <= 128.
const CHUNKS_MAX = 4u;
const STEP = vec4u(0u, 8u, 16u, 24u);

var<workgroup> left: array<vec4f, 288>;
var<workgroup> right: array<vec4f, 288>;
// For each row of the right tile, what it weighs for the left rows of every y.
var<workgroup> weights: array<vec4f, 288>;

struct Column {
  // In vectors of four from the head's start.
  at: u32,
  inside: bool,
}

// The columns that lane 0 .. 7 has of a chunk; half is D / 8.
fn columnOf(chunk: u32, lane: u32, half: u32) -> Column {
  let low = chunk * 4u + lane % 4u;
  let inside = low < half;
  return Column(select(0u, low, inside) + select(0u, half, lane >= 4u), inside);
}

// `count`, as a constant if the head's width is one. A driver that compiles for the CPU would else unroll the loops below
// for half a minute: it cannot know that `opaque` does not overflow.
fn bound(count: u32, constant: bool, opaque: u32) -> u32 {
  return select(min(count, count + opaque), count, constant);
}

// Column i of the result: the products of left row y + 8 i with the right rows x + 8 j, over `width` = 8 vectors.
fn tileScores(local: vec3u, width: u32) -> mat4x4f {
  let a = (local.y + STEP) * PITCH;
  let b = (local.x + STEP) * PITCH;
  var sum = mat4x4f();
  for (var d = 0u; d < width; d++) {
    let b0 = right[b.x + d];
    let b1 = right[b.y + d];
    let b2 = right[b.z + d];
    let b3 = right[b.w + d];
    let a0 = left[a.x + d];
    let a1 = left[a.y + d];
    let a2 = left[a.z + d];
    let a3 = left[a.w + d];
    sum[0] += vec4f(dot(a0, b0), dot(a0, b1), dot(a0, b2), dot(a0, b3));
    sum[1] += vec4f(dot(a1, b0), dot(a1, b1), dot(a1, b2), dot(a1, b3));
    sum[2] += vec4f(dot(a2, b0), dot(a2, b1), dot(a2, b2), dot(a2, b3));
    sum[3] += vec4f(dot(a3, b0), dot(a3, b1), dot(a3, b2), dot(a3, b3));
  }
  return sum;
}

// Column i of `tile` weighs the right rows x + 8 j for the left row y + 8 i.
fn keepWeights(local: vec3u, tile: mat4x4f) {
  let turned = transpose(tile);
  let at = (local.x + STEP) * PITCH + local.y;
  weights[at.x] = turned[0];
  weights[at.y] = turned[1];
  weights[at.z] = turned[2];
  weights[at.w] = turned[3];
}

// Column i of the result: for left row y + 8 i, the weighted sum of this lane's columns of all `rows` = 32 right rows.
fn tileProduct(local: vec3u, rows: u32) -> mat4x4f {
  var sum = mat4x4f();
  for (var b = 0u; b < rows; b++) {
    let weight = weights[b * PITCH + local.y];
    let value = right[b * PITCH + local.x];
    sum[0] += weight.x * value;
    sum[1] += weight.y * value;
    sum[2] += weight.z * value;
    sum[3] += weight.w * value;
  }
  return sum;
}
