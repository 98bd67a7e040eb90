// Turning back the gradients of four rotated rows, kept as the columns of a matrix; for kernels with a binding `angles`
// f32 [T, D/2, 2] in vectors of four.

// #import lib/rotary.wgsl

struct TilePairs {
  low: mat4x4f,
  high: mat4x4f,
}

fn turnRow(low: vec4f, high: vec4f, at: u32) -> Pairs {
  return turn(Pairs(low, high), angles[at], angles[at + 1u], -1.0);
}

// `at` is where each row's angles of these columns begin.
fn turnBack(low: mat4x4f, high: mat4x4f, at: vec4u) -> TilePairs {
  let r0 = turnRow(low[0], high[0], at.x);
  let r1 = turnRow(low[1], high[1], at.y);
  let r2 = turnRow(low[2], high[2], at.z);
  let r3 = turnRow(low[3], high[3], at.w);
  return TilePairs(mat4x4f(r0.low, r1.low, r2.low, r3.low), mat4x4f(r0.high, r1.high, r2.high, r3.high));
}
