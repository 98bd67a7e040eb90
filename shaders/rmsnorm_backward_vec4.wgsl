// As rmsnorm_backward.wgsl with 16-byte accesses; C divides by 4. With h = x * rstd[r] and g = dy * gain[c]:
//   dx[r, c] = (residual ? dres[r, c] : 0) + rstd[r] * (g[r, c] - h[r, c] * mean over k of g[r, k] * h[r, k])
//   partial[b, c] = sum over the 16 rows r of block b of dy[r, c] * h[r, c];  x[r, c] becomes h[r, c] * gain[c]
// dy f32, x, dres, dx kept [R, C], gain f32 [C], rstd f32 [R], partial f32 [ceil(R / 16), C]; dres is read if residual = 1.
// One invocation per block of rows; accumulates in f32.

// #import lib/lanes_vec4.wgsl
// #import lib/rmsnorm_backward.wgsl
