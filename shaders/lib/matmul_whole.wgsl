// A product that sums all of K at once, in fours; K is a multiple of 4. matmul_params.wgsl is the twin that may cut K.
fn foursOf(slice: u32) -> vec2u {
  return vec2u(0u, params.K / 4u);
}
