// Causal grouped-query attention on packed, rotated q, k, v rows [R, (H+2Hk)D], R = B*T rows, D at most 128.
// Backward order: attention_delta, then the query and the key/value kernels in any order; together they write all
// of dqkv, the gradient of the rotated heads (rotary with direction -1 follows).
import deltaWgsl from "../../../shaders/attention_delta.wgsl" with { type: "text" };
import forwardWgsl from "../../../shaders/attention_forward.wgsl" with { type: "text" };
import forwardTiledWgsl from "../../../shaders/attention_forward_tiled.wgsl" with { type: "text" };
import keyValueGradWgsl from "../../../shaders/attention_keyvalue_grad.wgsl" with { type: "text" };
import keyValueGradTiledWgsl from "../../../shaders/attention_keyvalue_grad_tiled.wgsl" with { type: "text" };
import queryGradWgsl from "../../../shaders/attention_query_grad.wgsl" with { type: "text" };
import queryGradTiledWgsl from "../../../shaders/attention_query_grad_tiled.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, u32Params } from "./define.ts";

/** Largest head width: the size of the kernels' private arrays. */
export const HEAD_DIM_MAX = 128;

/** headDim 0 takes D from the parameters; attentionOverrides says when to set it. */
const overrides = { workgroupSize: 32, headDim: 0 };

/**
 * Overrides for heads of width D. On hardware the width becomes a constant, so that private arrays become registers;
 * software adapters (llvmpipe: up to 17 s for one kernel) compile the unrolled loops slowly and run them no faster.
 */
export function attentionOverrides(D: number, software: boolean): { headDim: number } {
  return { headDim: software ? 0 : D };
}

/** out [R,HD] and lse [R,H] from qkv. */
export const attentionForwardSpec: KernelSpec = {
  name: "attention_forward",
  wgsl: forwardWgsl,
  bindings: bindings(["qkv"], ["out", "lse"]),
  params: u32Params("R", "T", "H", "Hk", "D"),
  overrides,
  workgroups: ({ R = 0, H = 0 }, overrides) => cover(R * H, overrides),
};

/** delta [R,H] from dout and out, both [R,HD]. */
export const attentionDeltaSpec: KernelSpec = {
  name: "attention_delta",
  wgsl: deltaWgsl,
  bindings: bindings(["dout", "out"], ["delta"]),
  params: u32Params("R", "H", "D"),
  overrides: { workgroupSize: 32 },
  workgroups: ({ R = 0, H = 0 }, overrides) => cover(R * H, overrides),
};

/** The query columns of dqkv from qkv, dout [R,HD], lse and delta [R,H]. */
export const attentionQueryGradSpec: KernelSpec = {
  name: "attention_query_grad",
  wgsl: queryGradWgsl,
  bindings: bindings(["qkv", "dout", "lse", "delta"], ["dqkv"]),
  params: u32Params("R", "T", "H", "Hk", "D"),
  overrides,
  workgroups: ({ R = 0, H = 0 }, overrides) => cover(R * H, overrides),
};

/** The key and value columns of dqkv from qkv, dout [R,HD], lse and delta [R,H]. */
export const attentionKeyValueGradSpec: KernelSpec = {
  name: "attention_keyvalue_grad",
  wgsl: keyValueGradWgsl,
  bindings: bindings(["qkv", "dout", "lse", "delta"], ["dqkv"]),
  params: u32Params("R", "T", "H", "Hk", "D"),
  overrides,
  workgroups: ({ R = 0, Hk = 0 }, overrides) => cover(R * Hk, overrides),
};

/** Rows of one invocation of the tiled kernels; fixed in the WGSL. */
const TILE_ROWS = 4;
/** Widest head that gets the tiled kernels: they recompute the scores for every 16 columns. */
const TILED_HEAD_DIM_MAX = 32;

/** Workgroups for one invocation per four rows of a sequence and `heads`. */
function coverTiles(
  { R = 0, T = 1 }: Readonly<Record<string, number>>,
  heads: number,
  overrides: Readonly<Record<string, number>>,
): [number, number, number] {
  return cover(R / T * Math.ceil(T / TILE_ROWS) * heads, overrides);
}

/** attention_forward where D divides by 4. */
export const attentionForwardTiledSpec: KernelSpec = {
  ...attentionForwardSpec,
  name: "attention_forward_tiled",
  wgsl: forwardTiledWgsl,
  overrides: { workgroupSize: 16 },
  workgroups: (params, overrides) => coverTiles(params, params.H ?? 0, overrides),
};

/** attention_query_grad where D divides by 4. */
export const attentionQueryGradTiledSpec: KernelSpec = {
  ...attentionQueryGradSpec,
  name: "attention_query_grad_tiled",
  wgsl: queryGradTiledWgsl,
  overrides: { workgroupSize: 16 },
  workgroups: (params, overrides) => coverTiles(params, params.H ?? 0, overrides),
};

/** attention_keyvalue_grad where D divides by 4. */
export const attentionKeyValueGradTiledSpec: KernelSpec = {
  ...attentionKeyValueGradSpec,
  name: "attention_keyvalue_grad_tiled",
  wgsl: keyValueGradTiledWgsl,
  overrides: { workgroupSize: 16 },
  workgroups: (params, overrides) => coverTiles(params, params.Hk ?? 0, overrides),
};

export interface AttentionKernels {
  forward: KernelSpec;
  queryGrad: KernelSpec;
  keyValueGrad: KernelSpec;
  /** For all three. */
  overrides: Readonly<Record<string, number>>;
}

/**
 * The quickest kernels for heads of width D. Register tiles pay on a software adapter, where loads are what takes the
 * time (half of it on SwiftShader, two thirds on llvmpipe); a GPU prefers more, smaller invocations.
 */
export function attentionKernels(D: number, software: boolean): AttentionKernels {
  if (software && D % 4 === 0 && D <= TILED_HEAD_DIM_MAX) {
    return {
      forward: attentionForwardTiledSpec,
      queryGrad: attentionQueryGradTiledSpec,
      keyValueGrad: attentionKeyValueGradTiledSpec,
      overrides: {},
    };
  }
  return {
    forward: attentionForwardSpec,
    queryGrad: attentionQueryGradSpec,
    keyValueGrad: attentionKeyValueGradSpec,
    overrides: attentionOverrides(D, software),
  };
}
