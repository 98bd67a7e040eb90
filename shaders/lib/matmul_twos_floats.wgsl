// Outputs of a product that come in twos from two places of a row: in f32. matmul_twos_halves.wgsl is the twin for
// `dtype` f16.

alias twoOfOut = vec2f;

fn narrowTwo(v: vec2f) -> twoOfOut {
  return v;
}
