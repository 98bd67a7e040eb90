// Matrix products in the three layouts of training, each as a scalar kernel for any shape and a vec4 kernel for
// shapes that divide by 4. Not autotuned: tile sizes are those that win on CPU-emulated adapters.
import nnWgsl from "../../../shaders/matmul_nn.wgsl" with { type: "text" };
import nnVec4Wgsl from "../../../shaders/matmul_nn_vec4.wgsl" with { type: "text" };
import ntWgsl from "../../../shaders/matmul_nt.wgsl" with { type: "text" };
import ntVec4Wgsl from "../../../shaders/matmul_nt_vec4.wgsl" with { type: "text" };
import tnWgsl from "../../../shaders/matmul_tn.wgsl" with { type: "text" };
import tnVec4Wgsl from "../../../shaders/matmul_tn_vec4.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";

/** nn: a·b (input gradients); nt: a·bᵀ (forward, weights [out, in]); tn: aᵀ·b (weight gradients). */
export type MatmulLayout = "nn" | "nt" | "tn";

/** What is added to the product before it is stored: nothing, the binding `residual`, or the old output. */
export const MatmulEpilogue = { store: 0, addResidual: 1, accumulate: 2 } as const;

export interface MatmulShape {
  M: number;
  N: number;
  K: number;
}

/** Rows and columns of the output that one invocation computes; fixed in the WGSL. */
const TILE_ROWS = 8;
const TILE_COLUMNS = 4;

function matmul(name: string, wgsl: string): KernelSpec {
  return {
    name,
    wgsl,
    bindings: [
      { name: "params", type: "uniform" },
      { name: "a", type: "read-only-storage" },
      { name: "b", type: "read-only-storage" },
      { name: "residual", type: "read-only-storage" },
      { name: "out", type: "storage" },
    ],
    params: [
      { name: "M", type: "u32" },
      { name: "N", type: "u32" },
      { name: "K", type: "u32" },
      { name: "epilogue", type: "u32" },
    ],
    overrides: { columnGroups: 8, rowGroups: 4 },
    workgroups: ({ M = 0, N = 0 }, { columnGroups = 1, rowGroups = 1 }) => [
      Math.ceil(N / (TILE_COLUMNS * columnGroups)),
      Math.ceil(M / (TILE_ROWS * rowGroups)),
      1,
    ],
  };
}

export const matmulNnSpec = matmul("matmul_nn", nnWgsl);
export const matmulNnVec4Spec = matmul("matmul_nn_vec4", nnVec4Wgsl);
export const matmulNtSpec = matmul("matmul_nt", ntWgsl);
export const matmulNtVec4Spec = matmul("matmul_nt_vec4", ntVec4Wgsl);
export const matmulTnSpec = matmul("matmul_tn", tnWgsl);
export const matmulTnVec4Spec = matmul("matmul_tn_vec4", tnVec4Wgsl);

/** The quickest kernel whose conditions `shape` meets. `residual` must be bound even when it is not added. */
export function matmulSpec(layout: MatmulLayout, shape: MatmulShape): KernelSpec {
  const { M, N, K } = shape;
  switch (layout) {
    case "nn":
      return K % 4 === 0 && N % 4 === 0 ? matmulNnVec4Spec : matmulNnSpec;
    case "nt":
      return K % 4 === 0 ? matmulNtVec4Spec : matmulNtSpec;
    case "tn":
      return M % 4 === 0 && N % 4 === 0 ? matmulTnVec4Spec : matmulTnSpec;
  }
}
