// The loss's gradient as it is; loss_scaled.wgsl is the twin for `dtype` f16.

fn lossFactor() -> f32 {
  return 1.0;
}
