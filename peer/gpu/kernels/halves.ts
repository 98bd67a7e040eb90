// Where f32 meets what is kept in halves (`dtype` f16): into a slot, out of it, and the loss scale's way in and out. The other
// kernels have a form in halves of their own (KernelSpec.halves).
import narrowWgsl from "../../../shaders/narrow.wgsl" with { type: "text" };
import unscaleWgsl from "../../../shaders/unscale_gradient.wgsl" with { type: "text" };
import widenWgsl from "../../../shaders/widen.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, u32Params } from "./define.ts";

/** Places in `scales`: no factor, the loss scale, and its inverse. */
export const ScaleFactor = { none: 0, up: 1, down: 2 } as const;

/** `scales` of a loss scale of 2^exponent. */
export function scaleFactors(exponent: number): Float32Array<ArrayBuffer> {
  return Float32Array.of(1, 2 ** exponent, 2 ** -exponent, 0);
}

/** halves [4 count] of values [4 count] times scales[factor]. */
export const narrowSpec: KernelSpec = {
  name: "narrow",
  wgsl: narrowWgsl,
  bindings: bindings(["values", "scales"], ["halves"]),
  params: u32Params("count", "factor"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ count = 0 }, overrides) => cover(count, overrides),
};

/** values [4 count] of halves [4 count] times scales[factor]; guard 1 makes what is not finite 0 and sets overflow [1]. */
export const widenSpec: KernelSpec = {
  name: "widen",
  wgsl: widenWgsl,
  bindings: bindings(["halves", "scales"], ["values", "overflow"]),
  params: u32Params("count", "factor", "guard"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ count = 0 }, overrides) => cover(count, overrides),
};

/** Vectors that one invocation takes; fixed in the WGSL. */
const TURNS = 4;

/** gradient [4 count] times scales[factor], in place; first 1: its first value is not finite if overflow [1] is set. */
export const unscaleGradientSpec: KernelSpec = {
  name: "unscale_gradient",
  wgsl: unscaleWgsl,
  bindings: bindings(["scales", "overflow"], ["gradient"]),
  params: u32Params("count", "factor", "first"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ count = 0 }, overrides) => cover(Math.ceil(count / TURNS), overrides),
};
