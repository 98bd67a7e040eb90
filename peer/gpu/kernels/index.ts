// The list of all kernels, for the tests that hold for every one of them and for warming up a device.
// A new kernel is added here; nothing else should depend on the list's order.
import type { KernelSpec } from "../kernel.ts";
import * as attention from "./attention.ts";
import * as codec from "./codec.ts";
import * as embedding from "./embedding.ts";
import * as head from "./head.ts";
import * as matmul from "./matmul.ts";
import * as rmsnorm from "./rmsnorm.ts";
import * as rotary from "./rotary.ts";
import * as swiglu from "./swiglu.ts";

export const kernelSpecs: readonly KernelSpec[] = [
  attention.attentionForwardSpec,
  attention.attentionForwardTiledSpec,
  attention.attentionDeltaSpec,
  attention.attentionQueryGradSpec,
  attention.attentionQueryGradTiledSpec,
  attention.attentionKeyValueGradSpec,
  attention.attentionKeyValueGradTiledSpec,
  codec.amaxChunksSpec,
  codec.amaxExponentSpec,
  codec.encodeF16sSpec,
  codec.decodeF16sSpec,
  codec.encodeI8b64Spec,
  codec.decodeI8b64Spec,
  embedding.embeddingForwardSpec,
  embedding.embeddingWeightGradSpec,
  head.headLossSpec,
  head.headLogitGradSpec,
  head.sumRowsSpec,
  matmul.matmulNnSpec,
  matmul.matmulNnVec4Spec,
  matmul.matmulNnWideSpec,
  matmul.matmulNtSpec,
  matmul.matmulNtVec4Spec,
  matmul.matmulNtWideSpec,
  matmul.matmulTnSpec,
  matmul.matmulTnVec4Spec,
  matmul.matmulTnWideSpec,
  rmsnorm.rmsnormForwardSpec,
  rmsnorm.rmsnormInputGradSpec,
  rmsnorm.rmsnormWeightGradSpec,
  rotary.rotarySpec,
  swiglu.swigluForwardSpec,
  swiglu.swigluBackwardSpec,
];
