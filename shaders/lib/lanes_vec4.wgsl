// Four values an access, for rows that divide by 4; lanes_scalar.wgsl is its twin for any width.

alias lanes = vec4f;

const LANES = 4u;

fn totalOf(v: lanes) -> f32 {
  return (v.x + v.y) + (v.z + v.w);
}
