// The token embedding and the gradient of its table. The table may be shared with the head (tied weights): the
// gradient kernel then adds to what the head's gradient left in the buffer.
import forwardWgsl from "../../../shaders/embedding_forward.wgsl" with { type: "text" };
import weightGradWgsl from "../../../shaders/embedding_weight_grad.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, u32Params } from "./define.ts";

/** Columns of one invocation; fixed in the WGSL. */
const FORWARD_COLUMNS = 4;
const GRAD_COLUMNS = 16;

/** out [R,C] = table [V,C] at tokens [R]. */
export const embeddingForwardSpec: KernelSpec = {
  name: "embedding_forward",
  wgsl: forwardWgsl,
  bindings: bindings(["tokens", "table"], ["out"]),
  params: u32Params("R", "C"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, C = 0 }, overrides) => cover(R * Math.ceil(C / FORWARD_COLUMNS), overrides),
};

/** dtable [V,C] from tokens [R] and dout [R,C]; accumulate 1 adds to the old dtable, 0 overwrites all of it. */
export const embeddingWeightGradSpec: KernelSpec = {
  name: "embedding_weight_grad",
  wgsl: weightGradWgsl,
  bindings: bindings(["tokens", "dout"], ["dtable"]),
  params: u32Params("R", "C", "V", "accumulate"),
  overrides: { workgroupSize: 32 },
  workgroups: ({ C = 0, V = 0 }, overrides) => cover(V * Math.ceil(C / GRAD_COLUMNS), overrides),
};
