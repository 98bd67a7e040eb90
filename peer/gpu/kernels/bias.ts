// What GPT-2 adds to rows: a bias to all of them, or the learned vector of each row's position; and the gradients, which are
// sums of rows. A bias' gradient takes two passes in fixed order: by blocks of rows here, then rmsnorm_gain_grad.
import addWgsl from "../../../shaders/bias_add.wgsl" with { type: "text" };
import addVec4Wgsl from "../../../shaders/bias_add_vec4.wgsl" with { type: "text" };
import partialWgsl from "../../../shaders/bias_partial.wgsl" with { type: "text" };
import partialVec4Wgsl from "../../../shaders/bias_partial_vec4.wgsl" with { type: "text" };
import positionsAddWgsl from "../../../shaders/positions_add.wgsl" with { type: "text" };
import positionsGradWgsl from "../../../shaders/positions_grad.wgsl" with { type: "text" };
import { RMSNORM_BLOCK_ROWS } from "../../model/block_tensors.ts";
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, kept, keptFloats, u32Params } from "./define.ts";

/** Values of one vector; fixed in the WGSL. */
const LANES = 4;

const add: KernelSpec = {
  name: "bias_add",
  wgsl: addWgsl,
  bindings: bindings(["bias"], ["x"]),
  params: u32Params("R", "N"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, N = 0 }, overrides) => cover(R * N, overrides),
};

/** x [R,N] += bias [N] in every row. */
export const biasAddSpec: KernelSpec = keptFloats(add);

/** bias_add where N divides by 4. */
export const biasAddVec4Spec: KernelSpec = kept({
  ...add,
  name: "bias_add_vec4",
  wgsl: addVec4Wgsl,
  workgroups: ({ R = 0, N = 0 }, overrides) => cover(R * N / LANES, overrides),
});

const partial: KernelSpec = {
  name: "bias_partial",
  wgsl: partialWgsl,
  bindings: bindings(["dy"], ["partial"]),
  params: u32Params("R", "N"),
  overrides: { workgroupSize: 32 },
  workgroups: ({ R = 0, N = 0 }, overrides) => cover(Math.ceil(R / RMSNORM_BLOCK_ROWS) * N, overrides),
};

/** partial [blocks,N]: sums of dy [R,N] over blocks of rows. */
export const biasPartialSpec: KernelSpec = keptFloats(partial);

/** bias_partial where N divides by 4. */
export const biasPartialVec4Spec: KernelSpec = kept({
  ...partial,
  name: "bias_partial_vec4",
  wgsl: partialVec4Wgsl,
  workgroups: ({ R = 0, N = 0 }, overrides) =>
    cover(Math.ceil(R / RMSNORM_BLOCK_ROWS) * N / LANES, overrides),
});

/** The quickest kernels for rows of N values. */
export function biasKernels(N: number): { add: KernelSpec; partial: KernelSpec } {
  return N % LANES === 0
    ? { add: biasAddVec4Spec, partial: biasPartialVec4Spec }
    : { add: biasAddSpec, partial: biasPartialSpec };
}

/** x [R,C] += table [T,C] at each row's position in its sequence of T. */
export const positionsAddSpec: KernelSpec = {
  name: "positions_add",
  wgsl: positionsAddWgsl,
  bindings: bindings(["table"], ["x"]),
  params: u32Params("R", "T", "C"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ R = 0, C = 0 }, overrides) => cover(R * C, overrides),
};

/** dtable [T,C] from dout [R,C]: the sum over the sequences. */
export const positionsGradSpec: KernelSpec = {
  name: "positions_grad",
  wgsl: positionsGradWgsl,
  bindings: bindings(["dout"], ["dtable"]),
  params: u32Params("R", "T", "C"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ T = 0, C = 0 }, overrides) => cover(T * C, overrides),
};
