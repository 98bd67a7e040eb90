// As gelu_forward.wgsl with 16-byte accesses; I divides by 4.
//   out[r, i] = gelu(z), z = up[r, i] + bias[i], gelu(z) = z / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (z + 0.044715 z^3)
// up, out kept [R, I], bias f32 [I]. One invocation per four elements; nothing is accumulated.

// #import lib/lanes_vec4.wgsl
// #import lib/gelu_forward.wgsl
