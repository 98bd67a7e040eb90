// The logistic function of `lanes`, for activations; the importer of a lanes file chooses how many those are.

// exp only ever sees a non-positive number: an overflow to infinity is undefined in WGSL.
fn sigmoid(x: lanes) -> lanes {
  let e = exp(-abs(x));
  return select(e, lanes(1.0), x >= lanes()) / (1.0 + e);
}
