// The operands of a product in vectors of four: a, b and out, the latter with what is added to it, in f32.

alias fourOfA = vec4f;
alias fourOfB = vec4f;
alias fourOfOut = vec4f;

fn wideA(v: fourOfA) -> vec4f {
  return v;
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
