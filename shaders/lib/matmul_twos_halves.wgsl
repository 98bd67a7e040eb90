// Outputs of a product that come in twos from two places of a row: in halves, two in a word.

// #import lib/halves.wgsl

alias twoOfOut = u32;

fn narrowTwo(v: vec2f) -> twoOfOut {
  return toHalfWord(v);
}
