// With h[r, c] = (x[r, c] - mean[r]) * rstd[r] and g[r, c] = dy[r, c] * gain[c]:
//   dx[r, c] = (residual ? dres[r, c] : 0) + rstd[r] * (g[r, c] - mean of g[r, :] - h[r, c] * mean over k of g[r, k] * h[r, k])
//   partial[b] = the sums over the 16 rows r of block b of dy[r, c] * h[r, c], then of dy[r, c]   (rmsnorm_gain_grad adds the blocks)
//   x[r, c] becomes h[r, c] * gain[c] + bias[c], the norm's output, which the weight gradient of what follows multiplies
// dy f32, x, dres, dx kept [R, C]; affine f32 [2, C] = gain, bias; stats f32 [R, 2] = (mean, rstd); partial f32
// [ceil(R / 16), 2, C]. With residual = 0, dres is not read: bind any read-only buffer there (dy will do).
// One invocation per block of rows; accumulates in f32.

// #import lib/lanes_scalar.wgsl
// #import lib/layernorm_backward.wgsl
