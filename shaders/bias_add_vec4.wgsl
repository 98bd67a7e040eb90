// As bias_add.wgsl with 16-byte accesses; N divides by 4: x[r, n] += bias[n]. x kept [R, N], bias f32 [N].
// One invocation per four elements; nothing is accumulated.

// #import lib/lanes_vec4.wgsl
// #import lib/bias_add.wgsl
