// The operands of a product in vectors of four with `dtype` f16, a weight gradient: a and b, a kept gradient and a kept
// activation, in halves; out in f32.

// #import lib/halves.wgsl

alias fourOfA = vec2u;
alias fourOfB = vec2u;
alias fourOfOut = vec4f;

fn wideA(v: fourOfA) -> vec4f {
  return fromHalves(v);
}

fn wideB(v: fourOfB) -> vec4f {
  return fromHalves(v);
}

fn wideOut(v: fourOfOut) -> vec4f {
  return v;
}

fn narrowOut(v: vec4f) -> fourOfOut {
  return v;
}
