// Rotary position embedding, in place on the packed q, k, v rows, and the table of angles that it and attention read.
// The table is computed here, in double precision, because adapters disagree about sin and cos.
import wgsl from "../../../shaders/rotary.wgsl" with { type: "text" };
import vec4Wgsl from "../../../shaders/rotary_vec4.wgsl" with { type: "text" };
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, kept, u32Params } from "./define.ts";

/**
 * Rotates the first H + Hk heads of qkv [R, (H+2Hk)D] in place by angles [T, D/2, 2]; direction 1 forward, -1 back
 * (which turns the gradient of rotated heads into that of plain ones).
 */
export const rotarySpec: KernelSpec = {
  name: "rotary",
  wgsl,
  bindings: bindings(["angles"], ["qkv"]),
  params: [...u32Params("R", "T", "H", "Hk", "D"), { name: "direction", type: "f32" }],
  overrides: { workgroupSize: 32 },
  workgroups: ({ R = 0, H = 0, Hk = 0 }, overrides) => cover(R * (H + Hk), overrides),
};

/** rotary where D divides by 8. */
export const rotaryVec4Spec: KernelSpec = kept({ ...rotarySpec, name: "rotary_vec4", wgsl: vec4Wgsl });

/** The quickest kernel for heads of width D. */
export function rotaryKernel(D: number): KernelSpec {
  return D % 8 === 0 ? rotaryVec4Spec : rotarySpec;
}

/** [T, D/2, 2] = cos and sin of t * theta^(-2i/D), for t < T, i < D/2 (RoFormer, arXiv 2104.09864, section 3.2). */
export function rotaryTable(T: number, D: number, theta: number): Float32Array<ArrayBuffer> {
  const table = new Float32Array(T * D);
  const half = D / 2;
  for (let t = 0; t < T; t++) {
    for (let i = 0; i < half; i++) {
      const angle = t * theta ** (-2 * i / D);
      table[(t * half + i) * 2] = Math.cos(angle);
      table[(t * half + i) * 2 + 1] = Math.sin(angle);
    }
  }
  return table;
}

/** The table of a model that turns nothing: multiplying by it gives the same bits back. */
export function noRotation(T: number, D: number): Float32Array<ArrayBuffer> {
  return Float32Array.from({ length: T * D }, (_, i) => i % 2 === 0 ? 1 : 0);
}
