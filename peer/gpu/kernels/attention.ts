// Causal grouped-query attention on packed, rotated q, k, v rows [R, (H+2Hk)D], R = B*T rows, D even and at most 128.
// Backward order: the query kernel, which leaves delta, then the key/value kernel. Together they write all of dqkv, the
// gradient of the heads before rotation.
import forwardWgsl from "../../../shaders/attention_forward.wgsl" with { type: "text" };
import forwardFlashWgsl from "../../../shaders/attention_forward_flash.wgsl" with { type: "text" };
import forwardTiledWgsl from "../../../shaders/attention_forward_tiled.wgsl" with { type: "text" };
import forwardTiledWideWgsl from "../../../shaders/attention_forward_tiled_wide.wgsl" with { type: "text" };
import keyValueGradWgsl from "../../../shaders/attention_keyvalue_grad.wgsl" with { type: "text" };
import keyValueGradFlashWgsl from "../../../shaders/attention_keyvalue_grad_flash.wgsl" with { type: "text" };
import keyValueGradTiledWgsl from "../../../shaders/attention_keyvalue_grad_tiled.wgsl" with { type: "text" };
import keyValueGradTiledWideWgsl from "../../../shaders/attention_keyvalue_grad_tiled_wide.wgsl" with {
  type: "text",
};
import queryGradWgsl from "../../../shaders/attention_query_grad.wgsl" with { type: "text" };
import queryGradFlashWgsl from "../../../shaders/attention_query_grad_flash.wgsl" with { type: "text" };
import queryGradTiledWgsl from "../../../shaders/attention_query_grad_tiled.wgsl" with { type: "text" };
import queryGradTiledWideWgsl from "../../../shaders/attention_query_grad_tiled_wide.wgsl" with {
  type: "text",
};
import type { KernelSpec } from "../kernel.ts";
import { spreadWorkgroups } from "../library.ts";
import { bindings, cover, kept, u32Params } from "./define.ts";

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

/** The query columns of dqkv, and delta [R,H], from qkv, out and dout [R,HD], lse [R,H] and the rotary angles. */
export const attentionQueryGradSpec: KernelSpec = {
  name: "attention_query_grad",
  wgsl: queryGradWgsl,
  bindings: bindings(["qkv", "out", "dout", "lse", "angles"], ["delta", "dqkv"]),
  params: u32Params("R", "T", "H", "Hk", "D"),
  overrides,
  workgroups: ({ R = 0, H = 0 }, overrides) => cover(R * H, overrides),
};

/** The key and value columns of dqkv from qkv, dout [R,HD], lse and delta [R,H], and the rotary angles. */
export const attentionKeyValueGradSpec: KernelSpec = {
  name: "attention_keyvalue_grad",
  wgsl: keyValueGradWgsl,
  bindings: bindings(["qkv", "dout", "lse", "delta", "angles"], ["dqkv"]),
  params: u32Params("R", "T", "H", "Hk", "D"),
  overrides,
  workgroups: ({ R = 0, Hk = 0 }, overrides) => cover(R * Hk, overrides),
};

/** Rows of one invocation of the tiled kernels; fixed in the WGSL. */
const TILE_ROWS = 4;
/** Widest head that gets the tiled kernels: they recompute the scores for every 16 columns. */
const TILED_HEAD_DIM_MAX = 16;
/** Widest head of the wide tiled kernels: the size of their private arrays, QUADS in the WGSL. */
const TILED_WIDE_HEAD_DIM_MAX = 64;

/** Workgroups for one invocation per four rows of a sequence and `heads`. */
function coverTiles(
  { R = 0, T = 1 }: Readonly<Record<string, number>>,
  heads: number,
  overrides: Readonly<Record<string, number>>,
): [number, number, number] {
  return cover(R / T * Math.ceil(T / TILE_ROWS) * heads, overrides);
}

/** attention_forward where D divides by 4. */
export const attentionForwardTiledSpec: KernelSpec = kept({
  ...attentionForwardSpec,
  name: "attention_forward_tiled",
  wgsl: forwardTiledWgsl,
  overrides: { workgroupSize: 16 },
  workgroups: (params, overrides) => coverTiles(params, params.H ?? 0, overrides),
});

/** attention_query_grad where D divides by 8. */
export const attentionQueryGradTiledSpec: KernelSpec = kept({
  ...attentionQueryGradSpec,
  name: "attention_query_grad_tiled",
  wgsl: queryGradTiledWgsl,
  overrides: { workgroupSize: 16 },
  workgroups: (params, overrides) => coverTiles(params, params.H ?? 0, overrides),
});

