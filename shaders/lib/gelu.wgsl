// GELU in the tanh approximation, by the logistic function: (1 + tanh(u)) / 2 = sigmoid(2 u), which no adapter overflows.

// #import lib/sigmoid.wgsl

// 2 * sqrt(2 / pi), and the cubic term's weight.
const SLOPE = 1.5957691216057308;
const CUBIC = 0.044715;

// 2 u
fn geluArgument(z: lanes) -> lanes {
  return SLOPE * (z + CUBIC * z * z * z);
}

// The derivative of 2 u.
fn geluArgumentSlope(z: lanes) -> lanes {
  return SLOPE * (1.0 + 3.0 * CUBIC * z * z);
}
