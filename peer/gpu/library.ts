// The WGSL library files that kernels may import, and the host side of lib/dispatch.wgsl.
// Add a file here when a second kernel needs the same function; a kernel's own code stays in its own file.
import biasAddWgsl from "../../shaders/lib/bias_add.wgsl" with { type: "text" };
import biasPartialWgsl from "../../shaders/lib/bias_partial.wgsl" with { type: "text" };
import dispatchWgsl from "../../shaders/lib/dispatch.wgsl" with { type: "text" };
import flashTileWgsl from "../../shaders/lib/flash_tile.wgsl" with { type: "text" };
import geluWgsl from "../../shaders/lib/gelu.wgsl" with { type: "text" };
import geluBackwardWgsl from "../../shaders/lib/gelu_backward.wgsl" with { type: "text" };
import geluForwardWgsl from "../../shaders/lib/gelu_forward.wgsl" with { type: "text" };
import halvesWgsl from "../../shaders/lib/halves.wgsl" with { type: "text" };
import halfWgsl from "../../shaders/lib/half.wgsl" with { type: "text" };
import keptF16Wgsl from "../../shaders/lib/kept_f16.wgsl" with { type: "text" };
import keptF32Wgsl from "../../shaders/lib/kept_f32.wgsl" with { type: "text" };
import lanesScalarWgsl from "../../shaders/lib/lanes_scalar.wgsl" with { type: "text" };
import lanesVec2Wgsl from "../../shaders/lib/lanes_vec2.wgsl" with { type: "text" };
import lanesVec4Wgsl from "../../shaders/lib/lanes_vec4.wgsl" with { type: "text" };
import layernormBackwardGroupWgsl from "../../shaders/lib/layernorm_backward_group.wgsl" with {
  type: "text",
};
import layernormBackwardWgsl from "../../shaders/lib/layernorm_backward.wgsl" with { type: "text" };
import layernormForwardGroupWgsl from "../../shaders/lib/layernorm_forward_group.wgsl" with { type: "text" };
import layernormForwardWgsl from "../../shaders/lib/layernorm_forward.wgsl" with { type: "text" };
import lossPlainWgsl from "../../shaders/lib/loss_plain.wgsl" with { type: "text" };
import lossScaledWgsl from "../../shaders/lib/loss_scaled.wgsl" with { type: "text" };
import optimizerWgsl from "../../shaders/lib/optimizer.wgsl" with { type: "text" };
import rmsnormBackwardGroupWgsl from "../../shaders/lib/rmsnorm_backward_group.wgsl" with { type: "text" };
import rmsnormBackwardWgsl from "../../shaders/lib/rmsnorm_backward.wgsl" with { type: "text" };
import rmsnormForwardGroupWgsl from "../../shaders/lib/rmsnorm_forward_group.wgsl" with { type: "text" };
import rmsnormForwardWgsl from "../../shaders/lib/rmsnorm_forward.wgsl" with { type: "text" };
import rotaryWgsl from "../../shaders/lib/rotary.wgsl" with { type: "text" };
import scaledWgsl from "../../shaders/lib/scaled.wgsl" with { type: "text" };
import sigmoidWgsl from "../../shaders/lib/sigmoid.wgsl" with { type: "text" };
import swigluBackwardWgsl from "../../shaders/lib/swiglu_backward.wgsl" with { type: "text" };
import swigluForwardWgsl from "../../shaders/lib/swiglu_forward.wgsl" with { type: "text" };
import tileWgsl from "../../shaders/lib/tile.wgsl" with { type: "text" };
import turnTileWgsl from "../../shaders/lib/turn_tile.wgsl" with { type: "text" };
import { matmulTexts } from "./kernels/matmul_texts.ts";

export const shaderLibrary: Readonly<Record<string, string>> = {
  "lib/bias_add.wgsl": biasAddWgsl,
  "lib/bias_partial.wgsl": biasPartialWgsl,
  "lib/dispatch.wgsl": dispatchWgsl,
  "lib/flash_tile.wgsl": flashTileWgsl,
  "lib/gelu.wgsl": geluWgsl,
  "lib/gelu_backward.wgsl": geluBackwardWgsl,
  "lib/gelu_forward.wgsl": geluForwardWgsl,
  "lib/half.wgsl": halfWgsl,
  "lib/halves.wgsl": halvesWgsl,
  "lib/kept_f16.wgsl": keptF16Wgsl,
  "lib/kept_f32.wgsl": keptF32Wgsl,
  "lib/lanes_scalar.wgsl": lanesScalarWgsl,
  "lib/lanes_vec2.wgsl": lanesVec2Wgsl,
  "lib/lanes_vec4.wgsl": lanesVec4Wgsl,
  "lib/layernorm_backward_group.wgsl": layernormBackwardGroupWgsl,
  "lib/layernorm_backward.wgsl": layernormBackwardWgsl,
  "lib/layernorm_forward_group.wgsl": layernormForwardGroupWgsl,
  "lib/layernorm_forward.wgsl": layernormForwardWgsl,
  "lib/loss_plain.wgsl": lossPlainWgsl,
  "lib/loss_scaled.wgsl": lossScaledWgsl,
  ...matmulTexts,
  "lib/optimizer.wgsl": optimizerWgsl,
  "lib/rmsnorm_backward_group.wgsl": rmsnormBackwardGroupWgsl,
  "lib/rmsnorm_backward.wgsl": rmsnormBackwardWgsl,
  "lib/rmsnorm_forward_group.wgsl": rmsnormForwardGroupWgsl,
  "lib/rmsnorm_forward.wgsl": rmsnormForwardWgsl,
  "lib/rotary.wgsl": rotaryWgsl,
  "lib/scaled.wgsl": scaledWgsl,
  "lib/sigmoid.wgsl": sigmoidWgsl,
  "lib/swiglu_backward.wgsl": swigluBackwardWgsl,
  "lib/swiglu_forward.wgsl": swigluForwardWgsl,
  "lib/tile.wgsl": tileWgsl,
  "lib/turn_tile.wgsl": turnTileWgsl,
};

/** WebGPU's default and usual limit of workgroups per dimension. */
export const WORKGROUPS_PER_DIMENSION_MAX = 65_535;

/** Spreads `count` workgroups over x and y so that neither passes the limit; the kernel drops the surplus. */
export function spreadWorkgroups(count: number): [number, number, number] {
  const y = Math.max(1, Math.ceil(count / WORKGROUPS_PER_DIMENSION_MAX));
  return [Math.max(1, Math.ceil(count / y)), y, 1];
}
