// As rmsnorm_forward.wgsl for GPUs, with neighbouring invocations at neighbouring columns:
//   rstd[r] = 1 / sqrt(mean over c of x[r, c]^2 + eps); y[r, c] = x[r, c] * rstd[r] * gain[c]
// x, y kept [R, C], gain f32 [C], rstd f32 [R].
// One workgroup per 16 rows: 16 invocations sum a row's squares, then all take columns. Accumulates in f32.

// #import lib/lanes_scalar.wgsl
// #import lib/rmsnorm_forward_group.wgsl
