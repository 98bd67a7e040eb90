// One tile of a matrix product in each invocation's registers, without workgroup memory or barriers: integrated GPUs, and
// CPUs that emulate a GPU and unroll loops. The member's prelude gives the constants ROWS4 and COLUMNS4, the tile's size
// in fours; a layout file gives the loads. Sums run in f32, k in fours and in order.

override columnGroups: u32 = 8u;
override rowGroups: u32 = 4u;

@compute @workgroup_size(columnGroups, rowGroups)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(workgroup_id) group: vec3u) {
  let row = id.y * 4u * ROWS4;
  let column = id.x * 4u * COLUMNS4;
  if (row >= params.M || column >= params.N) {
    return;
  }
  var placesA: array<vec4u, ROWS4>;
  for (var i = 0u; i < ROWS4; i++) {
    placesA[i] = placeA(row + 4u * i);
  }
  var placesB: array<vec4u, COLUMNS4>;
  for (var j = 0u; j < COLUMNS4; j++) {
    placesB[j] = placeB(column + 4u * j);
  }
  var sums: array<mat4x4f, ROWS4 * COLUMNS4>;
  let fours = foursOf(group.z);
  for (var k = fours.x; k < fours.y; k++) {
    var tileA: array<mat4x4f, ROWS4>;
    for (var i = 0u; i < ROWS4; i++) {
      tileA[i] = loadA(placesA[i], k);
    }
    for (var j = 0u; j < COLUMNS4; j++) {
      let tileB = loadB(placesB[j], k);
      for (var i = 0u; i < ROWS4; i++) {
        sums[i * COLUMNS4 + j] += tileB * tileA[i];
      }
    }
  }
  for (var i = 0u; i < ROWS4; i++) {
    for (var j = 0u; j < COLUMNS4; j++) {
      store(row + 4u * i, column + 4u * j, group.z, sums[i * COLUMNS4 + j]);
    }
  }
}
