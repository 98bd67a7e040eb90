// As matmul_registers.wgsl with 8 rows and 16 columns, written out without an index that varies: for CPUs that emulate a
// GPU with scalar loads and keep indexed registers in memory. A GPU has too few registers for it.

override columnGroups: u32 = 4u;
override rowGroups: u32 = 2u;

@compute @workgroup_size(columnGroups, rowGroups)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(workgroup_id) group: vec3u) {
  let row = id.y * 8u;
  let column = id.x * 16u;
  if (row >= params.M || column >= params.N) {
    return;
  }
  let rows0 = placeA(row);
  let rows1 = placeA(row + 4u);
  let columns0 = placeB(column);
  let columns1 = placeB(column + 4u);
  let columns2 = placeB(column + 8u);
  let columns3 = placeB(column + 12u);
  var sum00 = mat4x4f();
  var sum01 = mat4x4f();
  var sum02 = mat4x4f();
  var sum03 = mat4x4f();
  var sum10 = mat4x4f();
  var sum11 = mat4x4f();
  var sum12 = mat4x4f();
  var sum13 = mat4x4f();
  let fours = foursOf(group.z);
  for (var k = fours.x; k < fours.y; k++) {
    let a0 = loadA(rows0, k);
    let a1 = loadA(rows1, k);
    let b0 = loadB(columns0, k);
    sum00 += b0 * a0;
    sum10 += b0 * a1;
    let b1 = loadB(columns1, k);
    sum01 += b1 * a0;
    sum11 += b1 * a1;
    let b2 = loadB(columns2, k);
    sum02 += b2 * a0;
    sum12 += b2 * a1;
    let b3 = loadB(columns3, k);
    sum03 += b3 * a0;
    sum13 += b3 * a1;
  }
  // A loop, because the store written out eight times would take most of the compiler's time.
  var tiles = array<mat4x4f, 8>(sum00, sum01, sum02, sum03, sum10, sum11, sum12, sum13);
  for (var t = 0u; t < 8u; t++) {
    store(row + t / 4u * 4u, column + t % 4u * 4u, group.z, tiles[t]);
  }
}
