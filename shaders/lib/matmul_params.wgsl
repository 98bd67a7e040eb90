// out[M,N] = the product summed over K, plus residual[M,N] if epilogue = 1, plus the old out if epilogue = 2. With several
// slices, workgroups of slice z sum k from z * sliceK on, into out[z,M,N]; sliceK is a multiple of 4 or all of K.
struct Params {
  M: u32,
  N: u32,
  K: u32,
  epilogue: u32,
  sliceK: u32,
}

// The fours of k that a slice sums: first and end.
fn foursOf(slice: u32) -> vec2u {
  let first = slice * params.sliceK;
  return vec2u(first, min(first + params.sliceK, params.K) + 3u) / 4u;
}
