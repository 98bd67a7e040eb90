// How a tensor that is kept from F to W is stored: as it is computed. kept_f16.wgsl is its twin; a kernel's spec chooses one,
// the kernel a lanes file.

alias kept = lanes;

fn wide(v: kept) -> lanes {
  return v;
}

fn narrow(v: lanes) -> kept {
  return v;
}
