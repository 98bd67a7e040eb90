// The logistic function, for activations.

// exp only ever sees a non-positive number: an overflow to infinity is undefined in WGSL.
fn sigmoid(x: f32) -> f32 {
  let e = exp(-abs(x));
  return select(e, 1.0, x >= 0.0) / (1.0 + e);
}
