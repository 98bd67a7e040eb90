// Blocks of a matrix product staged in workgroup memory, 16 k at a time, and multiplied from there by 256 invocations:
// discrete GPUs. The member's prelude gives ROWS4 and COLUMNS4, the fours of rows and columns that one invocation sums
// (ROWS4 + COLUMNS4 <= 4, which also keeps to 16 KiB); a layout file gives the loads. Sums run in f32, k in order.

const SIDE = 16u;
const STEP_K4 = 4u;
const BLOCK_ROWS4 = SIDE * ROWS4;
const BLOCK_COLUMNS4 = SIDE * COLUMNS4;

// [k][row or column] in fours of k: what an invocation's neighbours in x read lies side by side.
var<workgroup> sharedA: array<vec4f, 4u * STEP_K4 * BLOCK_ROWS4>;
var<workgroup> sharedB: array<vec4f, 4u * STEP_K4 * BLOCK_COLUMNS4>;

// Which 4 x 4 piece of a block an invocation stages: its place along the block and its four of k.
fn pieceOf(index: u32, width: u32, alongK: bool) -> vec2u {
  return select(vec2u(index % width, index / width), vec2u(index / STEP_K4, index % STEP_K4), alongK);
}

@compute @workgroup_size(SIDE, SIDE)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(local_invocation_id) local: vec3u,
  @builtin(local_invocation_index) index: u32,
) {
  let firstRow = group.y * BLOCK_ROWS4 * 4u;
  let firstColumn = group.x * BLOCK_COLUMNS4 * 4u;
  let stagesA = index < BLOCK_ROWS4 * STEP_K4;
  let stagesB = !stagesA && index < (BLOCK_ROWS4 + BLOCK_COLUMNS4) * STEP_K4;
  let pieceA = pieceOf(index, BLOCK_ROWS4, A_ALONG_K);
  let pieceB = pieceOf(index - BLOCK_ROWS4 * STEP_K4, BLOCK_COLUMNS4, B_ALONG_K);
  let fromA = placeA(firstRow + 4u * pieceA.x);
  let fromB = placeB(firstColumn + 4u * pieceB.x);
  let fours = foursOf(group.z);
  var sums: array<mat4x4f, ROWS4 * COLUMNS4>;
  for (var first = fours.x; first < fours.y; first += STEP_K4) {
    if (stagesA) {
      var piece = mat4x4f();
      if (first + pieceA.y < fours.y) {
        piece = loadA(fromA, first + pieceA.y);
      }
      for (var i = 0u; i < 4u; i++) {
        sharedA[(4u * pieceA.y + i) * BLOCK_ROWS4 + pieceA.x] = piece[i];
      }
    } else if (stagesB) {
      var piece = mat4x4f();
      if (first + pieceB.y < fours.y) {
        piece = loadB(fromB, first + pieceB.y);
      }
      for (var i = 0u; i < 4u; i++) {
        sharedB[(4u * pieceB.y + i) * BLOCK_COLUMNS4 + pieceB.x] = piece[i];
      }
    }
    workgroupBarrier();
    for (var k = 0u; k < STEP_K4; k++) {
      var tilesA: array<mat4x4f, ROWS4>;
      for (var i = 0u; i < ROWS4; i++) {
        let at = 4u * k * BLOCK_ROWS4 + i * SIDE + local.y;
        tilesA[i] = mat4x4f(
          sharedA[at],
          sharedA[at + BLOCK_ROWS4],
          sharedA[at + 2u * BLOCK_ROWS4],
          sharedA[at + 3u * BLOCK_ROWS4],
        );
      }
      for (var j = 0u; j < COLUMNS4; j++) {
        let at = 4u * k * BLOCK_COLUMNS4 + j * SIDE + local.x;
        let tileB = mat4x4f(
          sharedB[at],
          sharedB[at + BLOCK_COLUMNS4],
          sharedB[at + 2u * BLOCK_COLUMNS4],
          sharedB[at + 3u * BLOCK_COLUMNS4],
        );
        for (var i = 0u; i < ROWS4; i++) {
          sums[i * COLUMNS4 + j] += tileB * tilesA[i];
        }
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < ROWS4; i++) {
    for (var j = 0u; j < COLUMNS4; j++) {
      let row = firstRow + 4u * (i * SIDE + local.y);
      store(row, firstColumn + 4u * (j * SIDE + local.x), group.z, sums[i * COLUMNS4 + j]);
    }
  }
}
