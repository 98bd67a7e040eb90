// Four neighbouring invocations multiply a block of 32 x 64 together, 16 rows x 32 columns each: every one loads half of
// its rows and columns and takes the other half from its neighbour in the quad, which halves the loads. For adapters with
// subgroups whose loads are slow; written out because such adapters keep indexed registers in memory.

override columnGroups: u32 = 4u;
override rowGroups: u32 = 2u;

// The neighbour that computes the same rows, and the one that computes the same columns.
fn ofSameRows(tile: mat4x4f) -> mat4x4f {
  return mat4x4f(quadSwapX(tile[0]), quadSwapX(tile[1]), quadSwapX(tile[2]), quadSwapX(tile[3]));
}

fn ofSameColumns(tile: mat4x4f) -> mat4x4f {
  return mat4x4f(quadSwapY(tile[0]), quadSwapY(tile[1]), quadSwapY(tile[2]), quadSwapY(tile[3]));
}

@compute @workgroup_size(columnGroups, rowGroups)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(workgroup_id) group: vec3u) {
  let right = id.x & 1u;
  let lower = (id.x >> 1u) & 1u;
  let row = (id.y * 2u + lower) * 16u;
  let column = ((id.x >> 2u) * 2u + right) * 32u;
  // Who loads which half: the tiles of the neighbour's half come second. Nobody returns early, for a quad works together.
  let ownRow = row + right * 8u;
  let otherRow = row + 8u - right * 8u;
  let ownColumn = column + lower * 16u;
  let otherColumn = column + 16u - lower * 16u;
  let rows0 = placeA(ownRow);
  let rows1 = placeA(ownRow + 4u);
  let columns0 = placeB(ownColumn);
  let columns1 = placeB(ownColumn + 4u);
  let columns2 = placeB(ownColumn + 8u);
  let columns3 = placeB(ownColumn + 12u);
  var sum00 = mat4x4f();
  var sum01 = mat4x4f();
  var sum02 = mat4x4f();
  var sum03 = mat4x4f();
  var sum04 = mat4x4f();
  var sum05 = mat4x4f();
  var sum06 = mat4x4f();
  var sum07 = mat4x4f();
  var sum10 = mat4x4f();
  var sum11 = mat4x4f();
  var sum12 = mat4x4f();
  var sum13 = mat4x4f();
  var sum14 = mat4x4f();
  var sum15 = mat4x4f();
  var sum16 = mat4x4f();
  var sum17 = mat4x4f();
  var sum20 = mat4x4f();
  var sum21 = mat4x4f();
  var sum22 = mat4x4f();
  var sum23 = mat4x4f();
  var sum24 = mat4x4f();
  var sum25 = mat4x4f();
  var sum26 = mat4x4f();
  var sum27 = mat4x4f();
  var sum30 = mat4x4f();
  var sum31 = mat4x4f();
  var sum32 = mat4x4f();
  var sum33 = mat4x4f();
  var sum34 = mat4x4f();
  var sum35 = mat4x4f();
  var sum36 = mat4x4f();
  var sum37 = mat4x4f();
  let fours = foursOf(group.z);
  for (var k = fours.x; k < fours.y; k++) {
    let a0 = loadA(rows0, k);
    let a1 = loadA(rows1, k);
    let a2 = ofSameRows(a0);
    let a3 = ofSameRows(a1);
    let b0 = loadB(columns0, k);
    sum00 += b0 * a0;
    sum10 += b0 * a1;
    sum20 += b0 * a2;
    sum30 += b0 * a3;
    let b4 = ofSameColumns(b0);
    sum04 += b4 * a0;
    sum14 += b4 * a1;
    sum24 += b4 * a2;
    sum34 += b4 * a3;
    let b1 = loadB(columns1, k);
    sum01 += b1 * a0;
    sum11 += b1 * a1;
    sum21 += b1 * a2;
    sum31 += b1 * a3;
    let b5 = ofSameColumns(b1);
    sum05 += b5 * a0;
    sum15 += b5 * a1;
    sum25 += b5 * a2;
    sum35 += b5 * a3;
    let b2 = loadB(columns2, k);
    sum02 += b2 * a0;
    sum12 += b2 * a1;
    sum22 += b2 * a2;
    sum32 += b2 * a3;
    let b6 = ofSameColumns(b2);
    sum06 += b6 * a0;
    sum16 += b6 * a1;
    sum26 += b6 * a2;
    sum36 += b6 * a3;
    let b3 = loadB(columns3, k);
    sum03 += b3 * a0;
    sum13 += b3 * a1;
    sum23 += b3 * a2;
    sum33 += b3 * a3;
    let b7 = ofSameColumns(b3);
    sum07 += b7 * a0;
    sum17 += b7 * a1;
    sum27 += b7 * a2;
    sum37 += b7 * a3;
  }
  // A loop, because the store written out 32 times would take most of the compiler's time.
  var tiles = array<mat4x4f, 32>(
    sum00, sum01, sum02, sum03, sum04, sum05, sum06, sum07,
    sum10, sum11, sum12, sum13, sum14, sum15, sum16, sum17,
    sum20, sum21, sum22, sum23, sum24, sum25, sum26, sum27,
    sum30, sum31, sum32, sum33, sum34, sum35, sum36, sum37,
  );
  for (var t = 0u; t < 32u; t++) {
    let i = t / 8u;
    let j = t % 8u;
    let tileRow = select(ownRow, otherRow, i >= 2u) + (i % 2u) * 4u;
    let tileColumn = select(ownColumn, otherColumn, j >= 4u) + (j % 4u) * 4u;
    store(tileRow, tileColumn, group.z, tiles[t]);
  }
}
