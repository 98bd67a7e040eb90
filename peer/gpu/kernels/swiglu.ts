// The SwiGLU activation on packed rows [R, 2I], gate first then up (GLU variants, arXiv 2002.05202), for any width and
// in vectors of four. The backward works in place and leaves the activation, so that nothing else needs to be kept.
import backwardWgsl from "../../../shaders/swiglu_backward.wgsl" with { type: "text" };
import backwardVec4Wgsl from "../../../shaders/swiglu_backward_vec4.wgsl" with { type: "text" };
import forwardWgsl from "../../../shaders/swiglu_forward.wgsl" with { type: "text" };
import forwardVec4Wgsl from "../../../shaders/swiglu_forward_vec4.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, kept, keptFloats, u32Params } from "./define.ts";

/** Values of one vector; fixed in the WGSL. */
const LANES = 4;

const forward: KernelSpec = {
  name: "swiglu_forward",
  wgsl: forwardWgsl,
  bindings: bindings(["gate_up"], ["out"]),
  params: u32Params("R", "I"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, I = 0 }, overrides) => cover(R * I, overrides),
};

/** out [R,I] from gate_up [R,2I]. */
export const swigluForwardSpec: KernelSpec = keptFloats(forward);

/** swiglu_forward where I divides by 4. */
export const swigluForwardVec4Spec: KernelSpec = kept({
  ...forward,
  name: "swiglu_forward_vec4",
  wgsl: forwardVec4Wgsl,
  workgroups: ({ R = 0, I = 0 }, overrides) => cover(R * I / LANES, overrides),
});

const backward: KernelSpec = {
  name: "swiglu_backward",
  wgsl: backwardWgsl,
  bindings: bindings([], ["gate_up", "act"]),
  params: u32Params("R", "I"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, I = 0 }, overrides) => cover(R * I, overrides),
};

/** In place: gate_up [R,2I] becomes its gradient; act [R,I], which holds the output's gradient, becomes the output. */
export const swigluBackwardSpec: KernelSpec = keptFloats(backward);

/** swiglu_backward where I divides by 4. */
export const swigluBackwardVec4Spec: KernelSpec = kept({
  ...backward,
  name: "swiglu_backward_vec4",
  wgsl: backwardVec4Wgsl,
  workgroups: ({ R = 0, I = 0 }, overrides) => cover(R * I / LANES, overrides),
});

/** The quickest forward and backward for rows of I values. */
export function swigluKernels(I: number): { forward: KernelSpec; backward: KernelSpec } {
  return I % LANES === 0
    ? { forward: swigluForwardVec4Spec, backward: swigluBackwardVec4Spec }
    : { forward: swigluForwardSpec, backward: swigluBackwardSpec };
}
