// Eight independent chains of y = y a + b, so that nothing but multiplications and additions takes time: the most that an
// adapter can do. out f32 [N, 4], the sum of the chains; 64 operations a step and invocation; accumulates in f32.

// #import lib/dispatch.wgsl

struct Params {
  N: u32,
  steps: u32,
  a: f32,
  b: f32,
}

override workgroupSize: u32 = 64u;
// 1 uses fma(), which some compilers turn into a call and others need to see.
override fused: u32 = 0u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> out: array<vec4f>;

fn next(y: vec4f, a: vec4f, b: vec4f) -> vec4f {
  if (fused == 1u) {
    return fma(y, a, b);
  }
  return y * a + b;
}

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= params.N) {
    return;
  }
  let a = vec4f(params.a);
  let b = vec4f(params.b);
  var y0 = vec4f(f32(index));
  var y1 = y0 + 1.0;
  var y2 = y0 + 2.0;
  var y3 = y0 + 3.0;
  var y4 = y0 + 4.0;
  var y5 = y0 + 5.0;
  var y6 = y0 + 6.0;
  var y7 = y0 + 7.0;
  for (var step = 0u; step < params.steps; step++) {
    y0 = next(y0, a, b);
    y1 = next(y1, a, b);
    y2 = next(y2, a, b);
    y3 = next(y3, a, b);
    y4 = next(y4, a, b);
    y5 = next(y5, a, b);
    y6 = next(y6, a, b);
    y7 = next(y7, a, b);
  }
  out[index] = ((y0 + y1) + (y2 + y3)) + ((y4 + y5) + (y6 + y7));
}
