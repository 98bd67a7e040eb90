// As layernorm_forward.wgsl for GPUs, with neighbouring invocations at neighbouring columns:
//   rstd[r] = 1 / sqrt(mean over c of (x[r, c] - mean[r])^2 + eps); y[r, c] = (x[r, c] - mean[r]) * rstd[r] * gain[c] + bias[c]
// x, y kept [R, C]; affine f32 [2, C] = gain, bias; stats f32 [R, 2] = (mean, rstd).
// One workgroup per 16 rows: 16 invocations sum a row, then its squares, then all take columns. Accumulates in f32.

// #import lib/lanes_scalar.wgsl
// #import lib/layernorm_forward_group.wgsl
