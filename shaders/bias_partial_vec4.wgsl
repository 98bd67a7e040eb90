// As bias_partial.wgsl with 16-byte accesses; N divides by 4.
//   partial[b, n] = sum over the 16 rows r of block b of dy[r, n]
// dy kept [R, N], partial f32 [ceil(R / 16), N]. One invocation per block and four columns; accumulates in f32, in row order.

// #import lib/lanes_vec4.wgsl
// #import lib/bias_partial.wgsl
