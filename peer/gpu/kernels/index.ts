// The list of all kernels, for the tests that hold for every one of them and for warming up a device.
// A new kernel is added here; nothing else should depend on the list's order.
import type { KernelSpec } from "../kernel.ts";
import * as attention from "./attention.ts";
import * as codec from "./codec.ts";
import * as embedding from "./embedding.ts";
import * as halves from "./halves.ts";
import * as head from "./head.ts";
import * as matmul from "./matmul.ts";
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
  codec.amaxChunksSpec,
  codec.amaxExponentSpec,
  codec.encodeF16sSpec,
  codec.decodeF16sSpec,
  codec.encodeI8b64Spec,
  codec.decodeI8b64Spec,
  embedding.embeddingForwardSpec,
  embedding.embeddingWeightGradSpec,
  halves.narrowSpec,
  halves.widenSpec,
  halves.unscaleGradientSpec,
  head.headLossSpec,
  head.headLossGroupSpec,
  head.headLogitGradSpec,
  head.sumRowsSpec,
  ...matmulSpecs,
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
