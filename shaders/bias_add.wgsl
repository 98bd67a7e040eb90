// x[r, n] += bias[n]. x kept [R, N], bias f32 [N].
// One invocation per element; nothing is accumulated.

// #import lib/lanes_scalar.wgsl
// #import lib/bias_add.wgsl
