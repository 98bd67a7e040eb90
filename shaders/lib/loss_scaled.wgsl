// The factor on the loss's gradient with `dtype` f16: 2^s of scales f32 [4] = (1, 2^s, 2^-s, 0). loss_plain.wgsl is its twin.

@group(0) @binding(4) var<storage, read> scales: array<f32>;

fn lossFactor() -> f32 {
  return scales[1];
}
