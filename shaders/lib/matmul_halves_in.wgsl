// The operands of a product in vectors of four with `dtype` f16, from a kept gradient to one that a norm or attention reads
// next: a in halves; b, the weights, and out in f32.

// #import lib/halves.wgsl

alias fourOfA = vec2u;
alias fourOfB = vec4f;
alias fourOfOut = vec4f;

fn wideA(v: fourOfA) -> vec4f {
  return fromHalves(v);
}

fn wideB(v: fourOfB) -> vec4f {
  return v;
}

fn wideOut(v: fourOfOut) -> vec4f {
  return v;
}

fn narrowOut(v: vec4f) -> fourOfOut {
  return v;
}
