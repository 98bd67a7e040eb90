// Which weight gradients may be summed in slices of K, and the scratch that this takes: a slice's sums lie beside the
// others' until a second pass adds them in order. From shapes alone, so that memory is known before anything is measured.

/** A product's result is [M, N]; K is summed over. */
export interface ProductShape {
  M: number;
  N: number;
  K: number;
}

/** Slices of K of a product that is cut at all: more need more scratch, since each is a whole output. */
export const PRODUCT_SLICES = 4;
/** Outputs up to which slices can pay: beyond them the tiles fill any adapter, and the scratch would be large. */
const SLICED_OUTPUTS_MAX = 512 * 512;
/** Shortest K of a slice; below it, writing and reading parts costs more than summing them. */
const SLICE_K_MIN = 64;

/** Whether a product of this shape may be cut into PRODUCT_SLICES. */
export function mayBeSliced({ M, N, K }: ProductShape): boolean {
  return M * N <= SLICED_OUTPUTS_MAX && K >= PRODUCT_SLICES * SLICE_K_MIN;
}

/** Values of all slices of the largest product that may be cut; 1 if there is none, since no tensor is empty. */
export function slicedElements(products: readonly ProductShape[]): number {
  const outputs = products.filter(mayBeSliced).map(({ M, N }) => M * N);
  return Math.max(1, PRODUCT_SLICES * Math.max(0, ...outputs));
}

/** Length of a slice, in whole fours of k. */
export function sliceLength(K: number, slices: number): number {
  return slices === 1 ? K : Math.ceil(K / slices / 4) * 4;
}
