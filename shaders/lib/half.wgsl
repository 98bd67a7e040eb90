// Reading halves with exact arithmetic only, because adapters unpack subnormals differently.

// Exact value of a finite, positive half.
fn fromHalf(half: u32) -> f32 {
  let normal = bitcast<f32>((half << 13u) + (112u << 23u));
  return select(normal, f32(half) * 0x1p-24f, half < 0x400u);
}
