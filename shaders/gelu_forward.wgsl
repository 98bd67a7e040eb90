// out[r, i] = gelu(z), z = up[r, i] + bias[i], gelu(z) = z / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (z + 0.044715 z^3)
// (arXiv 1606.08415, section 2; GPT-2's "gelu_new"). up, out kept [R, I], bias f32 [I].
// One invocation per element; nothing is accumulated.

// #import lib/lanes_scalar.wgsl
// #import lib/gelu_forward.wgsl
