// The SwiGLU activation on packed rows [R, 2I], gate first then up (GLU variants, arXiv 2002.05202).
// The backward recomputes the sigmoid from gate_up; nothing else needs to be kept.
import backwardWgsl from "../../../shaders/swiglu_backward.wgsl" with { type: "text" };
import forwardWgsl from "../../../shaders/swiglu_forward.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, u32Params } from "./define.ts";

/** Columns of one invocation; fixed in the WGSL. */
const COLUMNS = 4;

/** out [R,I] from gate_up [R,2I]. */
export const swigluForwardSpec: KernelSpec = {
  name: "swiglu_forward",
  wgsl: forwardWgsl,
  bindings: bindings(["gate_up"], ["out"]),
  params: u32Params("R", "I"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, I = 0 }, overrides) => cover(R * Math.ceil(I / COLUMNS), overrides),
};

/** dgate_up [R,2I] from gate_up [R,2I] and dout [R,I]. */
export const swigluBackwardSpec: KernelSpec = {
  name: "swiglu_backward",
  wgsl: backwardWgsl,
  bindings: bindings(["gate_up", "dout"], ["dgate_up"]),
  params: u32Params("R", "I"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, I = 0 }, overrides) => cover(R * Math.ceil(I / COLUMNS), overrides),
};
