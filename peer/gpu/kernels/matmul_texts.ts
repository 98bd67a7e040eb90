// The WGSL that matrix products are linked from: loads by layout and access, operands by how they are stored, stores by
// epilogue, loops by tile. Only texts; which of them make up a kernel is said in matmul_family.ts and matmul_fused.ts.
import bias from "../../../shaders/lib/matmul_bias.wgsl" with { type: "text" };
import floats from "../../../shaders/lib/matmul_floats.wgsl" with { type: "text" };
import gelu from "../../../shaders/lib/matmul_gelu.wgsl" with { type: "text" };
import geluBackward from "../../../shaders/lib/matmul_gelu_backward.wgsl" with { type: "text" };
import halves from "../../../shaders/lib/matmul_halves.wgsl" with { type: "text" };
import halvesBoth from "../../../shaders/lib/matmul_halves_both.wgsl" with { type: "text" };
import halvesIn from "../../../shaders/lib/matmul_halves_in.wgsl" with { type: "text" };
import nnScalar from "../../../shaders/lib/matmul_nn_scalar.wgsl" with { type: "text" };
import nnVec4 from "../../../shaders/lib/matmul_nn_vec4.wgsl" with { type: "text" };
import ntScalar from "../../../shaders/lib/matmul_nt_scalar.wgsl" with { type: "text" };
import ntVec4 from "../../../shaders/lib/matmul_nt_vec4.wgsl" with { type: "text" };
import params from "../../../shaders/lib/matmul_params.wgsl" with { type: "text" };
import quads16 from "../../../shaders/lib/matmul_quads_16.wgsl" with { type: "text" };
import quads32 from "../../../shaders/lib/matmul_quads_32.wgsl" with { type: "text" };
import registers from "../../../shaders/lib/matmul_registers.wgsl" with { type: "text" };
import rotary from "../../../shaders/lib/matmul_rotary.wgsl" with { type: "text" };
import scalar from "../../../shaders/lib/matmul_scalar.wgsl" with { type: "text" };
import shared from "../../../shaders/lib/matmul_shared.wgsl" with { type: "text" };
import swiglu from "../../../shaders/lib/matmul_swiglu.wgsl" with { type: "text" };
import swigluBackward from "../../../shaders/lib/matmul_swiglu_backward.wgsl" with { type: "text" };
import tnScalar from "../../../shaders/lib/matmul_tn_scalar.wgsl" with { type: "text" };
import tnVec4 from "../../../shaders/lib/matmul_tn_vec4.wgsl" with { type: "text" };
import twosFloats from "../../../shaders/lib/matmul_twos_floats.wgsl" with { type: "text" };
import twosHalves from "../../../shaders/lib/matmul_twos_halves.wgsl" with { type: "text" };
import vec4 from "../../../shaders/lib/matmul_vec4.wgsl" with { type: "text" };
import whole from "../../../shaders/lib/matmul_whole.wgsl" with { type: "text" };
import wide from "../../../shaders/lib/matmul_wide.wgsl" with { type: "text" };

/** For the linker's library, by path. */
export const matmulTexts: Readonly<Record<string, string>> = {
  "lib/matmul_bias.wgsl": bias,
  "lib/matmul_floats.wgsl": floats,
  "lib/matmul_gelu.wgsl": gelu,
  "lib/matmul_gelu_backward.wgsl": geluBackward,
  "lib/matmul_halves.wgsl": halves,
  "lib/matmul_halves_both.wgsl": halvesBoth,
  "lib/matmul_halves_in.wgsl": halvesIn,
  "lib/matmul_nn_scalar.wgsl": nnScalar,
  "lib/matmul_nn_vec4.wgsl": nnVec4,
  "lib/matmul_nt_scalar.wgsl": ntScalar,
  "lib/matmul_nt_vec4.wgsl": ntVec4,
  "lib/matmul_params.wgsl": params,
  "lib/matmul_quads_16.wgsl": quads16,
  "lib/matmul_quads_32.wgsl": quads32,
  "lib/matmul_registers.wgsl": registers,
  "lib/matmul_rotary.wgsl": rotary,
  "lib/matmul_scalar.wgsl": scalar,
  "lib/matmul_shared.wgsl": shared,
  "lib/matmul_swiglu.wgsl": swiglu,
  "lib/matmul_swiglu_backward.wgsl": swigluBackward,
  "lib/matmul_tn_scalar.wgsl": tnScalar,
  "lib/matmul_tn_vec4.wgsl": tnVec4,
  "lib/matmul_twos_floats.wgsl": twosFloats,
  "lib/matmul_twos_halves.wgsl": twosHalves,
  "lib/matmul_vec4.wgsl": vec4,
  "lib/matmul_whole.wgsl": whole,
  "lib/matmul_wide.wgsl": wide,
};
