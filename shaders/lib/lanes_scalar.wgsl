// One value an access, for rows of any width; lanes_vec4.wgsl is its twin for rows that divide by 4.

alias lanes = f32;

const LANES = 1u;

fn totalOf(v: lanes) -> f32 {
  return v;
}
