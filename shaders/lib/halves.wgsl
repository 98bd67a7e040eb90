// Four values kept as halves in two words, by the packing that every adapter has; shader-f16 is missing on many.

// Signless bits of 65520, the least f32 that rounds beyond the largest half.
const BEYOND_HALF = 0x477ff000u;
const HALF_MAX = 65504.0;

fn fromHalves(v: vec2u) -> vec4f {
  return vec4f(unpack2x16float(v.x), unpack2x16float(v.y));
}

// The nearest halves. What packing makes of a value beyond their range WGSL leaves open, so that becomes no finite number
// by its bits: whatever is computed from it is not finite either, and the step is skipped.
fn toHalves(v: vec4f) -> vec2u {
  let beyond = (bitcast<vec4u>(v) & vec4u(0x7fffffffu)) >= vec4u(BEYOND_HALF);
  let marks = select(vec4u(), vec4u(0x7c00u), beyond);
  let limited = clamp(v, vec4f(-HALF_MAX), vec4f(HALF_MAX));
  let packed = vec2u(pack2x16float(limited.xy), pack2x16float(limited.zw));
  return packed | vec2u(marks.x | (marks.y << 16u), marks.z | (marks.w << 16u));
}

// The same of two values.
fn toHalfWord(v: vec2f) -> u32 {
  let beyond = (bitcast<vec2u>(v) & vec2u(0x7fffffffu)) >= vec2u(BEYOND_HALF);
  let marks = select(vec2u(), vec2u(0x7c00u), beyond);
  return pack2x16float(clamp(v, vec2f(-HALF_MAX), vec2f(HALF_MAX))) | marks.x | (marks.y << 16u);
}
