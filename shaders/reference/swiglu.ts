// Double-precision twin of the SwiGLU gate (Shazeer 2020, arXiv:2002.05202): silu(gate) * up, silu(z) = z / (1 + e^-z).
// A packed row is gate first, then up: gateUp is [R, 2 I]. Legend: R rows, I = n_inner.

/** act[r,i] = silu(gateUp[r,i]) * gateUp[r,I+i]; result [R, I]. */
export function swigluForward(gateUp: Float64Array, { I }: { I: number }): Float64Array {
  const R = gateUp.length / (2 * I);
  const act = new Float64Array(R * I);
  for (let r = 0; r < R; r++) {
    for (let i = 0; i < I; i++) {
      const gate = gateUp[r * 2 * I + i]!, up = gateUp[r * 2 * I + I + i]!;
      act[r * I + i] = gate / (1 + Math.exp(-gate)) * up;
    }
  }
  return act;
}

/** Gradient of the packed input, [R, 2 I], from dAct [R, I]; silu'(z) = s (1 + z (1 - s)) with s = sigmoid(z). */
export function swigluBackward(gateUp: Float64Array, dAct: Float64Array, { I }: { I: number }): Float64Array {
  const R = dAct.length / I;
  const dGateUp = new Float64Array(R * 2 * I);
  for (let r = 0; r < R; r++) {
    for (let i = 0; i < I; i++) {
      const at = r * 2 * I + i, grad = dAct[r * I + i]!;
      const gate = gateUp[at]!, up = gateUp[at + I]!;
      const s = 1 / (1 + Math.exp(-gate));
      dGateUp[at] = grad * up * s * (1 + gate * (1 - s));
      dGateUp[at + I] = grad * gate * s;
    }
  }
  return dGateUp;
}
