// Loads of a[K,M]ᵀ · b[K,N]: weight gradients, dW = dyᵀ · x.
// In vectors of four: M, N and K are multiples of 4.
// A file with the bindings and the store comes with it: matmul_vec4.wgsl or an epilogue's. A place is found once per tile;
// loads then take k in fours. Surplus rows and columns read the last valid ones.

// Whether neighbours in memory differ in k.
const A_ALONG_K = false;
const B_ALONG_K = false;

fn placeA(row: u32) -> vec4u {
  return vec4u(min(row, params.M - 1u) / 4u);
}

// Columns are four rows of the product, components four k.
fn loadA(place: vec4u, k: u32) -> mat4x4f {
  let width = params.M / 4u;
  let at = place.x + 4u * k * width;
  return transpose(mat4x4f(wideA(a[at]), wideA(a[at + width]), wideA(a[at + 2u * width]), wideA(a[at + 3u * width])));
}

fn placeB(column: u32) -> vec4u {
  return vec4u(min(column, params.N - 1u) / 4u);
}

// Columns are four k, components four columns of the product.
fn loadB(place: vec4u, k: u32) -> mat4x4f {
  let width = params.N / 4u;
  let at = place.x + 4u * k * width;
  return mat4x4f(wideB(b[at]), wideB(b[at + width]), wideB(b[at + 2u * width]), wideB(b[at + 3u * width]));
}
