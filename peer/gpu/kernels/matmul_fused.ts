// Matrix products that do what follows them before they store: every member of the family, in f32 and in halves. What they
// do is said in shaders/lib/matmul_<fusion>.wgsl. Which product gets one is decided elsewhere (peer/engine/wgsl_fused.ts).
import type { KernelSpec } from "../kernel.ts";
import { bindings, u32Params } from "./define.ts";
import {
  dividesByFour,
  MATMUL_FAMILY,
  type MatmulLayout,
  type MatmulMember,
  type MatmulShape,
  memberKernel,
  type MemberTexts,
} from "./matmul_family.ts";

/**
 * rotary: rows of packed heads, of which queries and keys are rotated. swiglu: gate and up, and the activation of both.
 * swiglu_backward: the gradient of an activation, taken on to those of gate and up. bias: a bias added to every row, and a
 * residual if `residual` is 1. gelu, gelu_backward: the same as swiglu's, for GELU with its bias.
 */
export type MatmulFusion = "rotary" | "swiglu" | "swiglu_backward" | "bias" | "gelu" | "gelu_backward";

interface Fusion extends Pick<MemberTexts, "bindings" | "params"> {
  layout: MatmulLayout;
  /** The files that say how operands are stored. */
  operands: Readonly<Record<FusedStorage, readonly string[]>>;
}

/** Activations in, activations out, in f32 or with `dtype` f16 in halves. */
export type FusedStorage = "floats" | "halves";

const FOURS = { floats: ["matmul_floats"], halves: ["matmul_halves"] };
const TWOS = {
  floats: ["matmul_floats", "matmul_twos_floats"],
  halves: ["matmul_halves", "matmul_twos_halves"],
};

const FUSIONS: Readonly<Record<MatmulFusion, Fusion>> = {
  rotary: {
    ...{ layout: "nt", operands: TWOS },
    bindings: bindings(["a", "b", "angles"], ["out"]),
    params: u32Params("M", "N", "K", "T", "D", "turned"),
  },
  swiglu: {
    ...{ layout: "nt", operands: TWOS },
    bindings: bindings(["a", "b"], ["gate_up", "act"]),
    params: u32Params("M", "N", "K"),
  },
  swiglu_backward: {
    ...{ layout: "nn", operands: FOURS },
    bindings: bindings(["a", "b"], ["gate_up", "act"]),
    params: u32Params("M", "N", "K"),
  },
  bias: {
    ...{ layout: "nt", operands: FOURS },
    bindings: bindings(["a", "b", "bias", "residual"], ["out"]),
    params: u32Params("M", "N", "K", "residual"),
  },
  gelu: {
    ...{ layout: "nt", operands: FOURS },
    bindings: bindings(["a", "b", "bias"], ["up", "act"]),
    params: u32Params("M", "N", "K"),
  },
  gelu_backward: {
    ...{ layout: "nn", operands: FOURS },
    bindings: bindings(["a", "b", "bias"], ["up", "act"]),
    params: u32Params("M", "N", "K"),
  },
};

export const MATMUL_FUSIONS = Object.keys(FUSIONS) as readonly MatmulFusion[];

export function fusionLayout(fusion: MatmulFusion): MatmulLayout {
  return FUSIONS[fusion].layout;
}

function specOf(member: MatmulMember, fusion: MatmulFusion, storage: FusedStorage): KernelSpec {
  const { layout, operands, ...rest } = FUSIONS[fusion];
  const texts = [...operands[storage], `matmul_${fusion}`, `matmul_${layout}_vec4`];
  const kernel = memberKernel(member, { name: `matmul ${layout} ${fusion}`, texts, ...rest });
  return storage === "floats" ? kernel : { ...kernel, name: `${kernel.name}_${storage}` };
}

const specs = new Map<string, KernelSpec>();
for (const member of MATMUL_FAMILY) {
  for (const fusion of MATMUL_FUSIONS) {
    for (const storage of ["floats", "halves"] as const) {
      specs.set(`${member.name} ${fusion} ${storage}`, specOf(member, fusion, storage));
    }
  }
}

/** All of them. */
export const fusedSpecs: readonly KernelSpec[] = [...specs.values()];

/**
 * The member's kernel for a product with this end; undefined where N or K does not divide by four. For rotary the heads' width
 * must divide by four too, which the caller sees to.
 */
export function fusedSpec(
  member: MatmulMember,
  fusion: MatmulFusion,
  shape: MatmulShape & { storage?: FusedStorage },
): KernelSpec | undefined {
  if (!dividesByFour(fusionLayout(fusion), shape)) return undefined;
  return specs.get(`${member.name} ${fusion} ${shape.storage ?? "floats"}`);
}

/** What a kernel does besides its product; undefined if nothing. */
export function fusionOf({ name }: KernelSpec): MatmulFusion | undefined {
  // The longest name first: one begins with another.
  const longestFirst = MATMUL_FUSIONS.toSorted((a, b) => b.length - a.length);
  return longestFirst.find((fusion) => name.includes(`_${fusion}_`));
}
