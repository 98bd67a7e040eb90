// As gelu_backward.wgsl with 16-byte accesses; I divides by 4. In place, with z = up[r, i] + bias[i], s = sigmoid(2 u):
//   up <- dact * (s + z * s * (1 - s) * 2 u'); act, which holds dact, <- z * s;   u = sqrt(2 / pi) * (z + 0.044715 z^3)
// up, act kept [R, I], bias f32 [I]. One invocation per four elements; nothing is accumulated.

// #import lib/lanes_vec4.wgsl
// #import lib/gelu_backward.wgsl
