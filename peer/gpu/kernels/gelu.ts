// GELU with the bias before it (arXiv 1606.08415, the tanh form that GPT-2 has), for any width and in vectors of four. The
// backward works in place and leaves the activation, so that nothing else needs to be kept.
import backwardWgsl from "../../../shaders/gelu_backward.wgsl" with { type: "text" };
import backwardVec4Wgsl from "../../../shaders/gelu_backward_vec4.wgsl" with { type: "text" };
import forwardWgsl from "../../../shaders/gelu_forward.wgsl" with { type: "text" };
import forwardVec4Wgsl from "../../../shaders/gelu_forward_vec4.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, kept, keptFloats, u32Params } from "./define.ts";

/** Values of one vector; fixed in the WGSL. */
const LANES = 4;

const forward: KernelSpec = {
  name: "gelu_forward",
  wgsl: forwardWgsl,
  bindings: bindings(["up", "bias"], ["out"]),
  params: u32Params("R", "I"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, I = 0 }, overrides) => cover(R * I, overrides),
};

/** out [R,I] = gelu(up [R,I] + bias [I]). */
export const geluForwardSpec: KernelSpec = keptFloats(forward);

/** gelu_forward where I divides by 4. */
export const geluForwardVec4Spec: KernelSpec = kept({
  ...forward,
  name: "gelu_forward_vec4",
  wgsl: forwardVec4Wgsl,
  workgroups: ({ R = 0, I = 0 }, overrides) => cover(R * I / LANES, overrides),
});

const backward: KernelSpec = {
  name: "gelu_backward",
  wgsl: backwardWgsl,
  bindings: bindings(["bias"], ["up", "act"]),
  params: u32Params("R", "I"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, I = 0 }, overrides) => cover(R * I, overrides),
};

/** In place: up [R,I] becomes the gradient of itself and of the bias' rows; act, which holds the output's, the output. */
export const geluBackwardSpec: KernelSpec = keptFloats(backward);

/** gelu_backward where I divides by 4. */
export const geluBackwardVec4Spec: KernelSpec = kept({
  ...backward,
  name: "gelu_backward_vec4",
  wgsl: backwardVec4Wgsl,
  workgroups: ({ R = 0, I = 0 }, overrides) => cover(R * I / LANES, overrides),
});

/** The quickest forward and backward for rows of I values. */
export function geluKernels(I: number): { forward: KernelSpec; backward: KernelSpec } {
  return I % LANES === 0
    ? { forward: geluForwardVec4Spec, backward: geluBackwardVec4Spec }
    : { forward: geluForwardSpec, backward: geluBackwardSpec };
}
