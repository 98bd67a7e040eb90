// As layernorm_backward.wgsl with 16-byte accesses; C divides by 4. With h = (x - mean[r]) * rstd[r] and g = dy * gain[c]:
//   dx[r, c] = (residual ? dres[r, c] : 0) + rstd[r] * (g[r, c] - mean of g[r, :] - h[r, c] * mean over k of g[r, k] * h[r, k])
//   partial[b] = the sums over the 16 rows of block b of dy * h, then of dy; x[r, c] becomes h[r, c] * gain[c] + bias[c]
// dy f32, x, dres, dx kept [R, C]; affine f32 [2, C] = gain, bias; stats f32 [R, 2] = (mean, rstd); partial f32
// [ceil(R / 16), 2, C]; dres is read if residual = 1. One invocation per block of rows; accumulates in f32.

// #import lib/lanes_vec4.wgsl
// #import lib/layernorm_backward.wgsl
