// The vocabulary head with cross-entropy, without ever holding R x V logits.
// Forward: head_loss, then sum_rows. Backward, for each tile of the vocabulary [o, o + n): head_logit_grad writes
// dlogits [R,n] into scratch; dx += dlogits · W[o..o+n] (matmul nn; store for the first tile, accumulate after) and
// dW[o..o+n] = dlogitsᵀ · x (matmul tn). The gradients are those of the mean loss over the R rows.
import logitGradWgsl from "../../../shaders/head_logit_grad.wgsl" with { type: "text" };
import lossWgsl from "../../../shaders/head_loss.wgsl" with { type: "text" };
import sumRowsWgsl from "../../../shaders/sum_rows.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, u32Params } from "./define.ts";

/** Rows and vocabulary entries of one invocation; fixed in the WGSL. */
const TILE_ROWS = 4;
const TILE_ENTRIES = 8;

/** loss and lse [R] from x [R,C], weight [V,C] and targets [R]. */
export const headLossSpec: KernelSpec = {
  name: "head_loss",
  wgsl: lossWgsl,
  bindings: bindings(["x", "weight", "targets"], ["loss", "lse"]),
  params: u32Params("R", "C", "V"),
  overrides: { workgroupSize: 8 },
  workgroups: ({ R = 0 }, overrides) => cover(Math.ceil(R / TILE_ROWS), overrides),
};

/** dlogits [R,tile] of entries vocabOffset .. vocabOffset + tile; weight is the whole [V,C]. */
export const headLogitGradSpec: KernelSpec = {
  name: "head_logit_grad",
  wgsl: logitGradWgsl,
  bindings: bindings(["x", "weight", "targets", "lse"], ["dlogits"]),
  params: u32Params("R", "C", "vocabOffset", "tile"),
  overrides: { workgroupSize: 8 },
  workgroups: ({ R = 0, tile = 0 }, overrides) =>
    cover(Math.ceil(R / TILE_ROWS) * Math.ceil(tile / TILE_ENTRIES), overrides),
};

/** mean [1] of values [R]. */
export const sumRowsSpec: KernelSpec = {
  name: "sum_rows",
  wgsl: sumRowsWgsl,
  bindings: bindings(["values"], ["mean"]),
  params: u32Params("R"),
  overrides: {},
  workgroups: () => [1, 1, 1],
};
