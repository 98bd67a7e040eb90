// The operands of a product in vectors of four with `dtype` f16, from activations to activations: a and out, with what is
// added to it, in halves; b, the weights, in f32.

// #import lib/halves.wgsl

alias fourOfA = vec2u;
alias fourOfB = vec4f;
alias fourOfOut = vec2u;

fn wideA(v: fourOfA) -> vec4f {
  return fromHalves(v);
}

fn wideB(v: fourOfB) -> vec4f {
  return v;
}

fn wideOut(v: fourOfOut) -> vec4f {
  return fromHalves(v);
}

fn narrowOut(v: vec4f) -> fourOfOut {
  return toHalves(v);
}
