// mean[0] = sum over r of values[r] / R
// values f32 [R], mean f32 [1]. One invocation, so the order is fixed; it sums blocks of rows first, so that a
// rounding error grows with R / 64 + 64 additions instead of R. Accumulates in f32.

struct Params {
  R: u32,
}

const ROWS = 64u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> values: array<f32>;
@group(0) @binding(2) var<storage, read_write> mean: array<f32>;

@compute @workgroup_size(1)
fn main() {
  var total = 0.0;
  for (var first = 0u; first < params.R; first += ROWS) {
    let end = min(first + ROWS, params.R);
    var part = 0.0;
    for (var r = first; r < end; r++) {
      part += values[r];
    }
    total += part;
  }
  mean[0] = total / f32(params.R);
}
