// In place, with z = up[r, i] + bias[i]: up <- dact * gelu'(z), the gradient of both, and act, which holds dact, <- gelu(z),
// the forward's output, which the weight gradient of what follows multiplies. With s = (1 + tanh(u)) / 2 = sigmoid(2 u):
// gelu(z) = z * s, gelu'(z) = s + z * s * (1 - s) * 2 u', u = sqrt(2 / pi) * (z + 0.044715 z^3). up, act kept [R, I], bias f32 [I].
// One invocation per element; nothing is accumulated.

// #import lib/lanes_scalar.wgsl
// #import lib/gelu_backward.wgsl
