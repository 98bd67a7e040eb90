// Adapters as an engine's W multiplies them: those of the matrices that are computed as one (q, k and v; gate and up) are stacked,
// so each such group takes four thin products, whatever it targets. Not the products themselves (shaders/reference/adapters.ts and
// the engines). What must stay true: what is stacked with zeros changes no sum, and unstacking reads each gradient from its place.
import type { StageBuild } from "../engine/engine.ts";
import type { ModelSpec } from "../wire/run.ts";
import { findTensor, GROUP_ALIGNMENT, stageLayout } from "./layout.ts";
import { type LoraMatrix, loraScale, loraTargets } from "./lora.ts";

/** The matrices of a block, each of which is one product of F. */
export const ADAPTED = ["qkv", "project", "gateUp", "down"] as const;
export type Adapted = typeof ADAPTED[number];

/** The first tensor of each and the others that lie behind it; a GPT-2 has no gate. */
const MEMBERS: Readonly<Record<Adapted, readonly string[]>> = {
  qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
  project: ["self_attn.o_proj"],
  gateUp: ["mlp.gate_proj", "mlp.up_proj"],
  down: ["mlp.down_proj"],
};

/** Stacked ranks are whole fours: halves are stored so, and loads of fours then reach every operand. */
const RANKS_UNIT = 4;

/** One targeted matrix of a group. */
export interface AdapterPart extends LoraMatrix {
  /** Its place among the group's rows and among its stacked ranks. */
  firstRow: number;
  firstRank: number;
}

/** A group's matrix is [rows, cols]; offsets in floats of the stacked array. */
export interface AdapterGroup {
  kind: Adapted;
  /** Counted from the stage's first. */
  layer: number;
  rows: number;
  cols: number;
  /** Of all its parts together, rounded up. */
  ranks: number;
  parts: AdapterPart[];
  /** A of all parts, [ranks, cols]. */
  aAt: number;
  /** B of all parts, transposed, [ranks, rows], with zeros where a part has no rows. */
  bAt: number;
}

/** All adapters of a stage, stacked. Layers follow one another and are as long as each other. */
export interface AdapterStack {
  rank: number;
  /** How often B·A counts. */
  scale: number;
  groups: AdapterGroup[];
  /** Floats of one layer, and of the stage; whole binding alignments. */
  layerFloats: number;
  floats: number;
  /** Floats of the stage's adapters in their own layout. */
  adapterFloats: number;
}

/** Of an engine that is built with adapters; undefined for any other. */
export function adapterStack({ spec: base, stage, adapters }: StageBuild): AdapterStack | undefined {
  if (adapters === undefined) return undefined;
  const spec: ModelSpec = { ...base, lora: adapters };
  const targets = new Map(loraTargets(spec, stage).map((matrix) => [matrix.name, matrix]));
  const groups: AdapterGroup[] = [];
  let end = 0, layerFloats = 0;
  for (let layer = 0; layer < stage.endLayer - stage.firstLayer; layer++) {
    for (const kind of ADAPTED) {
      const group = groupOf({ spec: base, stage }, { kind, layer, rank: adapters.rank, targets });
      if (group === undefined) continue;
      group.aAt = end;
      group.bAt = alignUp(end + group.ranks * group.cols);
      end = alignUp(group.bAt + group.ranks * group.rows);
      groups.push(group);
    }
    layerFloats = end / (layer + 1);
  }
  const { rank } = adapters, adapterFloats = stageLayout(spec, stage).size;
  return { rank, scale: loraScale(spec), groups, layerFloats, floats: end, adapterFloats };
}

function alignUp(floats: number): number {
  return Math.ceil(floats / GROUP_ALIGNMENT) * GROUP_ALIGNMENT;
}

interface GroupPlace {
  kind: Adapted;
  layer: number;
  rank: number;
  targets: ReadonlyMap<string, LoraMatrix>;
}

function groupOf(
  { spec, stage }: Pick<StageBuild, "spec" | "stage">,
  { kind, layer, rank, targets }: GroupPlace,
): AdapterGroup | undefined {
  const layout = stageLayout(spec, stage);
  const parts: AdapterPart[] = [];
  let rows = 0;
  for (const member of MEMBERS[kind]) {
    const name = `model.layers.${stage.firstLayer + layer}.${member}.weight`;
    const tensor = findTensor(layout, name), matrix = targets.get(name);
    if (matrix) parts.push({ ...matrix, firstRow: rows, firstRank: parts.length * rank });
    rows += tensor?.shape[0] ?? 0;
  }
  const [first] = parts;
  if (first === undefined) return undefined;
  const ranks = Math.ceil(parts.length * rank / RANKS_UNIT) * RANKS_UNIT;
  return { kind, layer, rows, cols: first.cols, ranks, parts, aAt: 0, bAt: 0 };
}

/**
 * @param adapters flat f32 in the layout of the stage's adapters
 * @param factors by group, what its B is multiplied with; default 1
 * @returns the stacked array
 */
export function stackAdapters(
  { groups, rank, floats }: AdapterStack,
  adapters: Float32Array,
  factors: readonly number[] = [],
): Float32Array<ArrayBuffer> {
  const out = new Float32Array(floats);
  for (const [g, { parts, cols, rows, aAt, bAt }] of groups.entries()) {
    const factor = factors[g] ?? 1;
    for (const part of parts) {
      const { aOffset, bOffset, firstRank } = part;
      out.set(adapters.subarray(aOffset, aOffset + rank * cols), aAt + firstRank * cols);
      for (let r = 0; r < rank; r++) {
        const to = bAt + (firstRank + r) * rows + part.firstRow;
        for (let row = 0; row < part.rows; row++) {
          out[to + row] = factor * adapters[bOffset + row * rank + r]!;
        }
      }
    }
  }
  return out;
}

/**
 * The gradient of adapters from what the products give in the places of stacked A and B.
 * @param factors as B was stacked with, which A's gradient then has too
 */
export function unstackGradient(
  { groups, rank, scale, adapterFloats }: AdapterStack,
  stacked: Float32Array | Float64Array,
  factors: readonly number[] = [],
): Float32Array<ArrayBuffer> {
  const out = new Float32Array(adapterFloats);
  for (const [g, { parts, cols, rows, aAt, bAt }] of groups.entries()) {
    const forA = scale / (factors[g] ?? 1);
    for (const part of parts) {
      const { aOffset, bOffset, firstRank } = part, from = aAt + firstRank * cols;
      for (let i = 0; i < rank * cols; i++) out[aOffset + i] = forA * stacked[from + i]!;
      for (let r = 0; r < rank; r++) {
        const from = bAt + (firstRank + r) * rows + part.firstRow;
        for (let row = 0; row < part.rows; row++) {
          out[bOffset + row * rank + r] = scale * stacked[from + row]!;
        }
      }
    }
  }
  return out;
}

/**
 * Largest magnitude of a group's B where its products are kept in halves: about that of a weight, so that these are of the
 * magnitude of gradients. B begins at zero, and products with what it is after a step would vanish in halves.
 */
const HALVES_B_EXPONENT = -4;

/** By group, the power of two that brings its B there; 1 for a B of zeros. */
export function halvesFactors({ groups, rank }: AdapterStack, adapters: Float32Array): number[] {
  return groups.map(({ parts }) => {
    let most = 0;
    for (const { bOffset, rows } of parts) {
      for (let i = bOffset; i < bOffset + rows * rank; i++) most = Math.max(most, Math.abs(adapters[i]!));
    }
    return most > 0 ? 2 ** (HALVES_B_EXPONENT - Math.ceil(Math.log2(most))) : 1;
  });
}
