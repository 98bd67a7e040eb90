// How a tensor that is kept from F to W is stored with `dtype` f16: as halves, four in two words. Computed with is f32.

// #import lib/lanes_vec4.wgsl
// #import lib/halves.wgsl

alias kept = vec2u;

fn wide(v: kept) -> lanes {
  return fromHalves(v);
}

fn narrow(v: lanes) -> kept {
  return toHalves(v);
}
