// Loads of a[M,K] · b[N,K]ᵀ: forward, y = x · Wᵀ with weights stored [out, in].
// In vectors of four: K and N are multiples of 4.
// A file with the bindings and the store comes with it: matmul_vec4.wgsl or an epilogue's. A place is found once per tile;
// loads then take k in fours. Surplus rows and columns read the last valid ones.

// Whether neighbours in memory differ in k.
const A_ALONG_K = true;
const B_ALONG_K = true;

fn placeA(row: u32) -> vec4u {
  return min(row + FOUR, vec4u(params.M - 1u)) * (params.K / 4u);
}

// Columns are four rows of the product, components four k.
fn loadA(place: vec4u, k: u32) -> mat4x4f {
  let at = place + k;
  return mat4x4f(wideA(a[at.x]), wideA(a[at.y]), wideA(a[at.z]), wideA(a[at.w]));
}

fn placeB(column: u32) -> vec4u {
  return min(columnsOf(column), vec4u(params.N - 1u)) * (params.K / 4u);
}

// Columns are four k, components four columns of the product.
fn loadB(place: vec4u, k: u32) -> mat4x4f {
  let at = place + k;
  return transpose(mat4x4f(wideB(b[at.x]), wideB(b[at.y]), wideB(b[at.z]), wideB(b[at.w])));
}
