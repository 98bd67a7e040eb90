// Arithmetic on 4 x 4 register tiles kept as matrices, column i belonging to item i of four neighbouring items.

const FOUR = vec4u(0u, 1u, 2u, 3u);

fn largest(v: vec4f) -> f32 {
  return max(max(v.x, v.y), max(v.z, v.w));
}

fn total(v: vec4f) -> f32 {
  return (v.x + v.y) + (v.z + v.w);
}

// Column i times factors[i].
fn scaleColumns(tile: mat4x4f, factors: vec4f) -> mat4x4f {
  return mat4x4f(tile[0] * factors.x, tile[1] * factors.y, tile[2] * factors.z, tile[3] * factors.w);
}

// Column i is v * factors[i]: one step of a product's sum, for four rows and four columns.
fn outer(v: vec4f, factors: vec4f) -> mat4x4f {
  return mat4x4f(v * factors.x, v * factors.y, v * factors.z, v * factors.w);
}
