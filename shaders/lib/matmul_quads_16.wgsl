// Four neighbouring invocations multiply a block of 32 x 32 together, 16 rows x 16 columns each: every one loads half of
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
  let column = ((id.x >> 2u) * 2u + right) * 16u;
  // Who loads which half: the tiles of the neighbour's half come second. Nobody returns early, for a quad works together.
  let ownRow = row + right * 8u;
  let otherRow = row + 8u - right * 8u;
  let ownColumn = column + lower * 8u;
  let otherColumn = column + 8u - lower * 8u;
  let rows0 = placeA(ownRow);
  let rows1 = placeA(ownRow + 4u);
  let columns0 = placeB(ownColumn);
  let columns1 = placeB(ownColumn + 4u);
  var sum00 = mat4x4f();
  var sum01 = mat4x4f();
  var sum02 = mat4x4f();
  var sum03 = mat4x4f();
  var sum10 = mat4x4f();
  var sum11 = mat4x4f();
  var sum12 = mat4x4f();
  var sum13 = mat4x4f();
  var sum20 = mat4x4f();
  var sum21 = mat4x4f();
  var sum22 = mat4x4f();
  var sum23 = mat4x4f();
  var sum30 = mat4x4f();
  var sum31 = mat4x4f();
  var sum32 = mat4x4f();
  var sum33 = mat4x4f();
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
    let b2 = ofSameColumns(b0);
    sum02 += b2 * a0;
    sum12 += b2 * a1;
    sum22 += b2 * a2;
    sum32 += b2 * a3;
    let b1 = loadB(columns1, k);
    sum01 += b1 * a0;
    sum11 += b1 * a1;
    sum21 += b1 * a2;
    sum31 += b1 * a3;
    let b3 = ofSameColumns(b1);
    sum03 += b3 * a0;
    sum13 += b3 * a1;
    sum23 += b3 * a2;
    sum33 += b3 * a3;
  }
  // A loop, because the store written out 16 times would take most of the compiler's time.
  var tiles = array<mat4x4f, 16>(
    sum00, sum01, sum02, sum03,
    sum10, sum11, sum12, sum13,
    sum20, sum21, sum22, sum23,
    sum30, sum31, sum32, sum33,
  );
  for (var t = 0u; t < 16u; t++) {
    let i = t / 4u;
    let j = t % 4u;
    let tileRow = select(ownRow, otherRow, i >= 2u) + (i % 2u) * 4u;
    let tileColumn = select(ownColumn, otherColumn, j >= 2u) + (j % 2u) * 4u;
    store(tileRow, tileColumn, group.z, tiles[t]);
  }
}
