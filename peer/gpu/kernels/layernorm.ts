// Layer normalisation with gain and bias (arXiv 1607.06450): forward and both gradients, for any width, in vectors of four, and
// in workgroups for GPUs. The twin of rmsnorm.ts: the forward keeps mean and 1/deviation per row, so that the gradients do not
// reduce again, and the blocks of partial sums are rmsnorm's, whose second pass adds them (with 2 C columns: gain, then bias).
import backwardWgsl from "../../../shaders/layernorm_backward.wgsl" with { type: "text" };
import backwardGroupWgsl from "../../../shaders/layernorm_backward_group.wgsl" with { type: "text" };
import backwardVec4Wgsl from "../../../shaders/layernorm_backward_vec4.wgsl" with { type: "text" };
import forwardWgsl from "../../../shaders/layernorm_forward.wgsl" with { type: "text" };
import forwardGroupWgsl from "../../../shaders/layernorm_forward_group.wgsl" with { type: "text" };
import forwardVec4Wgsl from "../../../shaders/layernorm_forward_vec4.wgsl" with { type: "text" };
import { RMSNORM_BLOCK_ROWS } from "../../model/block_tensors.ts";
import type { KernelSpec } from "../kernel.ts";
import { spreadWorkgroups } from "../library.ts";
import { bindings, cover, kept, keptFloats, u32Params } from "./define.ts";

const forward: KernelSpec = {
  name: "layernorm_forward",
  wgsl: forwardWgsl,
  bindings: bindings(["x", "affine"], ["y", "stats"]),
  params: [...u32Params("R", "C"), { name: "eps", type: "f32" }],
  overrides: { workgroupSize: 32 },
  workgroups: ({ R = 0 }, overrides) => cover(R, overrides),
};

/** y [R,C] and stats [R,2] (mean, 1/deviation) from x [R,C] and affine [2,C] (gain, bias); eps is added to the variance. */
export const layernormForwardSpec: KernelSpec = keptFloats(forward);

/** layernorm_forward where C divides by 4. */
export const layernormForwardVec4Spec: KernelSpec = kept({
  ...forward,
  name: "layernorm_forward_vec4",
  wgsl: forwardVec4Wgsl,
});

const backward: KernelSpec = {
  name: "layernorm_backward",
  wgsl: backwardWgsl,
  bindings: bindings(["dy", "affine", "stats", "dres"], ["x", "dx", "partial"]),
  params: u32Params("R", "C", "residual"),
  overrides: { workgroupSize: 8 },
  workgroups: ({ R = 0 }, overrides) => cover(Math.ceil(R / RMSNORM_BLOCK_ROWS), overrides),
};

/**
 * dx [R,C] from dy, x [R,C], affine [2,C], stats [R,2]; residual 1 adds dres [R,C], with 0 bind any read-only buffer there.
 * Also x becomes the norm's output, and partial [blocks,2,C] holds the gradients of gain and bias for each block of rows.
 */
export const layernormBackwardSpec: KernelSpec = keptFloats(backward);

/** layernorm_backward where C divides by 4. */
export const layernormBackwardVec4Spec: KernelSpec = kept({
  ...backward,
  name: "layernorm_backward_vec4",
  wgsl: backwardVec4Wgsl,
});

/** One workgroup per block of rows. */
function coverBlocks({ R = 0 }: Readonly<Record<string, number>>): [number, number, number] {
  return spreadWorkgroups(Math.ceil(R / RMSNORM_BLOCK_ROWS));
}

/** layernorm_forward for GPUs. */
export const layernormForwardGroupSpec: KernelSpec = kept({
  ...forward,
  name: "layernorm_forward_group",
  wgsl: forwardGroupWgsl,
  overrides: {},
  workgroups: coverBlocks,
}, "// #import lib/layernorm_forward_group.wgsl\n");

/** layernorm_backward for GPUs. */
export const layernormBackwardGroupSpec: KernelSpec = kept({
  ...backward,
  name: "layernorm_backward_group",
  wgsl: backwardGroupWgsl,
  overrides: {},
  workgroups: coverBlocks,
}, "// #import lib/layernorm_backward_group.wgsl\n");

/** The quickest forward and backward for rows of width C; as rmsnormKernels, and for its reasons. */
export function layernormKernels(
  C: number,
  software: boolean,
): { forward: KernelSpec; backward: KernelSpec } {
  if (!software) return { forward: layernormForwardGroupSpec, backward: layernormBackwardGroupSpec };
  return C % 4 === 0
    ? { forward: layernormForwardVec4Spec, backward: layernormBackwardVec4Spec }
    : { forward: layernormForwardSpec, backward: layernormBackwardSpec };
}
