// out[r, i] = silu(gate[r, i]) * up[r, i], silu(g) = g / (1 + exp(-g))   (GLU variants, arXiv 2002.05202)
// gate_up kept [R, 2 I], the gate in the first half of each row; out kept [R, I].
// One invocation per element; nothing is accumulated.

// #import lib/lanes_scalar.wgsl
// #import lib/swiglu_forward.wgsl
