// Matrix products in the three layouts of training, each as a scalar kernel for any shape, a vec4 kernel for shapes that
// divide by 4, and a wide one for adapters whose loads are slow. Not autotuned: tile sizes are those that were measured.
import nnWgsl from "../../../shaders/matmul_nn.wgsl" with { type: "text" };
import nnVec4Wgsl from "../../../shaders/matmul_nn_vec4.wgsl" with { type: "text" };
import nnWideWgsl from "../../../shaders/matmul_nn_wide.wgsl" with { type: "text" };
import ntWgsl from "../../../shaders/matmul_nt.wgsl" with { type: "text" };
import ntVec4Wgsl from "../../../shaders/matmul_nt_vec4.wgsl" with { type: "text" };
import ntWideWgsl from "../../../shaders/matmul_nt_wide.wgsl" with { type: "text" };
import tnWgsl from "../../../shaders/matmul_tn.wgsl" with { type: "text" };
import tnVec4Wgsl from "../../../shaders/matmul_tn_vec4.wgsl" with { type: "text" };
import tnWideWgsl from "../../../shaders/matmul_tn_wide.wgsl" with { type: "text" };
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

/** How one kernel cuts the output; the columns of one invocation are fixed in its WGSL. */
interface Tile {
  columns: number;
  overrides: { columnGroups: number; rowGroups: number };
}

/** Rows of the output that one invocation computes; fixed in the WGSL. */
const TILE_ROWS = 8;
const NARROW: Tile = { columns: 4, overrides: { columnGroups: 8, rowGroups: 4 } };
const WIDE: Tile = { columns: 16, overrides: { columnGroups: 4, rowGroups: 2 } };

function matmul(name: string, wgsl: string, tile = NARROW): KernelSpec {
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
    overrides: tile.overrides,
    workgroups: ({ M = 0, N = 0 }, { columnGroups = 1, rowGroups = 1 }) => [
      Math.ceil(N / (tile.columns * columnGroups)),
      Math.ceil(M / (TILE_ROWS * rowGroups)),
      1,
    ],
  };
}

export const matmulNnSpec = matmul("matmul_nn", nnWgsl);
export const matmulNnVec4Spec = matmul("matmul_nn_vec4", nnVec4Wgsl);
export const matmulNnWideSpec = matmul("matmul_nn_wide", nnWideWgsl, WIDE);
export const matmulNtSpec = matmul("matmul_nt", ntWgsl);
export const matmulNtVec4Spec = matmul("matmul_nt_vec4", ntVec4Wgsl);
export const matmulNtWideSpec = matmul("matmul_nt_wide", ntWideWgsl, WIDE);
export const matmulTnSpec = matmul("matmul_tn", tnWgsl);
export const matmulTnVec4Spec = matmul("matmul_tn_vec4", tnVec4Wgsl);
export const matmulTnWideSpec = matmul("matmul_tn_wide", tnWideWgsl, WIDE);

/**
 * The quickest kernel whose conditions `shape` meets. `residual` must be bound even when it is not added.
 * @param options.wide prefer 8 x 16 outputs an invocation (default false; see wideTiles)
 */
export function matmulSpec(
  layout: MatmulLayout,
  shape: MatmulShape,
  { wide = false }: { wide?: boolean } = {},
): KernelSpec {
  const { M, N, K } = shape;
  if (wide && N % 4 === 0 && K % 4 === 0 && (layout !== "tn" || M % 4 === 0)) return wideSpecs[layout];
  switch (layout) {
    case "nn":
      return K % 4 === 0 && N % 4 === 0 ? matmulNnVec4Spec : matmulNnSpec;
    case "nt":
      return K % 4 === 0 ? matmulNtVec4Spec : matmulNtSpec;
    case "tn":
      return M % 4 === 0 && N % 4 === 0 ? matmulTnVec4Spec : matmulTnSpec;
  }
}

const wideSpecs = { nn: matmulNnWideSpec, nt: matmulNtWideSpec, tn: matmulTnWideSpec };

/**
 * Whether wide kernels win on an adapter. SwiftShader (Chromium without a GPU) loads every lane of every vector by
 * itself and keeps indexed registers in memory: wide kernels are 1.5 (tn) to 4 times (nn, nt) quicker there, and
 * slower by a fifth on llvmpipe.
 */
export function wideTiles(adapterName: string): boolean {
  return /swiftshader/i.test(adapterName);
}
