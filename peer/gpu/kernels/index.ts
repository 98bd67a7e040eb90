// The list of all kernels, for the tests that hold for every one of them and for warming up a device.
// A new kernel is added here; nothing else should depend on the list's order.
import type { KernelSpec } from "../kernel.ts";
import * as attention from "./attention.ts";
import * as bias from "./bias.ts";
import * as codec from "./codec.ts";
import * as embedding from "./embedding.ts";
import * as gelu from "./gelu.ts";
import * as halves from "./halves.ts";
import * as head from "./head.ts";
import * as layernorm from "./layernorm.ts";
import * as matmul from "./matmul.ts";
import { fusedSpecs } from "./matmul_fused.ts";
import { matmulSpecs } from "./matmul_family.ts";
import * as optimizer from "./optimizer.ts";
import * as rmsnorm from "./rmsnorm.ts";
import * as rotary from "./rotary.ts";
import * as swiglu from "./swiglu.ts";

const specs: readonly KernelSpec[] = [
  attention.attentionForwardSpec,
  attention.attentionForwardTiledSpec,
  attention.attentionForwardTiledWideSpec,
  attention.attentionForwardFlashSpec,
  attention.attentionQueryGradSpec,
  attention.attentionQueryGradTiledSpec,
  attention.attentionQueryGradTiledWideSpec,
  attention.attentionQueryGradFlashSpec,
  attention.attentionKeyValueGradSpec,
  attention.attentionKeyValueGradTiledSpec,
  attention.attentionKeyValueGradTiledWideSpec,
  attention.attentionKeyValueGradFlashSpec,
  bias.biasAddSpec,
  bias.biasAddVec4Spec,
  bias.biasPartialSpec,
  bias.biasPartialVec4Spec,
  bias.positionsAddSpec,
  bias.positionsGradSpec,
  codec.amaxChunksSpec,
  codec.amaxExponentSpec,
  codec.encodeF16sSpec,
  codec.decodeF16sSpec,
  codec.encodeI8b64Spec,
  codec.decodeI8b64Spec,
  embedding.embeddingForwardSpec,
  embedding.embeddingWeightGradSpec,
  gelu.geluForwardSpec,
  gelu.geluForwardVec4Spec,
  gelu.geluBackwardSpec,
  gelu.geluBackwardVec4Spec,
  halves.narrowSpec,
  halves.widenSpec,
  halves.unscaleGradientSpec,
  head.headLossSpec,
  head.headLossGroupSpec,
  head.headLogitGradSpec,
  head.sumRowsSpec,
  layernorm.layernormForwardSpec,
  layernorm.layernormForwardVec4Spec,
  layernorm.layernormForwardGroupSpec,
  layernorm.layernormBackwardSpec,
  layernorm.layernormBackwardVec4Spec,
  layernorm.layernormBackwardGroupSpec,
  ...matmulSpecs,
  ...fusedSpecs,
  matmul.sumSlicesSpec,
  optimizer.gradientAccumulateSpec,
  optimizer.gradientStatsSpec,
  optimizer.gradientNormsSpec,
  optimizer.gradientExponentsSpec,
  optimizer.adamwSpec,
  rmsnorm.rmsnormForwardSpec,
  rmsnorm.rmsnormForwardVec4Spec,
  rmsnorm.rmsnormForwardGroupSpec,
  rmsnorm.rmsnormBackwardSpec,
  rmsnorm.rmsnormBackwardVec4Spec,
  rmsnorm.rmsnormBackwardGroupSpec,
  rmsnorm.rmsnormGainGradSpec,
  rotary.rotarySpec,
  rotary.rotaryVec4Spec,
  swiglu.swigluForwardSpec,
  swiglu.swigluForwardVec4Spec,
  swiglu.swigluBackwardSpec,
  swiglu.swigluBackwardVec4Spec,
];

/** Each kernel, and behind it its form in halves where there is one. */
export const kernelSpecs: readonly KernelSpec[] = specs.flatMap((spec) =>
  spec.halves === undefined ? [spec] : [spec, spec.halves]
);
