// Loads of a[M,K] · b[K,N]: input gradients, dx = dy · W.
// In single floats, for any M, N and K.
// A place is found once per tile; loads then take k in fours. Surplus rows and columns read the last valid ones.

// #import lib/matmul_scalar.wgsl

// Whether neighbours in memory differ in k.
const A_ALONG_K = true;
const B_ALONG_K = false;

fn placeA(row: u32) -> vec4u {
  return min(row + FOUR, vec4u(params.M - 1u)) * params.K;
}

// Columns are four rows of the product, components four k.
fn loadA(place: vec4u, k: u32) -> mat4x4f {
  let ks = 4u * k + FOUR;
  return mat4x4f(alongA(place.x, ks), alongA(place.y, ks), alongA(place.z, ks), alongA(place.w, ks));
}

fn placeB(column: u32) -> vec4u {
  return min(column + FOUR, vec4u(params.N - 1u));
}

// Columns are four k, components four columns of the product.
fn loadB(place: vec4u, k: u32) -> mat4x4f {
  let rows = 4u * k + FOUR;
  return mat4x4f(acrossB(place, rows.x), acrossB(place, rows.y), acrossB(place, rows.z), acrossB(place, rows.w));
}
