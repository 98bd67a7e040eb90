// Turning pairs of elements by their position (RoFormer, arXiv 2104.09864), back for gradients; see rotary.wgsl.

// Elements i .. i + 3 of a head, and those D/2 further.
struct Pairs {
  low: vec4f,
  high: vec4f,
}

// `a` and `b` hold (cos, sin) of two angles each, `direction` is +1 or -1.
fn turn(pairs: Pairs, a: vec4f, b: vec4f, direction: f32) -> Pairs {
  let cosine = vec4f(a.xz, b.xz);
  let sine = vec4f(a.yw, b.yw) * direction;
  return Pairs(pairs.low * cosine - pairs.high * sine, pairs.high * cosine + pairs.low * sine);
}
