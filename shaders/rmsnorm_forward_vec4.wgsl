// As rmsnorm_forward.wgsl with 16-byte accesses; C divides by 4. Four interleaved partial sums make a row's sum.
//   rstd[r] = 1 / sqrt(mean over c of x[r, c]^2 + eps); y[r, c] = x[r, c] * rstd[r] * gain[c]
// x, y kept [R, C], gain f32 [C], rstd f32 [R]. One invocation per row; accumulates in f32.

// #import lib/lanes_vec4.wgsl
// #import lib/rmsnorm_forward.wgsl
