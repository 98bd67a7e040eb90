// Double-precision twin of the token embedding: a table look-up and the scatter-add that is its weight gradient.
// Not a tokenizer: every token must be below V, which the caller has checked. Legend: R rows, V vocabulary, C width.

/** out[r,:] = table[tokens[r],:]; table is [V, C], result [R, C]. */
export function embeddingForward(
  tokens: Uint32Array,
  table: Float64Array,
  { C }: { C: number },
): Float64Array {
  const out = new Float64Array(tokens.length * C);
  tokens.forEach((token, r) => out.set(table.subarray(token * C, (token + 1) * C), r * C));
  return out;
}

/** Sum of dOut [R, C] over the rows of each token, in row order; result [V, C], zero for tokens that do not occur. */
export function embeddingWeightGrad(
  tokens: Uint32Array,
  dOut: Float64Array,
  { V, C }: { V: number; C: number },
): Float64Array {
  const dTable = new Float64Array(V * C);
  tokens.forEach((token, r) => {
    for (let c = 0; c < C; c++) dTable[token * C + c]! += dOut[r * C + c]!;
  });
  return dTable;
}
