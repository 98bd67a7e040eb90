// Which kernel of the family a matrix product runs, and its parameters. The choice is a value: measured ones come from
// peer/gpu/tune.ts, the others from what is known of kinds of adapters. Nothing here touches a device.
import sumSlicesWgsl from "../../../shaders/matmul_sum_slices.wgsl" with { type: "text" };
import { mayBeSliced } from "../../model/product_slices.ts";
import type { GpuDevice } from "../device.ts";
import type { KernelSpec } from "../kernel.ts";
import { bindings, cover, u32Params } from "./define.ts";
import { fusedSpec, type FusedStorage, fusionLayout, type MatmulFusion } from "./matmul_fused.ts";
import {
  dividesByFour,
  MATMUL_FAMILY,
  type MatmulLayout,
  type MatmulMember,
  type MatmulShape,
  memberSpec,
} from "./matmul_family.ts";

export type { MatmulLayout, MatmulShape } from "./matmul_family.ts";

/** What is added to the product before it is stored: nothing, the binding `residual`, or the old output. */
export const MatmulEpilogue = { store: 0, addResidual: 1, accumulate: 2 } as const;

/** out[i] = sum over slices of parts[slice, i], with the product's epilogue; the second pass of a sliced product. */
export const sumSlicesSpec: KernelSpec = {
  name: "matmul_sum_slices",
  wgsl: sumSlicesWgsl,
  bindings: bindings(["parts", "residual"], ["out"]),
  params: u32Params("count", "slices", "epilogue"),
  overrides: { workgroupSize: 64 },
  workgroups: ({ count = 0 }, overrides) => cover(count, overrides),
};

/** A member of the family, by name, and into how many slices K is cut. */
export interface MatmulPick {
  member: string;
  slices: number;
}

export interface MatmulChoice {
  /** Members in order of preference where nothing was measured. */
  preferred: readonly string[];
  /** By productClass. */
  measured: Readonly<Record<string, MatmulPick>>;
  /** Fusions that do not pay here, or are wrong here: the product and what follows it are kernels of their own. Default: none. */
  apart?: readonly MatmulFusion[];
}

/** What is known of an adapter before anything is measured. */
export interface MatmulTraits {
  software: boolean;
  adapterName: string;
  subgroups: boolean;
}

/** The traits of an open device. */
export function matmulTraits(gpu: GpuDevice): MatmulTraits {
  const { software, adapterName, device } = gpu;
  return { software, adapterName, subgroups: device.features.has("subgroups") };
}

/** Takes every shape on every adapter. */
const LAST_RESORT = "registers 8x4";

/** Nothing is known of the adapter. */
export const ANY_ADAPTER: MatmulChoice = { preferred: [LAST_RESORT], measured: {} };

/**
 * Members worth measuring on an adapter of this kind, the presumably best first. SwiftShader (Chromium without a GPU)
 * loads every lane of every vector by itself and keeps indexed registers in memory, so it wants few loads and loops that
 * are written out. Other CPUs want tiles that fit their registers. A GPU wants operands staged in workgroup memory, an
 * integrated one perhaps plain registers.
 */
export function candidateMembers({ software, adapterName, subgroups }: MatmulTraits): string[] {
  const quads = subgroups ? ["quads 16x16"] : [];
  if (/swiftshader/i.test(adapterName)) {
    return [...quads, ...(subgroups ? ["quads 16x32"] : []), "registers 8x16"];
  }
  if (software) return ["registers 8x4", "registers 4x4", "registers 8x16", ...quads];
  const shared = ["shared 64x64", "shared 128x64", "shared 128x128"];
  return [...shared, "registers 8x4", "registers 4x4", ...quads];
}

/** The choice before anything is measured. */
export function presumedChoice(traits: MatmulTraits): MatmulChoice {
  return { preferred: [...candidateMembers(traits), LAST_RESORT], measured: {} };
}

/** Outputs from which on a product counts as medium or large: whether its tiles fill an adapter with many cores. */
const OUTPUTS_MEDIUM = 1 << 16;
const OUTPUTS_LARGE = 1 << 20;

/** Products that run best with the same member: one layout, one kind of access, one order of size. */
export function productClass(layout: MatmulLayout, shape: MatmulShape): string {
  const outputs = shape.M * shape.N;
  const size = outputs < OUTPUTS_MEDIUM ? "small" : outputs < OUTPUTS_LARGE ? "medium" : "large";
  return `${layout} ${dividesByFour(layout, shape) ? "fours" : "any"} ${size}`;
}

export interface MatmulKernel {
  member: MatmulMember;
  spec: KernelSpec;
  slices: number;
}

/** The kernel that a choice gives for a product. */
export function pickMatmul(layout: MatmulLayout, shape: MatmulShape, choice: MatmulChoice): MatmulKernel {
  const measured = choice.measured[productClass(layout, shape)];
  const names = [...(measured === undefined ? [] : [measured.member]), ...choice.preferred, LAST_RESORT];
  for (const name of names) {
    const member = MATMUL_FAMILY.find((candidate) => candidate.name === name);
    const spec = member && memberSpec(member, layout, shape);
    if (!member || !spec) continue;
    const wanted = measured?.member === name && layout === "tn" ? measured.slices : 1;
    return { member, spec, slices: mayBeSliced(shape) ? wanted : 1 };
  }
  throw new TypeError(`${LAST_RESORT} takes every shape`);
}

/** The kernel of a product with what follows it, with the tiles that it has without; undefined if both run apart. */
export function pickFused(
  fusion: MatmulFusion,
  shape: MatmulShape & { storage?: FusedStorage },
  choice: MatmulChoice,
): KernelSpec | undefined {
  if (choice.apart?.includes(fusion)) return undefined;
  return fusedSpec(pickMatmul(fusionLayout(fusion), shape, choice).member, fusion, shape);
}