/** attention_keyvalue_grad where D divides by 8. */
export const attentionKeyValueGradTiledSpec: KernelSpec = kept({
  ...attentionKeyValueGradSpec,
  name: "attention_keyvalue_grad_tiled",
  wgsl: keyValueGradTiledWgsl,
  overrides: { workgroupSize: 16 },
  workgroups: (params, overrides) => coverTiles(params, params.Hk ?? 0, overrides),
});

/** attention_forward where D divides by 4 and is at most 64. */
export const attentionForwardTiledWideSpec: KernelSpec = kept({
  ...attentionForwardTiledSpec,
  name: "attention_forward_tiled_wide",
  wgsl: forwardTiledWideWgsl,
});

/** attention_query_grad where D divides by 8 and is at most 64. */
export const attentionQueryGradTiledWideSpec: KernelSpec = kept({
  ...attentionQueryGradTiledSpec,
  name: "attention_query_grad_tiled_wide",
  wgsl: queryGradTiledWideWgsl,
});

/** attention_keyvalue_grad where D divides by 8 and is at most 64. */
export const attentionKeyValueGradTiledWideSpec: KernelSpec = kept({
  ...attentionKeyValueGradTiledSpec,
  name: "attention_keyvalue_grad_tiled_wide",
  wgsl: keyValueGradTiledWideWgsl,
});

/** Rows of a workgroup of the flash kernels; fixed in the WGSL. */
const FLASH_ROWS = 32;

/** One workgroup per 32 rows of a sequence and each of `heads`. */
function coverFlash(
  { R = 0, T = 1 }: Readonly<Record<string, number>>,
  heads: number,
): [number, number, number] {
  return spreadWorkgroups(R / T * Math.ceil(T / FLASH_ROWS) * heads);
}

/** attention_forward where D divides by 8. */
export const attentionForwardFlashSpec: KernelSpec = kept({
  ...attentionForwardSpec,
  name: "attention_forward_flash",
  wgsl: forwardFlashWgsl,
  overrides: { headDim: 0 },
  workgroups: (params) => coverFlash(params, params.H ?? 0),
});

/** attention_query_grad where D divides by 8. */
export const attentionQueryGradFlashSpec: KernelSpec = kept({
  ...attentionQueryGradSpec,
  name: "attention_query_grad_flash",
  wgsl: queryGradFlashWgsl,
  overrides: { headDim: 0 },
  workgroups: (params) => coverFlash(params, params.H ?? 0),
});

/** attention_keyvalue_grad where D divides by 8. */
export const attentionKeyValueGradFlashSpec: KernelSpec = kept({
  ...attentionKeyValueGradSpec,
  name: "attention_keyvalue_grad_flash",
  wgsl: keyValueGradFlashWgsl,
  overrides: { headDim: 0 },
  workgroups: (params) => coverFlash(params, params.Hk ?? 0),
});

export interface AttentionKernels {
  forward: KernelSpec;
  queryGrad: KernelSpec;
  keyValueGrad: KernelSpec;
  /** For all three. */
  overrides: Readonly<Record<string, number>>;
}

/**
 * The quickest kernels for heads of width D. Register tiles pay on a software adapter, where loads are what takes the
 * time (half of it on SwiftShader, two thirds on llvmpipe). A wide head's rows are kept in private memory, so that its
 * scores are computed once; up to 16 columns fit the tiles at once, and memory would only cost. A GPU wants its rows'
 * keys in workgroup memory, which on a software adapter is no quicker than any other and whose barriers are slow. `halves`: only
 * kernels that have a form in halves.
 */
export function attentionKernels(D: number, software: boolean, halves = false): AttentionKernels {
  const plain = {
    forward: attentionForwardSpec,
    queryGrad: attentionQueryGradSpec,
    keyValueGrad: attentionKeyValueGradSpec,
    overrides: attentionOverrides(D, software),
  };
  if (D % 8 !== 0) return plain;
  if (!software) {
    return {
      forward: attentionForwardFlashSpec,
      queryGrad: attentionQueryGradFlashSpec,
      keyValueGrad: attentionKeyValueGradFlashSpec,
      overrides: attentionOverrides(D, software),
    };
  }
  if (D > TILED_WIDE_HEAD_DIM_MAX && !halves) return plain;
  if (D > TILED_HEAD_DIM_MAX && D <= TILED_WIDE_HEAD_DIM_MAX) {
    return {
      forward: attentionForwardTiledWideSpec,
      queryGrad: attentionQueryGradTiledWideSpec,
      keyValueGrad: attentionKeyValueGradTiledWideSpec,
      overrides: {},
    };
  }
  return {
    forward: attentionForwardTiledSpec,
    queryGrad: attentionQueryGradTiledSpec,
    keyValueGrad: attentionKeyValueGradTiledSpec,
    overrides: {},
  };
}
