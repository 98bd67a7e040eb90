// mean[r] over x[r, :]; rstd[r] = 1 / sqrt(mean over c of (x[r, c] - mean[r])^2 + eps)   (arXiv 1607.06450)
// y[r, c] = (x[r, c] - mean[r]) * rstd[r] * gain[c] + bias[c]
// x, y kept [R, C]; affine f32 [2, C], the gain and below it the bias; stats f32 [R, 2] = (mean, rstd).
// One invocation per row: on adapters that run a workgroup serially a barrier tree is far slower. Accumulates in f32.

// #import lib/lanes_scalar.wgsl
// #import lib/layernorm_forward.wgsl
