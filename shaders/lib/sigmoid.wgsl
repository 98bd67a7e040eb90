// The logistic function of `lanes`, for activations; the importer of a lanes file chooses how many those are.

// exp only ever sees a non-positive number: an overflow to infinity is undefined in WGSL.
fn sigmoid(x: lanes) -> lanes {
  let e = exp(-abs(x));
  return select(e, lanes(1.0), x >= lanes()) / (1.0 + e);
}

struct Sigmoids {
  plain: lanes,
  // sigmoid(-x): 1 - sigmoid(x) without the cancellation for a large positive x.
  opposite: lanes,
}

// sigmoid(x) and sigmoid(-x), of one exponential.
fn sigmoids(x: lanes) -> Sigmoids {
  let e = exp(-abs(x));
  let positive = x >= lanes();
  let whole = 1.0 + e;
  return Sigmoids(select(e, lanes(1.0), positive) / whole, select(lanes(1.0), e, positive) / whole);
}
