// The optimizer on the GPU, for a stage that nobody else holds: sum of the step's gradients, norm of their mean, AdamW and the
// next exponents. The f32 twin of peer/exact/optimizer.ts, whose integers only several holders need. Order of a step:
// gradient_accumulate per micro-batch; gradient_stats, gradient_norms; with the commit gradient_exponents and adamw.
import accumulateWgsl from "../../../shaders/gradient_accumulate.wgsl" with { type: "text" };
import adamwWgsl from "../../../shaders/adamw.wgsl" with { type: "text" };
import exponentsWgsl from "../../../shaders/gradient_exponents.wgsl" with { type: "text" };
import normsWgsl from "../../../shaders/gradient_norms.wgsl" with { type: "text" };
import statsWgsl from "../../../shaders/gradient_stats.wgsl" with { type: "text" };
import { STATS_LANES } from "../../model/optimizer_tensors.ts";
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, u32Params } from "./define.ts";

/** Vectors that one invocation takes; fixed in the WGSL. */
const TURNS = 4;

/** sum [4 count] += gradient; counters [2] += values cut at 2^40, and values that were not finite and count as 0. */
export const gradientAccumulateSpec: KernelSpec = {
  name: "gradient_accumulate",
  wgsl: accumulateWgsl,
  bindings: bindings(["gradient"], ["sum", "counters"]),
  params: u32Params("count"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ count = 0 }, overrides) => cover(Math.ceil(count / TURNS), overrides),
};

/**
 * squares and peaks [*, STATS_LANES] of `blocks` blocks from firstBlock on, of the mean gradient sum * factors[0]; sum holds
 * values [partBegin, partEnd) of the flat array. The parts of an array are taken in order.
 */
export const gradientStatsSpec: KernelSpec = {
  name: "gradient_stats",
  wgsl: statsWgsl,
  bindings: bindings(["blocks", "factors", "sum"], ["squares", "peaks"]),
  params: u32Params("firstBlock", "blocks", "partBegin", "partEnd"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ blocks = 0 }, overrides) => cover(blocks * STATS_LANES, overrides),
};

/** norms [count], the sums of the squares of each chunk of blocks. */
export const gradientNormsSpec: KernelSpec = {
  name: "gradient_norms",
  wgsl: normsWgsl,
  bindings: bindings(["chunks", "squares"], ["norms"]),
  params: u32Params("count"),
  overrides: { workgroupSize: 32 },
  workgroups: ({ count = 0 }, overrides) => cover(count, overrides),
};

/** exponents [count] of the next step from peaks: nextExponent() of peer/exact/optimizer.ts, bit for bit. */
export const gradientExponentsSpec: KernelSpec = {
  name: "gradient_exponents",
  wgsl: exponentsWgsl,
  bindings: bindings(["factors", "peaks"], ["exponents"]),
  params: u32Params("count"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ count = 0 }, overrides) => cover(count, overrides),
};

/** weights, m and v [4 count] one step further; the first of them belongs to granule `granule` of the flat array. */
export const adamwSpec: KernelSpec = {
  name: "adamw",
  wgsl: adamwWgsl,
  bindings: bindings(["factors", "decays", "sum"], ["weights", "m", "v"]),
  params: u32Params("count", "granule"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ count = 0 }, overrides) => cover(Math.ceil(count / TURNS), overrides),
};
