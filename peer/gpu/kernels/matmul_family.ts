// The bounded family of matrix product kernels: every tile shape in one table, each in the three layouts of training.
// Which member runs is a choice (matmul.ts) that a measurement makes (peer/gpu/tune.ts). All give the reference's sums.
import type { KernelBinding, KernelParam, KernelSpec } from "../kernel.ts";
import { bindings, u32Params } from "./define.ts";

/** nn: a·b (input gradients); nt: a·bᵀ (forward, weights [out, in]); tn: aᵀ·b (weight gradients). */
export type MatmulLayout = "nn" | "nt" | "tn";
export const MATMUL_LAYOUTS: readonly MatmulLayout[] = ["nn", "nt", "tn"];

/**
 * How the operands are stored. floats: all in f32. With `dtype` f16: halves: a and out, activations; halves_in: a, a kept
 * gradient; halves_both: a and b, for a weight gradient. What is not named is f32, and sums always are.
 */
export type MatmulStorage = "floats" | "halves" | "halves_in" | "halves_both";

/** Where each is used. */
const STORAGES: Readonly<Record<MatmulLayout, readonly MatmulStorage[]>> = {
  nn: ["floats", "halves", "halves_in"],
  nt: ["floats", "halves"],
  tn: ["floats", "halves_both"],
};

export interface MatmulShape {
  M: number;
  N: number;
  K: number;
  /** Default floats. Halves come in fours, so the shape must divide by four. */
  storage?: MatmulStorage;
}

/** One tile shape: how a workgroup cuts the output. */
export interface MatmulMember {
  /** What a person reads: where a tile is held, and its rows x columns (of a workgroup's block where it is shared). */
  name: string;
  /** shaders/lib/matmul_<loop>.wgsl. */
  loop: string;
  /** Lines before the loop: constants that it leaves to the member. */
  prelude: readonly string[];
  /** Rows and columns of the output that one workgroup computes, for its overrides. */
  blockRows(overrides: Readonly<Record<string, number>>): number;
  blockColumns(overrides: Readonly<Record<string, number>>): number;
  overrides: Readonly<Record<string, number>>;
  /** Also linked with single-float loads, for shapes that do not divide by 4. */
  anyShape: boolean;
  feature?: "subgroups";
}

/** Rows and columns per invocation, in fours. */
function constants(rows4: number, columns4: number): string[] {
  return [`const ROWS4 = ${rows4}u;`, `const COLUMNS4 = ${columns4}u;`];
}

type Shape = Pick<MatmulMember, "loop" | "prelude" | "overrides" | "anyShape">;

/** Each invocation has its own tile, `columnGroups` x `rowGroups` of them a workgroup. */
function registers(name: string, [rows, columns]: readonly [number, number], shape: Shape): MatmulMember {
  return {
    ...{ name, ...shape },
    blockRows: ({ rowGroups = 1 }) => rows * rowGroups,
    blockColumns: ({ columnGroups = 1 }) => columns * columnGroups,
  };
}

/** Four invocations have a block of 32 rows and twice their columns, so `columnGroups` is a multiple of 4. */
function quads(columns: number, anyShape: boolean): MatmulMember {
  return {
    ...{ name: `quads 16x${columns}`, loop: `quads_${columns}`, prelude: [], feature: "subgroups", anyShape },
    overrides: { columnGroups: 4, rowGroups: 2 },
    blockRows: ({ rowGroups = 1 }) => 32 * rowGroups,
    blockColumns: ({ columnGroups = 1 }) => columns * columnGroups / 2,
  };
}

/** 16 x 16 invocations share a block through workgroup memory. */
function shared(rows: number, columns: number, anyShape: boolean): MatmulMember {
  return {
    ...{
      name: `shared ${16 * rows}x${16 * columns}`,
      loop: "shared",
      prelude: constants(rows / 4, columns / 4),
    },
    ...{ overrides: {}, anyShape, blockRows: () => 16 * rows, blockColumns: () => 16 * columns },
  };
}

const GROUP = { columnGroups: 8, rowGroups: 4 };

