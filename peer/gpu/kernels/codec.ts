// The boundary codecs on the GPU, byte-identical in format with peer/codec/codec.ts (raw32 is a buffer copy).
// `encoded` holds the exponent as i32 in word 0 and the payload after it, so that one readback brings all of it.
// Encode: amax_chunks, amax_exponent, encode_*. An exponent above 100 means that the values were not finite or far too
// large: the reader must refuse it. Decode: upload exponent and payload (after checkEncoded), decode_*.
import amaxChunksWgsl from "../../../shaders/amax_chunks.wgsl" with { type: "text" };
import amaxExponentWgsl from "../../../shaders/amax_exponent.wgsl" with { type: "text" };
import decodeF16sWgsl from "../../../shaders/decode_f16s.wgsl" with { type: "text" };
import decodeI8b64Wgsl from "../../../shaders/decode_i8b64.wgsl" with { type: "text" };
import encodeF16sWgsl from "../../../shaders/encode_f16s.wgsl" with { type: "text" };
import encodeI8b64Wgsl from "../../../shaders/encode_i8b64.wgsl" with { type: "text" };
import { I8_BLOCK } from "../../wire/frame.ts";
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, u32Params } from "./define.ts";

/** Values that one invocation codes or decodes; fixed in the WGSL. */
const F16S_VALUES = 2;
const I8B64_ENCODED = 2 * I8_BLOCK;
const I8B64_DECODED = 4;

/** maxima [ceil(n/chunk)] (f32 bits, no sign) of values [n]. */
export const amaxChunksSpec: KernelSpec = {
  name: "amax_chunks",
  wgsl: amaxChunksWgsl,
  bindings: bindings(["values"], ["maxima"]),
  params: u32Params("n", "chunk"),
  overrides: { workgroupSize: 32 },
  workgroups: ({ n = 0, chunk = 1 }, overrides) => cover(Math.ceil(n / chunk), overrides),
};

/** Word 0 of encoded, the tensor's exponent, from maxima [count]. */
export const amaxExponentSpec: KernelSpec = {
  name: "amax_exponent",
  wgsl: amaxExponentWgsl,
  bindings: bindings(["maxima"], ["encoded"]),
  params: u32Params("count"),
  overrides: {},
  workgroups: () => [1, 1, 1],
};

/** The payload words of encoded from values [n] and word 0. */
export const encodeF16sSpec: KernelSpec = {
  name: "encode_f16s",
  wgsl: encodeF16sWgsl,
  bindings: bindings(["values"], ["encoded"]),
  params: u32Params("n"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ n = 0 }, overrides) => cover(Math.ceil(n / F16S_VALUES), overrides),
};

/** values [n] from encoded. */
export const decodeF16sSpec: KernelSpec = {
  name: "decode_f16s",
  wgsl: decodeF16sWgsl,
  bindings: bindings(["encoded"], ["values"]),
  params: u32Params("n"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ n = 0 }, overrides) => cover(Math.ceil(n / F16S_VALUES), overrides),
};

/** The payload words of encoded from values [n] and word 0. */
export const encodeI8b64Spec: KernelSpec = {
  name: "encode_i8b64",
  wgsl: encodeI8b64Wgsl,
  bindings: bindings(["values"], ["encoded"]),
  params: u32Params("n"),
  overrides: { workgroupSize: 16 },
  workgroups: ({ n = 0 }, overrides) => cover(Math.ceil(n / I8B64_ENCODED), overrides),
};

/** values [n] from encoded. */
export const decodeI8b64Spec: KernelSpec = {
  name: "decode_i8b64",
  wgsl: decodeI8b64Wgsl,
  bindings: bindings(["encoded"], ["values"]),
  params: u32Params("n"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ n = 0 }, overrides) => cover(Math.ceil(n / I8B64_DECODED), overrides),
};
