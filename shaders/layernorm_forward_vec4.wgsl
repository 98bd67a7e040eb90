// As layernorm_forward.wgsl with 16-byte accesses; C divides by 4. Four interleaved partial sums make a row's sum.
//   rstd[r] = 1 / sqrt(mean over c of (x[r, c] - mean[r])^2 + eps); y[r, c] = (x[r, c] - mean[r]) * rstd[r] * gain[c] + bias[c]
// x, y kept [R, C]; affine f32 [2, C] = gain, bias; stats f32 [R, 2] = (mean, rstd). One invocation per row; accumulates in f32.

// #import lib/lanes_vec4.wgsl
// #import lib/layernorm_forward.wgsl
