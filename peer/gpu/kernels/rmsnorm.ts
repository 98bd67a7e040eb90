// Root-mean-square normalisation (arXiv 1910.07467): forward and both gradients.
// The forward keeps 1/rms per row, so that the gradients do not reduce again.
import forwardWgsl from "../../../shaders/rmsnorm_forward.wgsl" with { type: "text" };
import inputGradWgsl from "../../../shaders/rmsnorm_input_grad.wgsl" with { type: "text" };
import weightGradWgsl from "../../../shaders/rmsnorm_weight_grad.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, u32Params } from "./define.ts";

/** y [R,C] and rstd [R] from x [R,C] and gain [C]; eps is added to the mean square. */
export const rmsnormForwardSpec: KernelSpec = {
  name: "rmsnorm_forward",
  wgsl: forwardWgsl,
  bindings: bindings(["x", "gain"], ["y", "rstd"]),
  params: [...u32Params("R", "C"), { name: "eps", type: "f32" }],
  overrides: { workgroupSize: 32 },
  workgroups: ({ R = 0 }, overrides) => cover(R, overrides),
};

/** dx [R,C] from dy, x [R,C], gain [C], rstd [R]; residual 1 adds dres [R,C], with 0 bind any read-only buffer there. */
export const rmsnormInputGradSpec: KernelSpec = {
  name: "rmsnorm_input_grad",
  wgsl: inputGradWgsl,
  bindings: bindings(["dy", "x", "gain", "rstd", "dres"], ["dx"]),
  params: u32Params("R", "C", "residual"),
  overrides: { workgroupSize: 32 },
  workgroups: ({ R = 0 }, overrides) => cover(R, overrides),
};

/** dgain [C] from dy, x [R,C] and rstd [R]. */
export const rmsnormWeightGradSpec: KernelSpec = {
  name: "rmsnorm_weight_grad",
  wgsl: weightGradWgsl,
  bindings: bindings(["dy", "x", "rstd"], ["dgain"]),
  params: u32Params("R", "C"),
  overrides: { workgroupSize: 32 },
  workgroups: ({ C = 0 }, overrides) => cover(C, overrides),
};
