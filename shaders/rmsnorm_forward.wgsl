// rstd[r] = 1 / sqrt(mean over c of x[r, c]^2 + eps); y[r, c] = x[r, c] * rstd[r] * gain[c]
// x, y kept [R, C], gain f32 [C], rstd f32 [R].
// One invocation per row: on adapters that run a workgroup serially a barrier tree is far slower. Accumulates in f32.

// #import lib/lanes_scalar.wgsl
// #import lib/rmsnorm_forward.wgsl
