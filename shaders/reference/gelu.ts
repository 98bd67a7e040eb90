// Double-precision twin of GELU in the tanh approximation that GPT-2 was trained with (Hendrycks and Gimpel 2016,
// arXiv:1606.08415, section 2): gelu(z) = z / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (z + 0.044715 z^3). Elementwise.

const SLOPE = Math.sqrt(2 / Math.PI);
const CUBIC = 0.044715;

export function geluForward(x: Float64Array): Float64Array {
  return x.map((z) => 0.5 * z * (1 + Math.tanh(SLOPE * (z + CUBIC * z * z * z))));
}

/** dX = dOut * ((1 + t) / 2 + z / 2 * (1 - t^2) * u'(z)), t = tanh(u), u' = sqrt(2 / pi) * (1 + 3 * 0.044715 z^2). */
export function geluBackward(x: Float64Array, dOut: Float64Array): Float64Array {
  return x.map((z, i) => {
    const t = Math.tanh(SLOPE * (z + CUBIC * z * z * z));
    return dOut[i]! * (0.5 * (1 + t) + 0.5 * z * (1 - t * t) * SLOPE * (1 + 3 * CUBIC * z * z));
  });
}
