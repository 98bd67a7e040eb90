// The store of a product whose columns are packed heads: out[M,N] = a · bᵀ, of which the first `turned` columns, queries and
// keys, are rotated by their position before they are stored (see rotary.wgsl); row r has position r mod T.
// Instead of four neighbours a tile's four columns are i, i + 1 and those D/2 further, which rotate together: the
// invocation that has the sums has all that a rotation takes. angles f32 [T, D/2, 2]; D is a multiple of 4.

// #import lib/matmul_whole.wgsl
// #import lib/tile.wgsl

struct Params {
  M: u32,
  N: u32,
  K: u32,
  T: u32,
  D: u32,
  turned: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<fourOfA>;
@group(0) @binding(2) var<storage, read> b: array<fourOfB>;
@group(0) @binding(3) var<storage, read> angles: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> out: array<twoOfOut>;

// The first of the four columns that stand at `column`: a head's elements in the order 0, 1, D/2, D/2 + 1, 2, 3, ...
fn firstColumn(column: u32) -> u32 {
  let element = column % params.D;
  return column - element + element / 2u;
}

fn columnsOf(column: u32) -> vec4u {
  let first = firstColumn(column);
  let second = first + params.D / 2u;
  return vec4u(first, first + 1u, second, second + 1u);
}

// `angle` holds (cos, sin) of two angles.
fn turnTwos(v: vec4f, angle: vec4f) -> vec4f {
  let low = v.xy * angle.xz - v.zw * angle.yw;
  let high = v.zw * angle.xz + v.xy * angle.yw;
  return vec4f(low, high);
}

// Rows row .. row + 3 are the tile's columns; what lies outside the output is left out.
fn store(row: u32, column: u32, slice: u32, tile: mat4x4f) {
  if (column >= params.N) {
    return;
  }
  let first = firstColumn(column);
  let half = params.D / 4u;
  let angle = first % params.D / 2u;
  let end = min(4u, params.M - min(row, params.M));
  for (var i = 0u; i < end; i++) {
    var value = tile[i];
    if (column < params.turned) {
      value = turnTwos(value, angles[(row + i) % params.T * half + angle]);
    }
    let at = ((row + i) * params.N + first) / 2u;
    out[at] = narrowTwo(value.xy);
    out[at + half] = narrowTwo(value.zw);
  }
}