/** Every tile shape there is. A new one is added here and is then tested, tuned and shown. */
export const MATMUL_FAMILY: readonly MatmulMember[] = [
  registers("registers 4x4", [4, 4], {
    ...{ loop: "registers", prelude: constants(1, 1), overrides: GROUP, anyShape: false },
  }),
  registers("registers 8x4", [8, 4], {
    ...{ loop: "registers", prelude: constants(2, 1), overrides: GROUP, anyShape: true },
  }),
  registers("registers 8x16", [8, 16], {
    ...{ loop: "wide", prelude: [], overrides: { columnGroups: 4, rowGroups: 2 }, anyShape: false },
  }),
  quads(16, true),
  quads(32, false),
  shared(4, 4, true),
  shared(8, 4, false),
  shared(8, 8, false),
];

/** Whether loads of fours reach every operand: the rows of a, b and out, and the blocks of four k. */
export function dividesByFour(layout: MatmulLayout, { M, N, K }: MatmulShape): boolean {
  return N % 4 === 0 && K % 4 === 0 && (layout !== "tn" || M % 4 === 0);
}

/** Single floats, or fours as they are stored. */
type MatmulOperands = "any" | MatmulStorage;

/** What a kernel of a member is made of besides the member: imports before its loop, and what they bind. */
export interface MemberTexts {
  name: string;
  /** Files of shaders/lib/ by name: how operands are stored, bindings and store, loads. */
  texts: readonly string[];
  bindings: readonly KernelBinding[];
  params: readonly KernelParam[];
}

/** A kernel with a member's tiles. */
export function memberKernel(member: MatmulMember, { name, texts, ...rest }: MemberTexts): KernelSpec {
  const enable = member.feature === undefined ? [] : [`enable ${member.feature};`];
  const imports = [...texts, `matmul_${member.loop}`].map((text) => `// #import lib/${text}.wgsl`);
  return {
    name: `${name} ${member.name}`.replaceAll(" ", "_"),
    wgsl: [...enable, ...member.prelude, ...imports].join("\n"),
    ...rest,
    overrides: member.overrides,
    ...(member.feature === undefined ? {} : { feature: member.feature }),
    workgroups: ({ M = 0, N = 0, K = 0, sliceK = K }, overrides) => [
      Math.ceil(N / member.blockColumns(overrides)),
      Math.ceil(M / member.blockRows(overrides)),
      Math.max(1, Math.ceil(K / sliceK)),
    ],
  };
}

function specOf(member: MatmulMember, layout: MatmulLayout, operands: MatmulOperands): KernelSpec {
  const texts = operands === "any"
    ? [`matmul_${layout}_scalar`]
    : [`matmul_${operands}`, "matmul_vec4", `matmul_${layout}_vec4`];
  const kernel = memberKernel(member, {
    ...{ name: `matmul ${layout}`, texts },
    bindings: bindings(["a", "b", "residual"], ["out"]),
    params: u32Params("M", "N", "K", "epilogue", "sliceK"),
  });
  return operands === "floats" ? kernel : { ...kernel, name: `${kernel.name}_${operands}` };
}

const specs = new Map<string, KernelSpec>();
for (const member of MATMUL_FAMILY) {
  for (const layout of MATMUL_LAYOUTS) {
    const operands: MatmulOperands[] = [...STORAGES[layout], ...(member.anyShape ? ["any" as const] : [])];
    for (const of of operands) specs.set(`${member.name} ${layout} ${of}`, specOf(member, layout, of));
  }
}

/** All kernels of the family. */
export const matmulSpecs: readonly KernelSpec[] = [...specs.values()];

/** The member's kernel for a shape, by loads of fours where they reach; undefined if the member does not take the shape. */
export function memberSpec(
  member: MatmulMember,
  layout: MatmulLayout,
  shape: MatmulShape,
): KernelSpec | undefined {
  const { storage = "floats" } = shape;
  const fours = dividesByFour(layout, shape);
  if (!fours && storage !== "floats") return undefined;
  return specs.get(`${member.name} ${layout} ${fours ? storage : "any"}`);
}

/** The layout of the product that a kernel computes, also of one with an epilogue of its own; undefined if it is none. */
export function layoutOf({ name }: KernelSpec): MatmulLayout | undefined {
  return MATMUL_LAYOUTS.find((layout) => name.startsWith(`matmul_${layout}_`));
}
