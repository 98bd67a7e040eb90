// partial[b, n] = sum over the 16 rows r of block b of dy[r, n], the first pass of a bias' gradient (rmsnorm_gain_grad adds
// the blocks). dy kept [R, N], partial f32 [ceil(R / 16), N].
// One invocation per block and column, so that neighbours read neighbouring addresses; accumulates in f32, in row order.

// #import lib/lanes_scalar.wgsl
// #import lib/bias_partial.wgsl
