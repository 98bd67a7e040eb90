// squares[b, l] = sum of mean[i]^2 and peaks[b, l] = largest |mean[i]|, where mean = sum / N and i runs over the vectors of
// block b that lane l takes: every LANES-th. A block is floats [begin, end) of the stage's flat array.
// blocks u32 [*, 2], factors f32 [12] (lib/optimizer.wgsl), sum f32 [partEnd - partBegin], a run of the flat array,
// squares f32 and peaks u32 (f32 bits without sign) [*, LANES] over all blocks of the stage. A block that began in the part
// before adds to what that part's dispatch left. One invocation per block and lane; f32, in a fixed order.

// #import lib/dispatch.wgsl
// #import lib/optimizer.wgsl

struct Params {
  firstBlock: u32,
  blocks: u32,
  partBegin: u32,
  partEnd: u32,
}

override workgroupSize: u32 = 64u;

const SIGNLESS = 0x7fffffffu;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> blocks: array<vec2u>;
@group(0) @binding(2) var<storage, read> factors: array<f32>;
@group(0) @binding(3) var<storage, read> sum: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> squares: array<f32>;
@group(0) @binding(5) var<storage, read_write> peaks: array<u32>;

@compute @workgroup_size(workgroupSize)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let index = linearIndex(id, groups.x * workgroupSize);
  if (index >= params.blocks * LANES) {
    return;
  }
  let at = params.firstBlock * LANES + index;
  let range = blocks[at / LANES];
  let begin = max(range.x, params.partBegin) - params.partBegin;
  let end = min(range.y, params.partEnd) - params.partBegin;
  var square = vec4f();
  var peak = vec4u();
  for (var i = begin / 4u + at % LANES; i < (end + 3u) / 4u; i += LANES) {
    let place = 4u * i + vec4u(0u, 1u, 2u, 3u);
    let inside = (place >= vec4u(begin)) & (place < vec4u(end));
    let mean = select(vec4f(), sum[i] * factors[INVERSE_COUNT], inside);
    square += mean * mean;
    let magnitude = bitcast<vec4u>(mean) & vec4u(SIGNLESS);
    peak = max(peak, magnitude);
  }
  var total = (square.x + square.y) + (square.z + square.w);
  var highest = max(max(peak.x, peak.y), max(peak.z, peak.w));
  if (range.x < params.partBegin) {
    total += squares[at];
    highest = max(highest, peaks[at]);
  }
  squares[at] = total;
  peaks[at] = highest;
}
