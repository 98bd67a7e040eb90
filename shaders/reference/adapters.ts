// Double-precision twin of W of a group of adapters: the chain rule through W + s·B·A with dW = dYᵀ·X, as four thin products in
// place of that one. It knows no factor s and no layout (peer/model/lora_groups.ts does).
import type { BlockPending, BlockSaved } from "./block.ts";
import { matmulNT, matmulTN } from "./matmul.ts";

/** R rows; a group's matrix is [rows, cols] and its adapters have so many stacked ranks. */
export interface AdapterShape {
  R: number;
  rows: number;
  cols: number;
  ranks: number;
}

/** Of a block's matrix: the gradient of its rows and what it multiplied, whose product is the matrix' gradient. */
export function matrixFactors(
  matrix: "qkv" | "project" | "gateUp" | "down",
  saved: BlockSaved,
  pending: BlockPending,
): { dy: Float64Array; x: Float64Array } {
  switch (matrix) {
    case "qkv":
      return { dy: pending.dQkv, x: saved.attentionIn };
    case "project":
      return { dy: pending.dMiddle, x: saved.attended };
    case "gateUp":
      return { dy: pending.dGateUp, x: saved.mlpIn };
    case "down":
      return { dy: pending.dOut, x: saved.act };
  }
}

/**
 * dA [ranks, cols] = (dY·B)ᵀ·X and dB, transposed, [ranks, rows] = (X·Aᵀ)ᵀ·dY, of dy [R, rows], x [R, cols], a [ranks, cols]
 * and b, transposed, [ranks, rows].
 */
export function adapterGrads(
  { dy, x, a, b }: Record<"dy" | "x" | "a" | "b", Float64Array>,
  { R, rows, cols, ranks }: AdapterShape,
): { da: Float64Array; db: Float64Array } {
  const outer = matmulNT(dy, b, { M: R, N: ranks, K: rows });
  const inner = matmulNT(x, a, { M: R, N: ranks, K: cols });
  return {
    da: matmulTN(outer, x, { M: ranks, N: cols, K: R }),
    db: matmulTN(inner, dy, { M: ranks, N: rows, K: R }),
  };
}
