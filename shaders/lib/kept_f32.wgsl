// How a tensor that is kept from F to W, "kept" in the heads of kernels, is stored: in f32, as it is computed.
// kept_f16.wgsl is its twin; a kernel's spec chooses one of them, the kernel's text a lanes file.

alias kept = lanes;

fn wide(v: kept) -> lanes {
  return v;
}

fn narrow(v: lanes) -> kept {
  return v;
}
