// The vocabulary head with cross-entropy, without ever holding R x V logits. For each tile [o, o + n) of the vocabulary,
// logits [R,n] = x · W[o..o+n]ᵀ come into scratch (matmul nt). Forward: head_loss folds each tile into the rows' running
// softmax, then sum_rows. Backward: head_logit_grad turns the same logits, made again, into dlogits in place;
// dx += dlogits · W[o..o+n] (matmul nn; store for the first tile, accumulate after) and dW[o..o+n] = dlogitsᵀ · x (matmul
// tn). The gradients are those of the mean loss over the R rows. So nearly all of the work is plain matrix products.
import logitGradWgsl from "../../../shaders/head_logit_grad.wgsl" with { type: "text" };
import lossGroupWgsl from "../../../shaders/head_loss_group.wgsl" with { type: "text" };
import lossWgsl from "../../../shaders/head_loss.wgsl" with { type: "text" };
import sumRowsWgsl from "../../../shaders/sum_rows.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { spreadWorkgroups } from "../library.ts";
import { bindings, cover, u32Params } from "./define.ts";

/** Logits of one invocation; fixed in the WGSL. */
const GRAD_ENTRIES = 4;

const loss = {
  bindings: bindings(["logits", "targets"], ["loss", "lse"]),
  params: u32Params("R", "tile", "vocabOffset", "begins", "ends"),
};

/** loss and lse [R] from logits [R,tile] of entries vocabOffset .. vocabOffset + tile; tiles in order, the first begins, the last ends. */
export const headLossSpec: KernelSpec = {
  name: "head_loss",
  wgsl: lossWgsl,
  ...loss,
  overrides: { workgroupSize: 8 },
  workgroups: ({ R = 0 }, overrides) => cover(R, overrides),
};

/** The same with a workgroup for each row: for adapters that read neighbouring logits at once. */
export const headLossGroupSpec: KernelSpec = {
  name: "head_loss_group",
  wgsl: lossGroupWgsl,
  ...loss,
  overrides: {},
  workgroups: ({ R = 0 }) => spreadWorkgroups(R),
};

const logitGrad: KernelSpec = {
  name: "head_logit_grad",
  wgsl: `// #import lib/loss_plain.wgsl\n${logitGradWgsl}`,
  bindings: bindings(["targets", "lse"], ["logits"]),
  params: u32Params("R", "tile", "vocabOffset"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, tile = 0 }, overrides) => cover(R * Math.ceil(tile / GRAD_ENTRIES), overrides),
};

/**
 * logits [R,tile] of entries vocabOffset .. vocabOffset + tile become the gradient of the mean loss in place. Its form for
 * `dtype` f16 multiplies by the loss scale, from scales [4].
 */
export const headLogitGradSpec: KernelSpec = {
  ...logitGrad,
  halves: {
    ...logitGrad,
    name: "head_logit_grad_f16",
    wgsl: `// #import lib/loss_scaled.wgsl\n${logitGradWgsl}`,
    bindings: [...logitGrad.bindings, { name: "scales", type: "read-only-storage" }],
  },
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
