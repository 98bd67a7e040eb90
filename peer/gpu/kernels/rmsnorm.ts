// Root-mean-square normalisation (arXiv 1910.07467): forward and both gradients, for any width, in vectors of four, and in
// workgroups for GPUs.
// The forward keeps 1/rms per row, so that the gradients do not reduce again.
import backwardWgsl from "../../../shaders/rmsnorm_backward.wgsl" with { type: "text" };
import backwardGroupWgsl from "../../../shaders/rmsnorm_backward_group.wgsl" with { type: "text" };
import backwardVec4Wgsl from "../../../shaders/rmsnorm_backward_vec4.wgsl" with { type: "text" };
import forwardWgsl from "../../../shaders/rmsnorm_forward.wgsl" with { type: "text" };
import forwardGroupWgsl from "../../../shaders/rmsnorm_forward_group.wgsl" with { type: "text" };
import forwardVec4Wgsl from "../../../shaders/rmsnorm_forward_vec4.wgsl" with { type: "text" };
import gainGradWgsl from "../../../shaders/rmsnorm_gain_grad.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { RMSNORM_BLOCK_ROWS } from "../../model/block_tensors.ts";
import { spreadWorkgroups } from "../library.ts";
import { bindings, cover, kept, keptFloats, u32Params } from "./define.ts";

const forward: KernelSpec = {
  name: "rmsnorm_forward",
  wgsl: forwardWgsl,
  bindings: bindings(["x", "gain"], ["y", "rstd"]),
  params: [...u32Params("R", "C"), { name: "eps", type: "f32" }],
  overrides: { workgroupSize: 32 },
  workgroups: ({ R = 0 }, overrides) => cover(R, overrides),
};

/** y [R,C] and rstd [R] from x [R,C] and gain [C]; eps is added to the mean square. */
export const rmsnormForwardSpec: KernelSpec = keptFloats(forward);

/** rmsnorm_forward where C divides by 4. */
export const rmsnormForwardVec4Spec: KernelSpec = kept({
  ...forward,
  name: "rmsnorm_forward_vec4",
  wgsl: forwardVec4Wgsl,
});

const backward: KernelSpec = {
  name: "rmsnorm_backward",
  wgsl: backwardWgsl,
  bindings: bindings(["dy", "gain", "rstd", "dres"], ["x", "dx", "partial"]),
  params: u32Params("R", "C", "residual"),
  overrides: { workgroupSize: 8 },
  workgroups: ({ R = 0 }, overrides) => cover(Math.ceil(R / RMSNORM_BLOCK_ROWS), overrides),
};

/**
 * dx [R,C] from dy, x [R,C], gain [C], rstd [R]; residual 1 adds dres [R,C], with 0 bind any read-only buffer there.
 * Also x becomes the norm's output, and partial [blocks,C] holds the gain's gradient for each block of rows.
 */
export const rmsnormBackwardSpec: KernelSpec = keptFloats(backward);

/** rmsnorm_backward where C divides by 4. */
export const rmsnormBackwardVec4Spec: KernelSpec = kept({
  ...backward,
  name: "rmsnorm_backward_vec4",
  wgsl: backwardVec4Wgsl,
});

/** One workgroup per block of rows. */
function coverBlocks({ R = 0 }: Readonly<Record<string, number>>): [number, number, number] {
  return spreadWorkgroups(Math.ceil(R / RMSNORM_BLOCK_ROWS));
}

/** rmsnorm_forward for GPUs. */
export const rmsnormForwardGroupSpec: KernelSpec = kept({
  ...forward,
  name: "rmsnorm_forward_group",
  wgsl: forwardGroupWgsl,
  overrides: {},
  workgroups: coverBlocks,
}, "// #import lib/rmsnorm_forward_group.wgsl\n");

/** rmsnorm_backward for GPUs. */
export const rmsnormBackwardGroupSpec: KernelSpec = kept({
  ...backward,
  name: "rmsnorm_backward_group",
  wgsl: backwardGroupWgsl,
  overrides: {},
  workgroups: coverBlocks,
}, "// #import lib/rmsnorm_backward_group.wgsl\n");

/** dgain [C] from partial [blocks,C]. */
export const rmsnormGainGradSpec: KernelSpec = {
  name: "rmsnorm_gain_grad",
  wgsl: gainGradWgsl,
  bindings: bindings(["partial"], ["dgain"]),
  params: u32Params("blocks", "C"),
  overrides: { workgroupSize: 32 },
  workgroups: ({ C = 0 }, overrides) => cover(C, overrides),
};

/**
 * The quickest forward and backward for rows of width C. A GPU wants many invocations on neighbouring addresses; a software
 * adapter runs a workgroup serially and pays for its barriers.
 */
export function rmsnormKernels(C: number, software: boolean): { forward: KernelSpec; backward: KernelSpec } {
  if (!software) return { forward: rmsnormForwardGroupSpec, backward: rmsnormBackwardGroupSpec };
  return C % 4 === 0
    ? { forward: rmsnormForwardVec4Spec, backward: rmsnormBackwardVec4Spec }
    : { forward: rmsnormForwardSpec, backward: rmsnormBackwardSpec };
}
