// The body of bias_partial.wgsl and its vec4 twin; the importer chooses `lanes`.

// #import lib/dispatch.wgsl

struct Params {
  R: u32,
  N: u32,
}

override workgroupSize: u32 = 32u;

const ROWS = 16u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<kept>;
@group(0) @binding(2) var<storage, read_write> partial: array<lanes>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  let width = params.N / LANES;
  let first = index / width * ROWS;
  if (first >= params.R) {
    return;
  }
  let end = min(first + ROWS, params.R);
  var sum = lanes();
  for (var r = first; r < end; r++) {
    sum += wide(dy[r * width + index % width]);
  }
  partial[index] = sum;
}
